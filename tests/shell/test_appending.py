"""A guarded append, whose outcome is known whatever becomes of the publish and of its acknowledgement."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.question_broker.place import Place
from tests.question_broker.world import eventually
from tests.settling import settle
from upcall_shell import jetstream
from upcall_shell.errors import Conflict, Unavailable
from upcall_shell.jetstream import Stored, StreamClient


def aggregate() -> str:
    return f"log.question.{uuid.uuid4().hex}"


def stream_on(connection: object) -> StreamClient:
    make: Callable[[], Any] = lambda: connection  # noqa: E731  what StreamClient takes
    return StreamClient(make, "LOG")


async def append(stream: StreamClient, under: str, body: bytes, expected: int, event_id: str = "") -> int:
    return await stream.append(
        f"{under}.Q.requested.S.P",
        body,
        guard=f"{under}.>",
        expected=expected,
        event_id=event_id or uuid.uuid4().hex,
    )


async def stored(stream: StreamClient, under: str) -> list[bytes]:
    return [each.body async for each in stream.scan([f"{under}.>"])]


class Flaky:
    """A connection that does something else with the nth publish than it is asked."""

    def __init__(self, nc: Client, **odd: str) -> None:
        self._nc = nc
        self._odd = {int(number.removeprefix("n")): what for number, what in odd.items()}
        self._published = 0
        self.ghosts: list[tuple[str, bytes, dict[str, str] | None]] = []
        self.connected = True

    @property
    def is_connected(self) -> bool:
        return self.connected

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nc, name)

    async def request(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None, **how: Any
    ) -> Msg:
        if subject.startswith("$JS"):
            return await self._nc.request(subject, body, **how)
        self._published += 1
        match self._odd.get(self._published):
            case "lost":
                raise TimeoutError
            case "ghost":  # it is on its way, and will be stored when nobody expects it any more
                self.ghosts.append((subject, body, headers))
                raise TimeoutError
            case "unheard":
                await self._nc.request(subject, body, headers=headers, **how)
                raise TimeoutError
            case _:
                return await self._nc.request(subject, body, headers=headers, **how)

    async def let_ghosts_in(self) -> list[dict[str, Any]]:
        """What the server says to what comes late."""
        replies = [await self._nc.request(s, b, timeout=2, headers=h) for s, b, h in self.ghosts]
        return [json.loads(reply.data) for reply in replies]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"n1": "lost"},
        {"n1": "unheard"},
        {"n1": "lost", "n2": "unheard"},
        {"n1": "unheard", "n2": "unheard"},
    ],
    ids=["good", "lost", "unheard", "lost-then-unheard", "unheard-twice"],
)
async def test_it_is_stored_once_and_its_sequence_is_told(nc: Client, odd: dict[str, str]) -> None:
    under, plain = aggregate(), stream_on(nc)
    seq = await append(stream_on(Flaky(nc, **odd)), under, b"1", 0)
    assert await stored(plain, under) == [b"1"]
    assert (await plain.last(f"{under}.>")).seq == seq  # pyright: ignore[reportOptionalMemberAccess]
    assert await append(plain, under, b"2", seq) > seq


async def test_a_ghost_that_comes_after_the_retry_is_refused(nc: Client) -> None:
    under, flaky = aggregate(), Flaky(nc, n1="ghost")
    await append(stream_on(flaky), under, b"1", 0)
    [answer] = await flaky.let_ghosts_in()
    assert "error" in answer
    assert await stored(stream_on(nc), under) == [b"1"]


async def test_a_ghost_that_comes_after_another_decision_is_refused(nc: Client) -> None:
    """Given up as unavailable, decided anew, and stored: the first decision can't come back."""
    under, flaky = aggregate(), Flaky(nc, n1="ghost")
    with pytest.raises(TimeoutError):
        await flaky.request(f"{under}.Q.requested.S.P", b"ghost", headers=_guarded(under, 0, "old"))
    seq = await append(stream_on(nc), under, b"1", 0)
    assert ["error" in answer for answer in await flaky.let_ghosts_in()] == [True]
    assert await stored(stream_on(nc), under) == [b"1"]
    assert seq


