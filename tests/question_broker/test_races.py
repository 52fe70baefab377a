"""Those who come at the same moment, with two brokers, and with Redis's lock lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.question_broker.place import Place
from tests.question_broker.world import Json, Session, World, eventually, now
from upcall_contracts import times
from upcall_contracts.ids import OPERATOR

pytestmark = pytest.mark.xdist_group("question_broker")

ROUNDS = 200
AT_ONCE = 50


# What may be the matter with Redis


@asynccontextmanager
async def nothing(place: Place) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def emptied_all_the_time(place: Place) -> AsyncIterator[None]:
    """What is locked is not locked any more, and what was indexed is forgotten."""

    done = asyncio.Event()

    async def empty() -> None:
        async with Redis.from_url(place.redis.url) as redis:
            while not done.is_set():
                with suppress(RedisError):
                    await redis.flushall()
                await asyncio.sleep(0.002)

    emptying = asyncio.create_task(empty())
    try:
        yield
    finally:
        done.set()
        await emptying


@asynccontextmanager
async def killed(place: Place) -> AsyncIterator[None]:
    place.redis.kill()
    try:
        yield
    finally:
        await place.again(place.redis)


Matter = Callable[[Place], AbstractAsyncContextManager[None]]
MATTERS = [nothing, emptied_all_the_time, killed]


@pytest.mark.parametrize("matter", MATTERS, ids=[m.__name__ for m in MATTERS])
async def test_of_fifty_asks_of_one_run_at_once_one_is_accepted(
    w: World, place: Place, matter: Matter
) -> None:
    parent, child = await w.family()
    async with matter(place):
        replies = await asyncio.gather(*[child.ask_reply(f"Question number {n}?") for n in range(AT_ONCE)])
    [accepted] = [r["result"]["question"] for r in replies if r["ok"]]
    refused = [r["error"] for r in replies if not r["ok"]]
    assert {e["code"] for e in refused} == {"question_already_open"}
    assert {e["details"]["request_id"] for e in refused} == {accepted["request_id"]}
    assert await w.in_log(child.run_id) == [f"{accepted['request_id']}.requested"]
    assert await parent.listed() == [accepted["request_id"]]


@pytest.mark.parametrize("matter", MATTERS, ids=[m.__name__ for m in MATTERS])
async def test_the_same_ask_fifty_times_at_once_is_one_question(
    w: World, place: Place, matter: Matter
) -> None:
    """A child whose connection flaps sends its tool call again and again."""
    _, child = await w.family()
    async with matter(place):
        replies = await asyncio.gather(*[child.ask_reply(command_id="call") for _ in range(AT_ONCE)])
    assert {r["result"]["question"]["request_id"] for r in replies if r["ok"]} == {
        replies[0]["result"]["question"]["request_id"]
    }
    assert all(r["ok"] for r in replies)
    assert len(await w.in_log(child.run_id)) == 1


@pytest.mark.parametrize("matter", MATTERS, ids=[m.__name__ for m in MATTERS])
async def test_of_all_who_end_a_question_at_once_one_does(w: World, place: Place, matter: Matter) -> None:
    """Parent, operator, child, the run's end and the parent's: a question ends once, as one of them says."""
    families = [await w.family() for _ in range(6)]
    asked = [await child.ask(command_id="c") for _, child in families]
    runs = [child.run_id for _, child in families]
    async with matter(place):
        await asyncio.gather(
            *[_all_at_once(w, *family, q["request_id"]) for family, q in zip(families, asked, strict=True)]
        )
    for (parent, child), run_id, question in zip(families, runs, asked, strict=True):
        record = await w.until_ended(question["request_id"])
        assert await w.ends(run_id, question["request_id"]) == [record["status"]]
        own = await eventually(
            lambda run_id=run_id: w.topic(run_id),
            lambda e: any(not s.endswith(("requested", "late")) for s, _ in e),
        )
        assert len([s for s, _ in own if not s.endswith((".requested", ".late"))]) == 1
        assert await parent.listed() == []
        assert child.state.run is None


async def _all_at_once(w: World, parent: Session, child: Session, request_id: str) -> None:
    answer = {"request_id": request_id, "answer": "x"}
    ways: list[Awaitable[object]] = [
        *[w.command(parent.id, "question.answer", **answer) for _ in range(3)],
        *[w.command(OPERATOR, "question.answer", **answer) for _ in range(3)],
        w.command(child.id, "question.cancel", request_id=request_id),
        w.command(child.id, "question.cancel", run_id=child.run_id),
        child.settles(),
        parent.is_gone(),
    ]
    random.shuffle(ways)
    await asyncio.gather(*ways)


@pytest.mark.parametrize("matter", MATTERS, ids=[m.__name__ for m in MATTERS])
async def test_no_question_stays_open_on_what_ends_while_it_is_asked(
    w: World, place: Place, matter: Matter
) -> None:
    """The run settles, or the parent closes, at the very moment of the ask, whatever the order."""
    families = [await w.family() for _ in range(12)]
    runs = [child.run_id for _, child in families]

    async def one(number: int, parent: Session, child: Session) -> Json:
        asking = asyncio.create_task(child.ask_reply(command_id="c"))
        await asyncio.sleep(random.random() * 0.02)
        await (child.settles() if number % 2 else parent.closes())
        return await asking

    async with matter(place):
        replies = await asyncio.gather(*[one(n, *family) for n, family in enumerate(families)])
    for (parent, _), run_id, reply in zip(families, runs, replies, strict=True):
        if reply["ok"]:
            request_id = reply["result"]["question"]["request_id"]
            await w.until_ended(request_id, "cancelled", "error")
            assert len(await w.ends(run_id, request_id)) == 1
        else:
            assert reply["error"]["code"] in {"run_not_active", "parent_unavailable"}
            assert await w.in_log(run_id) == []
        assert await parent.listed() == []


async def test_answer_and_timeout_at_the_same_millisecond(w: World) -> None:
    """200 rounds: one end each, and which one follows from when the answer was stored."""
    parents = [await w.top() for _ in range(10)]
    children = [await w.child(parents[n % 10]) for n in range(ROUNDS)]
    ends: list[str] = []
    early_ms = 4.0
    for begin in range(0, ROUNDS, 25):
        batch = children[begin : begin + 25]
        found = await asyncio.gather(*[_at_the_same_moment(w, child, early_ms) for child in batch])
        ends += found
        # As early as this machine needs it, for both ends to come up.
        early_ms *= 1.5 if found.count("answered") < len(found) / 2 else 1 / 1.5
    assert len(ends) == ROUNDS
    assert set(ends) == {"answered", "timed_out"}


async def _at_the_same_moment(w: World, child: Session, early_ms: float) -> str:
    question = await child.ask(timeout_ms=random.randint(200, 500))
    request_id, expires_at = question["request_id"], times.from_wire(question["expires_at"])
    await asyncio.sleep((expires_at - now() - random.uniform(0, early_ms)) / 1000)
    parent_id = child.state.parent_session_id or ""
    reply = await w.command(parent_id, "question.answer", request_id=request_id, answer="In time?")
    record = await w.until_ended(request_id, "answered", "timed_out")
    assert await w.ends(child.run_id, request_id) == [record["status"]]
    if record["status"] == "answered":
        assert reply["ok"]
        assert times.from_wire(record["answered_at"]) < expires_at
    else:
        assert reply["error"]["code"] == "already_resolved"
        own = await eventually(lambda: w.topic(child.run_id), lambda e: len(e) == 3)
        assert times.from_wire(own[-1][1]["data"]["late"]["stored_at"]) >= expires_at
    return record["status"]
