"""question.get, question.wait and question.list: complete, in order, and right whatever Redis knows."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from tests.question_broker.place import Place
from tests.question_broker.world import Session, World, eventually, now, uid
from tests.settling import settle
from upcall_contracts import keys, log, streams
from upcall_contracts.events import EventType
from upcall_contracts.ids import OPERATOR
from upcall_contracts.log import Entry
from upcall_contracts.records import QuestionRecord, RunRecord, RunStatus
from upcall_contracts.states import QuestionBrief, QuestionsState, SessionState

pytestmark = pytest.mark.xdist_group("question_broker")

MANY = 10_000 if os.environ.get("UPCALL_FAULTS") == "long" else 600


# Who sees what


async def test_who_gets_a_question(w: World) -> None:
    """The child, those above it and their runners, operators; all else is as if it did not exist."""
    runner_lead, runner_child = uid("runner"), uid("runner")
    top = await w.top()
    lead = await w.child(top, runner=runner_lead)
    child = await w.child(lead, runner=runner_child)
    sibling = await w.child(lead)
    below = await w.child(child)
    ask = {"run_id": child.run_id, "question": "q", "why_blocked": "w", "attempt": 1}
    request_id = (await w.do(runner_child, "question.ask", **ask))["question"]["request_id"]
    for caller in (child.id, runner_child, lead.id, runner_lead, top.id, OPERATOR):
        assert (await w.question(request_id, caller))["request_id"] == request_id
    for caller in (sibling.id, below.id, uid("S"), uid("runner")):
        foreign = (await w.query_reply(caller, "question.get", request_id=request_id))["error"]
        absent = (await w.query_reply(caller, "question.get", request_id="Q9"))["error"]
        assert (foreign["code"], foreign["details"]) == (absent["code"], absent["details"])
        assert foreign["message"].replace(request_id, "Q9") == absent["message"]


async def test_who_is_listed_what(w: World) -> None:
    runner_lead = uid("runner")
    top = await w.top()
    lead = await w.child(top, runner=runner_lead)
    child = await w.child(lead)
    to_top = await w.do(
        runner_lead, "question.ask", run_id=lead.run_id, question="q", why_blocked="w", attempt=1
    )
    to_lead = await child.ask()
    above, below = to_top["question"]["request_id"], to_lead["request_id"]
    assert await top.listed() == [above]
    assert await top.listed(scope="tree") == [above, below]
    assert await lead.listed() == [below]
    assert await w.listed(runner_lead) == [below]
    assert await w.listed(runner_lead, scope="tree") == [below]
    for caller in (child.id, uid("runner"), uid("S")):
        assert await w.listed(caller) == []
        assert await w.listed(caller, scope="tree") == []
    everything = await w.listed(OPERATOR)
    assert {above, below} <= set(everything)
    assert await w.listed(OPERATOR, scope="tree") == everything


async def test_no_list_shows_what_is_owed_an_end(w: World) -> None:
    """Between a run's settling, or its parent's closing, and the end, the question is no longer waiting."""
    parent, settling = await w.family()
    other, child = await w.family()
    questions = [(await each.ask())["request_id"] for each in (settling, child)]
    await w.pause_ends(1.5)
    await settling.settles()
    await other.closes()
    for caller in (parent.id, other.id, OPERATOR):
        assert not set(await w.listed(caller, scope="tree")) & set(questions)
    assert [(await w.until_ended(q))["status"] for q in questions] == ["cancelled", "error"]


# Pages


async def test_pages_are_in_order_and_complete_also_while_questions_end(w: World) -> None:
    parent = await w.top()
    children = [await w.child(parent) for _ in range(7)]
    asked = [(await child.ask())["request_id"] for child in children]
    assert await parent.listed(limit=3) == asked
    first = await w.query(parent.id, "question.list", limit=3)
    assert [q["request_id"] for q in first["questions"]] == asked[:3]
    for child in children[1:5]:
        await child.settles()
    for request_id in asked[1:5]:
        await w.until_ended(request_id)
    rest = await w.listed(parent.id, cursor=first["cursor"])
    assert rest == asked[5:]
    assert await parent.listed(limit=1, status="cancelled") == asked[1:5]


async def test_a_page_ends_before_its_reply_is_too_large(w: World) -> None:
    """Twelve questions of half a megabyte each come in pages that fit."""
    parent = await w.top()
    body = {"can_continue_without_answer": True, "fallback": "é" * 80_000, "options": ["a"]}
    asked = [(await (await w.child(parent)).ask(**body))["request_id"] for _ in range(12)]
    first = await w.query(parent.id, "question.list")
    assert 0 < len(first["questions"]) < 12
    assert await parent.listed() == asked


async def test_many_are_listed_completely(w: World, place: Place) -> None:
    """Thousands of open questions, written into the log by hand, in the order in which they were asked."""
    parent = await w.top()
    expected = await _write_many(w, parent, MANY)
    await _index_is_lost(place)
    assert await parent.listed(limit=500) == expected
    [last] = (await w.query(parent.id, "question.list", limit=1, status="waiting"))["questions"]
    assert last["request_id"] == expected[0]
    await _index_is_whole(place)
    assert await parent.listed(limit=500) == expected
    one = expected[MANY // 2]
    await parent.answer(one)
    assert await parent.listed(limit=500) == [each for each in expected if each != one]
    assert await parent.listed(status="answered") == [one]
    await parent.closes()
    assert await parent.listed() == []
    await eventually(w.ends_consumer_is_idle, within=300)
    assert len(await w.listed(parent.id, limit=500, status="error")) == MANY - 1
    await w.js.purge_stream(streams.LOG, subject=f"log.question.*.*.*.*.{parent.id}")


async def _write_many(w: World, parent: Session, count: int) -> list[str]:
    """Children with one open question each, as entries: what as many asks would have left behind."""
    base, ids = now(), []
    for n in range(count):
        child_id, run_id, request_id = uid("C"), uid("r"), uid("Q")
        ids.append(request_id)
        run = RunRecord(
            run_id=run_id,
            session_id=child_id,
            parent_session_id=parent.id,
            root_session_id=parent.id,
            status=RunStatus.RUNNING,
        )
        state = SessionState(
            session_id=child_id,
            parent_session_id=parent.id,
            root_session_id=parent.id,
            ancestors=[parent.id],
            agent="worker",
            created_at=base,
            updated_at=base,
            run=run,
        )
        entry = Entry[SessionState](
            event_id=uid("e"),
            type=EventType.RUN_STARTED.value,
            time=base,
            run_id=run_id,
            session_id=child_id,
            data=run.to_wire(),
            state=state,
        )
        subject = log.session_event(child_id, run_id, "lifecycle", "1", "started", None, parent.id)
        await _put(w, subject, entry.model_dump_json().encode(), log.session_guard(child_id))
        record = QuestionRecord(
            request_id=request_id,
            created_at=base + n // 3,  # some at the same moment
            updated_at=base,
            expires_at=base + 3_600_000,
            parent_session_id=parent.id,
            child_run_id=run_id,
            child_session_id=child_id,
            root_session_id=parent.id,
            question=f"Question {n}?",
            why_blocked="w",
        )
        brief = QuestionBrief(request_id=request_id, created_at=base + n // 3, expires_at=base + 3_600_000)
        questions = QuestionsState(
            run_id=run_id, session_id=child_id, parent_session_id=parent.id, questions=[brief]
        )
        asked = Entry[QuestionsState](
            event_id=uid("e"),
            type=EventType.QUESTION_REQUESTED.value,
            time=base,
            run_id=run_id,
            session_id=child_id,
            parent_session_id=parent.id,
            data=record.to_wire(),
            state=questions,
        )
        subject = log.question_event(run_id, request_id, "requested", child_id, None, parent.id)
        await _put(w, subject, asked.model_dump_json().encode(), log.question_guard(run_id))
    await settle(w.nc)
    await eventually(lambda: _stored(w), lambda subject: ids[-1] in subject)
    return [i for _, i in sorted((n // 3, request_id) for n, request_id in enumerate(ids))]


async def _put(w: World, subject: str, body: bytes, guard: str) -> None:
    headers = {log.H_EXPECTED_SEQ: "0", log.H_EXPECTED_SUBJECT: guard}
    await w.nc.publish(subject, body, headers=headers)


async def _stored(w: World) -> str:
    return (await w.js.get_last_msg("LOG", log.QUESTION_GUARD_ALL)).subject or ""


# Waiting


async def test_wait_returns_with_the_end(w: World) -> None:
    parent, child = await w.family()
    question = await child.ask()
    waits = [
        asyncio.create_task(
            w.query(caller, "question.wait", request_id=question["request_id"], timeout_ms=30_000)
        )
        for caller in (child.id, parent.id, OPERATOR)
    ]
    ended = await parent.answer(question["request_id"])
    for each in waits:
        assert (await each)["question"] == ended
    again = await w.query(child.id, "question.wait", request_id=question["request_id"], timeout_ms=0)
    assert again["question"] == ended


async def test_wait_returns_when_its_time_is_over(w: World) -> None:
    _, child = await w.family()
    question = await child.ask()
    begun = time.monotonic()
    for timeout_ms in (0, 1, 200):
        reply = await w.query(
            child.id, "question.wait", request_id=question["request_id"], timeout_ms=timeout_ms
        )
        assert reply["question"] == question
    assert time.monotonic() - begun >= 0.2


async def test_wait_of_a_stranger_is_refused_at_once(w: World) -> None:
    _, child = await w.family()
    question = await child.ask()
    reply = await w.query_reply(
        uid("S"), "question.wait", request_id=question["request_id"], timeout_ms=60_000
    )
    assert reply["error"]["code"] == "unknown_request"


# Whatever Redis knows


async def _index_is_lost(place: Place) -> None:
    async with Redis.from_url(place.redis.url) as redis:
        await redis.flushall()


async def _index_is_whole(place: Place) -> None:
    async with Redis.from_url(place.redis.url) as redis:
        run_id = (await redis.info("server"))["run_id"]
        await eventually(
            lambda: redis.get(keys.ready("question_broker")), lambda mark: mark == run_id.encode()
        )


async def _redis_is_down(place: Place) -> None:
    place.redis.kill()


async def _redis_hangs(place: Place) -> None:
    place.redis.pause()


async def _index_lies(place: Place) -> None:
    """What stands there is of some other time: questions that are no more, and some are missing."""
    async with Redis.from_url(place.redis.url) as redis:
        for name in (keys.questions_open(), keys.questions_all()):
            await redis.zadd(name, {"Q-of-old": 1})


TROUBLES = [_index_is_lost, _redis_is_down, _redis_hangs, _index_lies]


@pytest.mark.parametrize("trouble", TROUBLES, ids=[t.__name__.strip("_") for t in TROUBLES])
async def test_everything_is_right_without_the_index(
    w: World, place: Place, trouble: Callable[[Place], Awaitable[None]]
) -> None:
    """Asked before and during it, questions are found, listed, answered and ended, and lists come back."""
    parent = await w.top()
    children = [await w.child(parent) for _ in range(4)]
    asked = [(await child.ask(command_id="c"))["request_id"] for child in children[:2]]
    await trouble(place)
    try:
        asked += [(await child.ask(command_id="c"))["request_id"] for child in children[2:]]
        assert await parent.listed() == asked
        assert set(asked) <= set(await w.listed(OPERATOR))
        for child, request_id in zip(children, asked, strict=True):
            assert (await w.question(request_id, child.id))["status"] == "waiting"
            assert (await child.ask(command_id="c"))["request_id"] == request_id
        await w.refused("unknown_request", parent.id, "question.answer", request_id="Q9", answer="x")
        await parent.answer(asked[0])
        await children[1].settles()
        await w.until_ended(asked[1], "cancelled")
        assert await parent.listed() == asked[2:]
    finally:
        place.redis.resume()
        await place.again(place.redis)
    assert await parent.listed() == asked[2:]
    await _index_is_whole(place)
    assert await parent.listed() == asked[2:]
    assert await parent.listed(status="answered") == asked[:1]
    await parent.closes()
    for request_id in asked[2:]:
        await w.until_ended(request_id, "error")


async def test_what_was_asked_while_redis_was_down_is_listed_as_soon_as_it_is_back(
    w: World, place: Place
) -> None:
    """By both brokers, though only one of them knows what could not be written."""
    parent = await w.top()
    before = (await (await w.child(parent)).ask())["request_id"]
    place.redis.kill()
    during = [(await (await w.child(parent)).ask())["request_id"] for _ in range(3)]
    place.redis.start()
    await place.redis.until_ready()
    for _ in range(20):
        assert await parent.listed() == [before, *during]


async def test_a_parent_that_closes_after_a_lost_write_leaves_nothing_open(w: World, place: Place) -> None:
    """The index lacked the question when the parent closed: whoever rebuilds it looks."""
    await _index_is_whole(place)
    parent, child = await w.family()
    question = await child.ask()
    async with Redis.from_url(place.redis.url) as redis:
        await redis.delete(keys.questions_of_parent(parent.id))
        await parent.closes()
        await eventually(w.ends_consumer_is_idle)
        await redis.delete(keys.ready("question_broker"))
    await w.until_ended(question["request_id"], "error")
