"""Where commands were tried, as Redis has it: what is whole is believed, what is lost is known to be lost."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.question_broker.place import Place
from tests.question_broker.world import eventually
from tests.settling import on_disk
from upcall_contracts import keys
from upcall_contracts.log import CommandMark
from upcall_shell import command_index
from upcall_shell.command_index import CommandIndex, add_from_log
from upcall_shell.redis_gate import RedisGate


@pytest.fixture
async def gate(servers: Place) -> AsyncIterator[RedisGate]:
    gate = RedisGate(servers.redis.url)
    yield gate
    await gate.close()


async def whole(gate: RedisGate) -> CommandIndex:
    """The index of a service of its own, marked as whole."""
    service = uuid.uuid4().hex
    token = await gate.begin_rebuild(service)
    assert token is not None
    assert await gate.finish_rebuild(service, token)
    return CommandIndex(gate, service)


def mark(body: str = "a", key: str | None = None) -> CommandMark:
    return CommandMark(key=key or uuid.uuid4().hex, fingerprint=body)


async def test_first_try_is_remembered_with_its_place(gate: RedisGate) -> None:
    index, said = await whole(gate), mark()
    first = await index.tried(said, "S1", 7)
    assert first is not None
    assert (first.whole, first.tries) == (True, [])
    again = await index.tried(said, "S1", 9)
    assert again is not None
    (found,) = again.on("S1")
    assert (found.since, found.fingerprint, found.order) == (7, "a", 1)
    assert again.of_others("S1", said) == []


async def test_only_something_else_elsewhere_makes_it_reused(gate: RedisGate) -> None:
    """A spawn is tried on the parent and on the child: the same body in another place is the same command."""
    index, said = await whole(gate), mark("a")
    await index.tried(said, "P", 1)
    same = await index.tried(said, "C", 1)
    other = await index.tried(mark("b", said.key), "P2", 1)
    assert same is not None
    assert other is not None
    assert same.of_others("C", said) == []
    assert {each.place for each in other.of_others("P2", mark("b", said.key))} == {"P", "C"}


async def test_refused_try_is_forgotten(gate: RedisGate) -> None:
    index, said = await whole(gate), mark()
    await index.tried(said, "S1", 7)
    await index.refused(said, "S1")
    found = await index.look(said)
    assert found is not None
    assert found.tries == []


async def test_looking_notes_nothing(gate: RedisGate) -> None:
    index, said = await whole(gate), mark()
    assert (await index.look(said)) == (await index.look(said))


async def test_what_the_log_says_is_in_nobodys_hand(gate: RedisGate) -> None:
    index, said = await whole(gate), mark()

    async def write(redis: Redis) -> list[Any]:
        pipe = redis.pipeline(transaction=False)
        add_from_log(pipe, said, "S1", 12)
        return await pipe.execute()

    await gate.attempt(write)
    found = await index.look(said)
    assert found is not None
    (only,) = found.tries
    assert (only.since, found.in_hand(only)) == (11, False)


async def test_who_came_first_is_waited_for_for_a_while(
    gate: RedisGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never the other way round, so that no two wait for each other."""
    index, said = await whole(gate), mark("a")
    other = mark("b", said.key)
    await index.tried(said, "S1", 7)
    second, first = await index.tried(other, "S2", 9), await index.tried(said, "S1", 8)
    assert first is not None
    assert second is not None
    (before,), (behind,) = second.of_others("S2", other), first.of_others("S1", said)
    assert second.in_hand(before)
    assert not first.in_hand(behind)
    monkeypatch.setattr(command_index, "_now_ms", lambda: before.at + command_index.IN_HAND_MS)
    assert not second.in_hand(before)


async def test_index_that_lost_its_mark_or_its_server_is_not_whole(gate: RedisGate) -> None:
    index, said = await whole(gate), mark()
    service = index._service
    await gate.attempt(lambda redis: redis.set(keys.ready(service), "another-process"))
    found = await index.look(said)
    assert found is not None
    assert not found.whole
    await gate.attempt(lambda redis: redis.delete(keys.ready(service)))
    found = await index.look(said)
    assert found is not None
    assert not found.whole


async def test_another_redis_that_started_is_not_believed(gate: RedisGate, servers: Place) -> None:
    """It has the mark from its file, and may lack the last writes; the connection is made anew unnoticed."""
    index, said = await whole(gate), mark()
    found = await index.look(said)
    assert found is not None
    assert found.whole
    await on_disk(servers.redis.url)
    servers.redis.kill()
    await servers.again(servers.redis)
    async with Redis.from_url(servers.redis.url) as redis:
        assert await redis.get(keys.ready(index._service)) is not None
    for _ in range(2):
        found = await eventually(lambda: index.look(said), lambda tries: tries is not None)
        assert found is not None
        assert not found.whole
