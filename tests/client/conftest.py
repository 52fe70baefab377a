"""What tests of the client talk to: everything, or a nats-server with services that a test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

import upcall
from tests.blackbox.deployment import Deployment
from tests.settling import settle
from upcall_contracts.errors import Refusal, ok
from upcall_deploy.ports import Ports
from upcall_deploy.processes import Part
from upcall_deploy.provision import provision_deployment
from upcall_deploy.servers import nats_part
from upcall_shell.settings import ShellSettings

from .agents import runner_of

Reply = dict[str, Any] | Refusal | None
Script = Callable[[str, dict[str, Any]], Reply]


class Server:
    """A real nats-server that a test may kill and start again."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._spec = nats_part(data, Ports(data / "ports.json").give("nats"))
        self._part: Part | None = None

    @property
    def url(self) -> str:
        return self._spec.url

    async def start(self) -> None:
        self._part = Part(self._spec, self._data / "nats.log", say=lambda *_: None, changed=lambda _: None)
        self._part.start()
        async with asyncio.timeout(20):
            await self._part.until_ready()

    async def stop(self) -> None:
        if self._part:
            await self._part.end()
            self._part = None


class Services:
    """Stands in for the services: it hears every command and query, and says what the test scripts.

    None is no reply at all, as from a service that died with the command in hand.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.script: Script = lambda name, body: {}
        self.asked = asyncio.Event()
        self._nc = Client()

    async def connect(self, url: str) -> None:
        self._nc = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
        await self._nc.subscribe("cmd.>", cb=self._hear)
        await self._nc.subscribe("query.>", cb=self._hear)
        await settle(self._nc)

    async def close(self) -> None:
        await self._nc.close()

    async def publish(self, subject: str, body: dict[str, Any]) -> None:
        await self._nc.publish(subject, json.dumps(body).encode())

    async def _hear(self, message: Msg) -> None:
        name = message.subject.split(".", 2)[2]
        body = json.loads(message.data)
        self.seen.append((name, body))
        self.asked.set()
        said = self.script(name, body)
        reply_to = (message.headers or {}).get("reply_to") or message.reply
        if said is not None:
            reply = said.to_reply() if isinstance(said, Refusal) else ok(said)
            await self._nc.publish(reply_to, json.dumps(reply).encode())


@pytest.fixture
async def bare_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """One without any streams."""
    monkeypatch.setenv("UPCALL_SYNC_INTERVAL", "2m")
    server = Server(tmp_path)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def server(bare_server: Server) -> Server:
    await provision_deployment(ShellSettings(nats_url=bare_server.url))
    return bare_server


@pytest.fixture
async def services(server: Server) -> AsyncIterator[Services]:
    services = Services()
    await services.connect(server.url)
    yield services
    await services.close()


@pytest.fixture
async def up(server: Server) -> AsyncIterator[upcall.Upcall]:
    async with upcall.connect(server.url) as up:
        yield up


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Everything, real, with waits that a test can afford."""
    settings = {
        "INSTANCES": "1",
        "UPCALL_SYNC_INTERVAL": "2m",
        "UPCALL_LEASE_MS": "2000",
        "UPCALL_CANCEL_GRACE_MS": "2000",
    }
    deployment = Deployment(tmp_path_factory.mktemp("client") / "data", settings)
    try:
        yield deployment.start()
    finally:
        deployment.stop()


@pytest.fixture
async def live(deployment: Deployment) -> AsyncIterator[upcall.Upcall]:
    """A connection to the whole deployment."""
    await asyncio.to_thread(deployment.wait_ready)
    async with upcall.connect(deployment.nats_url) as up:
        yield up


@pytest.fixture
async def runner(live: upcall.Upcall) -> AsyncIterator[upcall.Runner]:
    """Serves all the agents of tests until the test ends."""
    runner = runner_of(live)
    serving = asyncio.create_task(runner.run(handle_signals=False))
    await runner.serving.wait()
    yield runner
    runner.stop()
    await serving