def _guarded(under: str, expected: int, event_id: str) -> dict[str, str]:
    return {
        "Nats-Expected-Last-Subject-Sequence": str(expected),
        "Nats-Expected-Last-Subject-Sequence-Subject": f"{under}.>",
        "Upcall-Event-Id": event_id,
    }


async def test_who_came_second_has_a_conflict_and_stored_nothing(nc: Client) -> None:
    under, stream = aggregate(), stream_on(nc)
    await append(stream, under, b"1", 0)
    with pytest.raises(Conflict):
        await append(stream, under, b"2", 0)
    assert await stored(stream, under) == [b"1"]


async def test_who_came_second_and_was_not_heard_has_a_conflict_too(nc: Client) -> None:
    under = aggregate()
    await append(stream_on(nc), under, b"1", 0)
    for what in ("lost", "unheard"):
        with pytest.raises(Conflict):
            await append(stream_on(Flaky(nc, n1=what)), under, b"2", 0)
    assert await stored(stream_on(nc), under) == [b"1"]


async def test_it_is_found_though_others_have_come_after_it(nc: Client) -> None:
    """Unheard, and the aggregate has moved on since: it was the first behind what it was decided on."""
    under, flaky = aggregate(), Flaky(nc, n1="unheard")
    mine = asyncio.create_task(append(stream_on(flaky), under, b"1", 0))
    while not await stored(stream_on(nc), under):  # noqa: ASYNC110  the stream is what is waited for
        await asyncio.sleep(0)
    first = await stream_on(nc).last(f"{under}.>")
    assert first is not None
    await append(stream_on(nc), under, b"2", first.seq)
    assert await mine == first.seq


async def test_of_many_at_once_one_is_stored(nc: Client) -> None:
    under, stream = aggregate(), stream_on(nc)
    outcomes = await asyncio.gather(
        *[append(stream, under, b"%d" % n, 0) for n in range(30)], return_exceptions=True
    )
    assert len([o for o in outcomes if isinstance(o, int)]) == 1
    assert len([o for o in outcomes if isinstance(o, Conflict)]) == 29
    assert len(await stored(stream, under)) == 1


async def test_where_jetstream_stays_away_it_gives_up(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "_WRITE_DEADLINE_S", 0.2)
    lost = {f"n{n}": "lost" for n in range(1, 50)}
    with pytest.raises(Unavailable):
        await append(stream_on(Flaky(nc, **lost)), aggregate(), b"1", 0)


