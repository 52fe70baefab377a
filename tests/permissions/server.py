"""A nats-server with the configuration that is shipped, and what a user may do there."""

import asyncio
import json
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.settling import settle
from upcall_deploy import binaries, permissions
from upcall_deploy.ports import HOST, Ports

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "deploy" / "nats"
PASSWORD = "p0123"
WITHIN_S = 15

USERS = """
[[operator]]
user = "operator"
password_env = "UPCALL_NATS_OPERATOR_PASSWORD"

[[agents]]
user = "agents"
password_env = "UPCALL_NATS_AGENTS_PASSWORD"

[[harness]]
user = "shop"
sessions = ["lead-1", "lead-2"]
password_env = "UPCALL_NATS_AGENTS_PASSWORD"

[[runner]]
user = "runner-1"
agents = ["explorer"]
password_env = "UPCALL_NATS_AGENTS_PASSWORD"
"""


def configuration(directory: Path, users: str = USERS) -> Path:
    """The shipped configuration with these users; the folder that holds it."""
    folder = directory / "nats"
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    for file in [*SHIPPED.glob("*.conf"), *SHIPPED.glob("parts/*.conf")]:
        (folder / file.relative_to(SHIPPED)).write_text(file.read_text())
    (folder / "parts" / "users.conf").write_text(permissions.users(users))
    return folder


def environment(**more: str) -> dict[str, str]:
    """All variables of the configuration, the same password for everyone."""
    text = permissions.accounts() + permissions.users(USERS)
    names = [line.split("=")[0] for line in permissions.passwords(text).splitlines()]
    fixed = {"UPCALL_NATS_NAME": "under-test", "UPCALL_SYNC_INTERVAL": "2m"}
    return {**os.environ, **dict.fromkeys(names, PASSWORD), **fixed, **more}


@contextmanager
def serving(
    directory: Path, name: str = "single", users: str = USERS, more: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Run it; its port, once it takes connections."""
    ports = Ports(directory / "ports.json")
    port, file = ports.give("nats"), configuration(directory, users) / f"{name}.conf"
    where = ["-a", HOST, "-p", str(port), "-m", str(ports.give("http"))]
    log = directory / "nats.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binaries.nats_server(), "-c", file, *where],
            stdout=output,
            stderr=output,
            env=environment(UPCALL_NATS_STORE=str(directory / "store"), **(more or {})),
        )
    try:
        deadline = time.monotonic() + 10
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


class User:
    """A connection as one of the users, and what NATS said to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nc = Client()
        self.refusals: list[str] = []
        self._refusal = asyncio.Event()

    async def connect(self, port: int, **options: Any) -> "User":
        prefix = {} if self.name == "services" else {"inbox_prefix": permissions.inbox_prefix(self.name)}
        await self.nc.connect(
            f"nats://{HOST}:{port}",
            **{
                "user": self.name,
                "password": PASSWORD,
                "error_cb": self._on_error,
                "allow_reconnect": False,
                **prefix,
                **options,
            },
        )
        return self

    async def _on_error(self, error: Exception) -> None:
        self.refusals.append(str(error))
        self._refusal.set()

    async def refused(self, subject: str, body: bytes = b"{}", reply: str = "") -> bool:
        """Publish, and say whether NATS refused it."""
        self.refusals.clear()
        await self.nc.publish(subject, body, reply=reply)
        await settle(self.nc)
        return any(
            f'permissions violation for publish to "{subject.lower()}"' in r.lower() for r in self.refusals
        )

    async def refused_to_hear(self, subject: str) -> bool:
        """Subscribe, and say whether NATS refused it."""
        self.refusals.clear()
        subscription = await self.nc.subscribe(subject)
        await settle(self.nc)
        refused = any("permissions violation for subscription" in r.lower() for r in self.refusals)
        if not refused:
            await subscription.unsubscribe()
        return refused

    async def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A request to JetStream's API, as any client makes it; empty where NATS refuses it."""
        self.refusals.clear()
        self._refusal.clear()
        raw = json.dumps(body or {}).encode()
        asked = asyncio.create_task(self.nc.request(f"$JS.API.{verb}", raw, timeout=WITHIN_S))
        refused = asyncio.create_task(self._refusal.wait())
        await asyncio.wait([asked, refused], return_when=asyncio.FIRST_COMPLETED)
        refused.cancel()
        if not asked.done():
            asked.cancel()
            return {}
        with suppress(nats.errors.NoRespondersError):
            return json.loads((await asked).data)
        return {}

    async def make_consumer(self, stream: str, filter_subject: str, **config: Any) -> dict[str, Any]:
        """A consumer with a random name; the answer, or empty where NATS refuses it."""
        name = uuid.uuid4().hex
        wanted = {
            "name": name,
            "filter_subject": filter_subject,
            "ack_policy": "explicit",
            "inactive_threshold": 30_000_000_000,
            **config,
        }
        verb = f"CONSUMER.CREATE.{stream}.{wanted['name']}.{filter_subject}"
        return await self.api(verb, {"stream_name": stream, "config": wanted})

    async def pull(self, stream: str, consumer: str) -> Msg:
        """The next message of a consumer."""
        inbox = self.nc.new_inbox()
        subscription = await self.nc.subscribe(inbox)
        try:
            await self.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", b"1", reply=inbox)
            return await subscription.next_msg(WITHIN_S)
        finally:
            await subscription.unsubscribe()

    async def close(self) -> None:
        await self.nc.close()
