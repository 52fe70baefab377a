"""kill -9 of the session service between an entry of the log and what follows from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from tests.blackbox.wire import Json, Runner, Wire, eventually, uid
from tests.question_broker.place import Place, Process
from tests.reporter.proxy import Proxy, proxy
from upcall_contracts import keys, streams

pytestmark = pytest.mark.faults

GRANTS = f"ZADD\r\n${len(keys.leases())}\r\n{keys.leases()}\r\n".encode()
"""A lease on its way to Redis."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Place]:
    """Servers of the test's own: an instance that starts grants the leases of all that the log has."""
    with Place.running(tmp_path, brokers=0) as place:
        yield place


@pytest.fixture
async def w(running: Place) -> AsyncIterator[Wire]:
    """A connection to a place with no service yet."""
    wire = await Wire.connect(running.nats.url)
    yield wire
    await wire.close()


async def deliver_again(w: Wire, after_s: float) -> None:
    """What an instance has in hand comes again so soon."""
    definition = next(c for c in streams.CONSUMERS if (c.stream, c.name) == (streams.COMMANDS, "session"))
    config = {**definition.config(), "ack_wait": int(after_s * 1e9)}
    request = json.dumps({"stream_name": streams.COMMANDS, "config": config}).encode()
    answer = await w.nc.request(f"$JS.API.CONSUMER.CREATE.{streams.COMMANDS}.session", request)
    assert "error" not in json.loads(answer.data)


@pytest.fixture
async def redis(running: Place) -> AsyncIterator[Redis]:
    async with Redis.from_url(running.redis.url) as redis:
        yield redis


@asynccontextmanager
async def session_service(place: Place, **environment: str) -> AsyncIterator[Process]:
    """An instance in a process of its own, until the block ends or it is killed."""
    process = place.service(uid("session"), "session", **environment)
    process.start()
    try:
        await process.until_ready()
        yield process
    finally:
        process.resume()
        process.kill()


@asynccontextmanager
async def doomed(place: Place) -> AsyncIterator[tuple[Process, Proxy]]:
    """An instance whose first lease does not reach Redis."""
    port = urlsplit(place.redis.url).port
    assert port is not None
    async with (
        proxy(port, GRANTS, let_sign_through=False) as gate,
        session_service(place, UPCALL_REDIS_URL=f"redis://127.0.0.1:{gate.port}/0") as process,
    ):
        yield process, gate


@dataclass(frozen=True)
class Hosting:
    """A command by which somebody becomes the host of a session, and the event that it comes to."""

    session_id: str
    event: str
    caller: str
    command: str
    body: Json


async def opening(w: Wire, lease_ms: int) -> Hosting:
    """A program opens its session."""
    session_id = uid("S")
    body: Json = {"agent": "lead", "lease_ms": lease_ms, "command_id": "c"}
    return Hosting(session_id, "opened", session_id, "session.open", body)


async def claiming(w: Wire, lease_ms: int) -> Hosting:
    """A runner claims a run."""
    parent = await w.start(await w.open())
    runner = Runner(w, uid("agent"))
    body: Json = {"agent": runner.agent, "task": "Build.", "run_id": parent.run_id, "lease_ms": lease_ms}
    made = await w.do(parent.caller, "session.spawn", **body)
    claim = {"run_id": made["run_id"], "command_id": "c"}
    return Hosting(made["session_id"], "started", runner.id, "run.claim", claim)


async def stored_without_a_lease(w: Wire, redis: Redis, host: Hosting) -> None:
    """The entry is there, its lease is not, and its command is not done."""
    last, _ = (await w.read(streams.LOG, f"log.session.{host.session_id}.>"))[-1]
    assert host.event in last.split(".")
    assert await redis.zscore(keys.leases(), host.session_id) is None
    assert (await w.js.stream_info(streams.COMMANDS)).state.messages >= 1


async def is_found_gone(w: Wire, session_id: str) -> bool:
    """Whether a session is not live any more, or its run waits for another holder."""
    session = await w.session(session_id)
    if session["host"] == "self":
        return not session["live"]
    return bool((await w.run(session["run_id"]))["attempt"] == 2)


Prepare = Callable[[Wire, int], Awaitable[Hosting]]

# The other instance has read the log before: that grants leases that are missing, too.


@pytest.mark.parametrize("prepare", [opening, claiming])
async def test_killed_between_an_entry_and_its_lease(
    running: Place, w: Wire, redis: Redis, prepare: Prepare
) -> None:
    """The other instance gets the command, finds that it is done, and grants the lease: a host that stays
    silent is found gone."""
    async with session_service(running) as other:
        host = await prepare(w, 1000)
        await deliver_again(w, 0.5)
        await eventually(lambda: redis.exists(keys.ready("session")), bool)
        other.pause()
        reply = asyncio.create_task(w.do(host.caller, host.command, within=60, **host.body))
        async with doomed(running) as (process, gate):
            await asyncio.wait_for(gate.seen.wait(), 30)
            process.kill()
        await stored_without_a_lease(w, redis, host)
        other.resume()
        await reply
        await eventually(lambda: is_found_gone(w, host.session_id), bool, within=30)


@pytest.mark.parametrize("prepare", [opening, claiming])
async def test_the_lease_is_granted_where_the_command_was_sent_again(
    running: Place, w: Wire, redis: Redis, prepare: Prepare
) -> None:
    """What the other instance gets is no redelivery then: the decision tells that the command came before."""
    async with session_service(running) as other:
        host = await prepare(w, 600_000)
        await deliver_again(w, 600)
        await eventually(lambda: redis.exists(keys.ready("session")), bool)
        other.pause()
        subject = f"cmd.{host.caller}.{host.command}"
        async with doomed(running) as (process, gate):
            while not gate.seen.is_set():  # either instance may get it
                await w.publish(subject, host.body)
                with suppress(TimeoutError):
                    await asyncio.wait_for(gate.seen.wait(), 1)
            process.kill()
        await stored_without_a_lease(w, redis, host)
        other.resume()
        await w.do(host.caller, host.command, **host.body)
        assert await redis.zscore(keys.leases(), host.session_id) is not None