async def test_without_a_connection_nothing_is_published(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would sit in the client's buffer, and be stored after the reconnect."""
    monkeypatch.setattr(jetstream, "_WRITE_DEADLINE_S", 0.2)
    under, flaky = aggregate(), Flaky(nc)
    flaky.connected = False
    with pytest.raises(Unavailable):
        await append(stream_on(flaky), under, b"1", 0)
    flaky.connected = True
    assert await stored(stream_on(flaky), under) == []


async def test_what_the_server_refuses_is_no_success(nc: Client) -> None:
    """Too large for a message: a failure of ours, which is not tried for ever."""
    with pytest.raises(ValueError, match="too many"):
        await append(stream_on(nc), aggregate(), b"x" * 5_000_000, 0)


@pytest.mark.faults
async def test_appends_over_kills_of_the_server_are_each_stored_once(nc: Client, servers: Place) -> None:
    under, stream = aggregate(), stream_on(nc)
    done = asyncio.Event()

    async def go_on() -> int:
        seq, count = 0, 0
        while not done.is_set() or count < 20:
            try:
                seq = await append(stream, under, b"%d" % count, seq)
            except Unavailable:
                continue
            count += 1
        return count

    writing = asyncio.create_task(go_on())
    for _ in range(2):
        while len(await _patiently(stream, under)) < 5:  # noqa: ASYNC110  the stream is what is waited for
            await asyncio.sleep(0.01)
        servers.nats.kill()
        await servers.again(servers.nats)
    done.set()
    count = await writing
    assert await _patiently(stream, under) == [b"%d" % n for n in range(count)]


async def _patiently(stream: StreamClient, under: str) -> list[bytes]:
    while True:
        try:
            return await stored(stream, under)
        except Unavailable:
            await asyncio.sleep(0.05)


# Reading


async def test_reading_is_the_same_from_the_leader_and_directly(nc: Client) -> None:
    under, direct, leader = aggregate(), stream_on(nc), stream_on(nc)
    leader._leader_only = True  # as on a cluster
    seq = await append(direct, under, b"1", 0, "e1")
    await append(direct, under, b"2", seq, "e2")
    for read in (direct, leader):
        last = await read.last(f"{under}.>")
        first = await read.next(f"{under}.>", 1)
        assert last is not None
        assert first is not None
        assert (first.seq, first.body, first.event_id) == (seq, b"1", "e1")
        assert (last.body, last.event_id, last.subject) == (b"2", "e2", f"{under}.Q.requested.S.P")
        assert await read.last(f"{under}.nothing") is None
        assert await read.next(f"{under}.>", last.seq + 1) is None
    assert (await direct.last(f"{under}.>")) == (await leader.last(f"{under}.>"))


async def test_the_clock_is_jetstreams(nc: Client) -> None:
    under, stream = aggregate(), stream_on(nc)
    before = await stream.now()
    await append(stream, under, b"1", 0)
    last = await stream.last(f"{under}.>")
    assert last is not None
    assert before <= last.time_ms <= await stream.now()


async def _fill(nc: Client, under: str, count: int) -> None:
    for n in range(count):
        await nc.publish(f"{under}.Q{n % 7}.x.S.P", b"%d" % n)
    await settle(nc)
    stream = stream_on(nc)
    await eventually(lambda: stored(stream, under), lambda bodies: len(bodies) == count)


async def test_a_scan_reads_everything_in_order(nc: Client) -> None:
    under, stream = aggregate(), stream_on(nc)
    assert await stored(stream, under) == []
    await _fill(nc, under, 600)
    assert await stored(stream, under) == [b"%d" % n for n in range(600)]
    everything = [each async for each in stream.scan([f"{under}.>"])]
    middle = everything[300].seq
    assert [e.body async for e in stream.scan([f"{under}.>"], middle)] == [b"%d" % n for n in range(300, 600)]
    last = [e async for e in stream.scan([f"{under}.>"], last_per_subject=True)]
    assert sorted(int(e.body) for e in last) == list(range(593, 600))


async def test_a_scan_whose_reader_is_gone_is_no_whole_scan(nc: Client) -> None:
    """The server was started anew, its ephemeral consumers are lost: what was read must not pass for all."""
    under, stream = aggregate(), stream_on(nc)
    await _fill(nc, under, 600)
    with pytest.raises(Unavailable):
        await _scan(stream, under, lambda: _remove_ephemerals(nc))


async def _scan(stream: StreamClient, under: str, at_ten: Callable[[], Awaitable[object]]) -> list[Stored]:
    """Read all, with something happening when ten have been read."""
    read: list[Stored] = []
    async for each in stream.scan([f"{under}.>"]):
        read.append(each)
        if len(read) == 10:
            await at_ten()
    return read


async def _remove_ephemerals(nc: Client) -> None:
    js = nc.jetstream()
    for info in await js.consumers_info("LOG"):
        if info.config.durable_name is None:
            await js.delete_consumer("LOG", info.name)


async def test_a_scan_ends_though_part_of_it_is_purged(nc: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "_SCAN_PULL_S", 0.3)
    under, stream, js = aggregate(), stream_on(nc), nc.jetstream()
    await _fill(nc, under, 600)
    read = await _scan(stream, under, lambda: js.purge_stream("LOG", subject=f"{under}.>"))
    assert 10 <= len(read) < 600
