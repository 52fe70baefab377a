"""Redis as the services use it: a lock that is politeness, an index that is believed while it is whole."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.question_broker.place import Place
from tests.question_broker.world import eventually
from tests.settling import on_disk
from upcall_contracts import keys
from upcall_shell import redis_gate
from upcall_shell.indexing import IndexKeeper
from upcall_shell.redis_gate import RedisGate

Gates = Callable[[], RedisGate]


@pytest.fixture
async def gates(servers: Place) -> AsyncIterator[Gates]:
    async with AsyncExitStack() as stack:

        def another() -> RedisGate:
            gate = RedisGate(servers.redis.url)
            stack.push_async_callback(gate.close)
            return gate

        yield another


def unique() -> str:
    return uuid.uuid4().hex


# The lock


async def test_within_a_process_everyone_has_his_turn(gates: Gates) -> None:
    gate, name, inside, most = gates(), unique(), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with gate.lock(name):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*[work() for _ in range(20)])
    assert most == 1


async def test_between_processes_those_who_insist_have_their_turns(gates: Gates) -> None:
    name, inside, most = unique(), 0, 0

    async def work(gate: RedisGate) -> None:
        nonlocal inside, most
        async with gate.lock(name) as turn:
            await turn.insist()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*[work(gates()) for _ in range(5)])
    assert most == 1


async def test_a_lock_that_was_lost_is_no_outage(gates: Gates, servers: Place) -> None:
    """Redis was emptied, or the lock held for too long: Redis is there all the same."""
    gate = gates()
    async with gate.lock(unique()) as turn:
        await turn.insist()
        await gate.redis.flushall()
    assert not gate.away
    assert gate.failures == 0


async def test_without_redis_everyone_has_his_turn_at_once(gates: Gates, servers: Place) -> None:
    gate = gates()
    servers.redis.kill()
    begun = time.monotonic()
    async with gate.lock(unique()) as turn:
        await turn.insist()
    assert time.monotonic() - begun < 1.8
    assert gate.away


async def test_a_failure_within_a_turn_ends_it(gates: Gates) -> None:
    gate, name = gates(), unique()
    for _ in range(2):
        with suppress(LookupError):
            async with gate.lock(name) as turn:
                await turn.insist()
                raise LookupError
    assert await gate.redis.get(keys.lock(name)) is None


# Being away


async def test_while_redis_hangs_one_waits_and_the_others_go_on(
    gates: Gates, servers: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_gate, "_PAUSE_S", 0.05)
    gate = gates()
    assert await gate.ping()
    servers.redis.pause()
    try:
        assert await gate.attempt(lambda r: r.get("x")) is None
        await asyncio.sleep(0.1)
        assert not gate.away
        trying = asyncio.create_task(gate.ping())
        await asyncio.sleep(0)
        begun = time.monotonic()
        assert await gate.attempt(lambda r: r.get("x")) is None
        assert time.monotonic() - begun < 0.5
        assert await trying is False
    finally:
        servers.redis.resume()
    await eventually(gate.ping)
    assert not gate.away


async def test_failures_are_counted_by_all_together(gates: Gates) -> None:
    one, other, seq = gates(), gates(), int(time.time_ns())
    assert [await each.count_failure("c", seq) for each in (one, other, one)] == [1, 2, 3]
    assert await other.count_failure("c", seq + 1) == 1


async def test_without_redis_failures_are_not_counted_here(gates: Gates, servers: Place) -> None:
    gate = gates()
    servers.redis.kill()
    assert await gate.count_failure("c", 1) == 0


# The index


class Index:
    """An index of one number: what the log holds when it is read, written when the reading is over."""

    def __init__(self, gate: RedisGate, service: str, takes_s: float = 0.0) -> None:
        self.log = 0
        self.rebuilt = 0
        self._gate = gate
        self._name = f"test:{service}"
        self._takes_s = takes_s
        self.service = service
        self.keeper = IndexKeeper(gate, service, self._rebuild)
        self.halfway: Callable[[], Awaitable[object]] | None = None

    async def _rebuild(self) -> None:
        self.rebuilt += 1
        found = self.log
        await asyncio.sleep(self._takes_s)
        if self.halfway is not None:
            halfway, self.halfway = self.halfway, None
            await halfway()
        await self._gate.attempt(lambda r: r.set(self._name, found))

    async def add(self) -> None:
        self.log += 1
        await self.keeper.write(lambda r: r.set(self._name, self.log))

    async def found(self) -> int | None:
        """What the index says, if it is whole."""
        if not await self._gate.is_ready(self.service):
            return None
        return int(await self._gate.attempt(lambda r: r.get(self._name)) or 0)


class Running:
    """Keepers that run while the block does."""

    def __init__(self, *indices: Index) -> None:
        self._indices = indices
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(i.keeper.run()) for i in self._indices]

    async def __aexit__(self, *_: object) -> None:
        left = set(self._tasks)
        while left:  # redis-py swallows a cancellation now and then
            for task in left:
                task.cancel()
            left = (await asyncio.wait(left, timeout=0.1))[1]


async def whole(index: Index) -> int:
    found = await eventually(index.found, lambda f: f is not None)
    assert found is not None
    return found


async def test_it_is_rebuilt_at_the_start_and_after_a_flush(gates: Gates) -> None:
    index = Index(gates(), unique())
    index.log = 7
    async with Running(index):
        assert await whole(index) == 7
        await index.add()
        assert await index.found() == 8
        await gates().redis.flushall()
        assert await index.found() is None
        assert await whole(index) == 8


async def test_two_that_rebuild_at_once_both_come_to_an_end(gates: Gates) -> None:
    """Each takes longer than the pause between two looks: neither may undo for ever what the other does."""
    service = unique()
    one, other = Index(gates(), service, 1.2), Index(gates(), service, 1.2)
    async with Running(one):
        await asyncio.sleep(0.3)
        async with Running(other):
            await whole(one)
            await asyncio.sleep(1.5)
            assert one.rebuilt + other.rebuilt <= 3


async def test_a_write_that_failed_is_made_up_for(gates: Gates, servers: Place) -> None:
    index = Index(gates(), unique())
    async with Running(index):
        await whole(index)
        servers.redis.kill()
        await index.add()
        assert index.keeper.doubtful
        await servers.again(servers.redis)
        assert await whole(index) == 1
        await eventually(lambda: _value(not index.keeper.doubtful))


async def _value(it: bool) -> bool:
    return it


async def test_another_redis_that_started_is_not_believed(gates: Gates, servers: Place) -> None:
    """Its file, or the replica that took over, may lack the last writes: the mark alone says nothing."""
    index, service = Index(gates(), unique()), ""
    async with Running(index):
        await whole(index)
    service = index.service
    gate = gates()
    assert await gate.is_ready(service)
    await on_disk(servers.redis.url)
    servers.redis.kill()
    await servers.again(servers.redis)
    async with Redis.from_url(servers.redis.url) as redis:
        assert await redis.get(keys.ready(service)) is not None  # it was in the file
    assert not await gate.is_ready(service)


async def test_a_doubt_while_it_is_rebuilt_makes_it_be_rebuilt_again(gates: Gates) -> None:
    """The other's write failed after this one had read the log: what it writes lacks something."""
    index, other = Index(gates(), unique()), gates()

    async def doubt() -> None:
        index.log += 1
        assert await other.doubt(index.service)

    index.halfway = doubt
    async with Running(index):
        assert await whole(index) == 1
        assert index.rebuilt == 2


async def test_a_rebuild_with_a_hole_does_not_count(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_gate, "_PAUSE_S", 0.0)
    gate = gates()
    index = Index(gate, unique())

    async def fail() -> None:
        async def failing(_: Any) -> None:
            raise OSError("cut")

        assert await gate.attempt(failing) is None

    index.halfway = fail
    async with Running(index):
        await whole(index)
        assert index.rebuilt == 2


async def test_what_was_lost_while_it_was_rebuilt_is_noticed(gates: Gates) -> None:
    index, other = Index(gates(), unique()), gates()
    index.halfway = other.redis.flushall
    async with Running(index):
        await whole(index)
        assert index.rebuilt == 2
