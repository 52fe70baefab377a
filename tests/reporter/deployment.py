"""A real NATS and Redis, provisioned, with reporters in this process or in processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nats
from faststream import FastStream
from nats.aio.client import Client
from redis.asyncio import Redis

from upcall_contracts import log, streams, subjects
from upcall_contracts.states import ClosedPeriod, HeldPeriod, SessionState
from upcall_deploy.ports import Ports
from upcall_deploy.processes import Part
from upcall_deploy.servers import nats_part, redis_part
from upcall_reporter.app import build
from upcall_shell.jetstream import Stored, StreamClient
from upcall_shell.settings import ShellSettings

from .periods import T0, SessionEntry, run, session

T = TypeVar("T")
WITHIN = 15.0


class Deployment:
    """What a test needs of it: it says what sessions said, and reads what came of it."""

    def __init__(self, nats_server: Part, redis: Part, connection: Client) -> None:
        self.nats_url = nats_server.spec.url
        self.redis_url = redis.spec.url
        self.redis_server = redis
        self.connection = connection
        self.redis = Redis.from_url(self.redis_url)

    def stream(self, name: str) -> StreamClient:
        return StreamClient(lambda: self.connection, name)

    # The session service's part

    async def say(self, state: SessionState, *, settled: str | None = None, **data: Any) -> int:
        """Store an entry of a session: the settling of a run of it, or a note."""
        last = run(settled, session_id=state.session_id, **data) if settled else None
        entry = SessionEntry(
            event_id=f"{state.session_id}-{os.urandom(6).hex()}",
            type="run_settled" if last else "note",
            time=T0,
            run_id=settled or "",
            session_id=state.session_id,
            data=last.to_wire() if last else {},
            state=state,
        )
        subject = log.session_note(state.session_id, log.Note.NOTED)
        if last:
            about = (last.parent_run_id, state.parent_session_id)
            subject = log.session_event(state.session_id, last.run_id, "lifecycle", "1", "settled", *about)
        return await self.stream(streams.LOG).put(subject, entry.model_dump_json().encode())

    async def closes(self, period: ClosedPeriod, state: SessionState | None = None, **data: Any) -> int:
        """C's period closes at the settling of its last run."""
        state = (state or session()).model_copy(update={"closed_period": period})
        return await self.say(state, settled=period.run_id, **data)

    async def holds(self, period: HeldPeriod, state: SessionState | None = None) -> int:
        """C's period stays open after the settling of a run."""
        state = (state or session()).model_copy(update={"held_period": period})
        return await self.say(state, settled=period.run_id)

    # What came of it

    async def read(self, stream: str, *filters: str) -> list[Stored]:
        """All that a stream holds under the filters, in order."""
        return [stored async for stored in self.stream(stream).scan(list(filters))]

    async def reports(self, period_id: str = "*") -> list[Stored]:
        """All decisions on reports that the log holds."""
        return await self.read(streams.LOG, f"log.report.{period_id}.>")

    async def decided(self, period_id: str) -> Stored:
        """The decided report of a period, once it is there."""
        last = await eventually(
            lambda: self.stream(streams.LOG).last(log.report_guard(period_id)),
            lambda stored: stored is not None and status(stored) != "held",
        )
        assert last is not None
        return last

    async def caught_up(self) -> None:
        """Wait until every entry of a session has been handled."""

        async def look() -> dict[str, Any]:
            return await self.stream(streams.LOG).api("CONSUMER.INFO.LOG.reporter-periods", {})

        await eventually(look, lambda info: info["num_pending"] == info["num_ack_pending"] == 0)

    async def query(self, caller: str, verb: str, **body: Any) -> dict[str, Any]:
        """The reply to a query on reports."""
        subject = subjects.query(caller, "report", verb)
        message = await self.connection.request(subject, json.dumps(body).encode(), timeout=5)
        return json.loads(message.data)

    async def listed(self, caller: str, **body: Any) -> list[str]:
        """The periods of a caller's list, all its pages."""
        found: list[str] = []
        while True:
            reply = await self.query(caller, "list", **body)
            assert reply["ok"], reply
            found += [report["period_id"] for report in reply["result"]["reports"]]
            if reply["result"]["cursor"] is None:
                return found
            body["cursor"] = reply["result"]["cursor"]

    # Reporters

    @asynccontextmanager
    async def reporter(self) -> AsyncIterator[FastStream]:
        """A reporter in this process, from its readiness to its graceful stop."""
        settings = ShellSettings(
            nats_url=self.nats_url,
            redis_url=self.redis_url,
            http_port=0,
            log_level="CRITICAL",
            figures_ms=50,
        )
        app = build(settings).app()
        await app.start()
        try:
            yield app
        finally:
            await app.stop()

    def process(self, nats_port: int, output: Path) -> subprocess.Popen[bytes]:
        """A reporter as it is run for real, connected to NATS through a port of the test's."""
        environment = {
            "UPCALL_NATS_URL": f"nats://127.0.0.1:{nats_port}",
            "UPCALL_REDIS_URL": self.redis_url,
            "UPCALL_HTTP_PORT": "0",
        }
        with output.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "faststream", "run", "upcall_reporter.app:app"],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def nats_port(self) -> int:
        port = urlsplit(self.nats_url).port
        assert port is not None
        return port


def body(stored: Stored) -> dict[str, Any]:
    return json.loads(stored.body)


def status(stored: Stored) -> str:
    return body(stored)["data"]["status"]


async def eventually(look: Callable[[], Awaitable[T]], holds: Callable[[T], object]) -> T:
    """Look until it holds; fail with what was seen last."""
    async with asyncio.timeout(WITHIN) as limit:
        while True:
            seen = await look()
            if holds(seen):
                return seen
            when = limit.when()
            assert when is None or asyncio.get_running_loop().time() < when - 0.1, f"last seen: {seen!r}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def deployment(directory: Path) -> AsyncIterator[Deployment]:
    """Both servers on free ports, with everything provisioned."""
    ports = Ports(directory / "ports.json")
    specs = nats_part(directory, ports.give("nats")), redis_part(directory, ports.give("redis"))
    parts = [Part(s, directory / f"{s.name}.log", say=_say_nothing, changed=_ignore) for s in specs]
    for part in parts:
        part.start()
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*(part.until_ready() for part in parts))
    connection = await nats.connect(parts[0].spec.url)
    try:
        await _provision(connection)
        made = Deployment(parts[0], parts[1], connection)
        await made.say(session("P", parent_session_id=None, ancestors=[], depth=0))
        async with made.redis:
            yield made
    finally:
        await connection.close()
        for part in reversed(parts):
            await part.end()


async def _provision(connection: Client) -> None:
    requests = [(f"STREAM.CREATE.{s.name}", s.config()) for s in streams.STREAMS]
    for consumer in streams.CONSUMERS:
        request = {"stream_name": consumer.stream, "config": consumer.config()}
        requests.append((f"CONSUMER.CREATE.{consumer.stream}.{consumer.name}", request))
    for verb, request in requests:
        answer = await connection.request(f"$JS.API.{verb}", json.dumps(request).encode(), timeout=5)
        assert "error" not in json.loads(answer.data), answer.data


def _say_nothing(*_: object) -> None: ...


def _ignore(_: object) -> None: ...
