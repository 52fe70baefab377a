"""What everyone sees of a question: on both topics, in the inbox, in the record."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.msg import Msg

from tests.question_broker.world import Json, Session, World, eventually
from upcall_contracts import streams, times
from upcall_contracts.events import Event
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import QuestionRecord
from upcall_contracts.texts import question_item_text

pytestmark = pytest.mark.xdist_group("question_broker")


Way = Callable[[World, Session, Session, str], Awaitable[None]]


async def end_by_answer(w: World, parent: Session, child: Session, request_id: str) -> None:
    await parent.answer(request_id)


async def end_by_decline(w: World, parent: Session, child: Session, request_id: str) -> None:
    await w.do(parent.id, "question.answer", request_id=request_id, action="decline")


async def end_by_cancel(w: World, parent: Session, child: Session, request_id: str) -> None:
    await w.do(child.id, "question.cancel", request_id=request_id)


async def end_by_settling(w: World, parent: Session, child: Session, request_id: str) -> None:
    await child.settles()


async def end_by_cancelled_session(w: World, parent: Session, child: Session, request_id: str) -> None:
    await child.is_cancelled()


async def end_by_cancelled_session_that_settles(
    w: World, parent: Session, child: Session, request_id: str
) -> None:
    await child.is_cancelled()
    await child.settles()


async def end_by_closing(w: World, parent: Session, child: Session, request_id: str) -> None:
    await parent.closes()


async def end_by_going(w: World, parent: Session, child: Session, request_id: str) -> None:
    await parent.is_gone()


async def end_by_time(w: World, parent: Session, child: Session, request_id: str) -> None:
    return None


ENDS = [
    (end_by_answer, 60_000, "answered", None),
    (end_by_decline, 60_000, "answered", None),
    (end_by_cancel, 60_000, "cancelled", "child"),
    (end_by_settling, 60_000, "cancelled", "run_settled"),
    (end_by_cancelled_session, 60_000, "cancelled", "session_cancelled"),
    (end_by_cancelled_session_that_settles, 60_000, "cancelled", "session_cancelled"),
    (end_by_closing, 60_000, "error", "parent_unavailable"),
    (end_by_going, 60_000, "error", "parent_unavailable"),
    (end_by_time, 80, "timed_out", None),
]


@pytest.mark.parametrize(
    ("how", "timeout_ms", "end", "reason"), ENDS, ids=[each[0].__name__ for each in ENDS]
)
async def test_every_end_stands_everywhere(
    w: World, how: Way, timeout_ms: int, end: str, reason: str | None
) -> None:
    """The record, both topics with equal bodies in order, the inbox, and every list tell the same."""
    parent, child = await w.family()
    parent_run, child_run = parent.run_id, child.run_id
    asked = await child.ask(timeout_ms=timeout_ms, options=["a", "b"], task_id="mine", meta={"k": 1})
    request_id = asked["request_id"]
    await how(w, parent, child, request_id)
    record = await w.until_ended(request_id, end)
    assert record["reason"] == reason
    own = await eventually(lambda: w.topic(child_run), lambda e: len(e) == 2)
    copies = await eventually(lambda: w.topic(parent_run, "child.*.question.>"), lambda e: len(e) == 2)
    assert [s for s, _ in own] == [f"run.{child_run}.question.{request_id}.{e}" for e in ("requested", end)]
    assert [s for s, _ in copies] == [
        f"run.{parent_run}.child.{child_run}.question.{request_id}.{e}" for e in ("requested", end)
    ]
    assert [body for _, body in own] == [body for _, body in copies]
    requested, ended = own[0][1], own[1][1]
    for body, type_, data in (
        (requested, "parent_question_requested", asked),
        (ended, f"parent_question_{end}", record),
    ):
        event = Event.model_validate(body)
        assert (event.type, event.run_id, event.session_id) == (type_, child_run, child.id)
        assert (event.parent_run_id, event.parent_session_id) == (parent_run, parent.id)
        assert (event.root_session_id, event.agent, event.task_id) == (parent.id, "worker", "mine")
        assert body["data"] == data
    assert requested["event_id"] != ended["event_id"]
    inbox = await eventually(lambda: w.inbox_of(parent.id), lambda i: _type(i, request_id) == ended["type"])
    assert inbox[request_id] == ended
    assert await w.inbox_of(child.id) == {}
    for caller in (parent.id, OPERATOR):
        assert request_id not in await w.listed(caller, scope="tree")
        assert request_id in await w.listed(caller, scope="tree", status=end)


def _type(inbox: dict[str, Json | None], item_id: str) -> str | None:
    item = inbox.get(item_id)
    return item["type"] if item else None


async def test_open_question_stands_in_the_inbox_with_its_text(w: World) -> None:
    parent, child = await w.family()
    question = await child.ask("Which\ndatabase?", options=["a", "b"], recommended_option="a")
    inbox = await eventually(lambda: w.inbox_of(parent.id))
    item = inbox[question["request_id"]]
    assert item is not None
    assert item["data"] == question
    text = question_item_text(QuestionRecord.model_validate(question))
    assert item["item"] == {
        "item_id": question["request_id"],
        "kind": "question",
        "text": text,
        "wakes": True,
        "for_run": None,
    }
    assert "Question: Which\n  database?" in text


async def test_core_subscribers_see_committed_events_as_they_come(w: World) -> None:
    parent, child = await w.family()
    seen: list[str] = []

    async def hear(message: Msg) -> None:
        if ".question." in message.subject:  # the start of a run may come as late as that
            seen.append(message.subject)

    for run in (parent.run_id, child.run_id):
        await w.nc.subscribe(f"run.{run}.>", cb=hear)
    question = await child.ask()
    await parent.answer(question["request_id"])

    async def look() -> list[str]:
        return seen

    await eventually(look, lambda s: len(s) == 4)
    assert len(set(seen)) == 4


async def test_without_a_parent_run_there_is_an_item_and_no_copy(w: World) -> None:
    """The parent session is idle: it is asked all the same."""
    parent = await w.top(running=False)
    child = await w.child(parent, parent_run=False)
    question = await child.ask()
    assert question["parent_run_id"] is None
    inbox = await eventually(lambda: w.inbox_of(parent.id))
    assert inbox[question["request_id"]] is not None
    [(_, body)] = await eventually(lambda: w.topic(child.run_id))
    assert body["parent_run_id"] is None
    assert await w.read(streams.TOPICS, f"run.*.child.{child.run_id}.>") == []
    await parent.answer(question["request_id"])
    ended = await eventually(
        lambda: w.inbox_of(parent.id),
        lambda i: _type(i, question["request_id"]) == "parent_question_answered",
    )
    assert len(ended) == 1


async def test_late_answer_stands_on_both_topics_and_changes_nothing(w: World) -> None:
    parent, child = await w.family()
    question = await child.ask(timeout_ms=50)
    ended = await w.until_ended(question["request_id"], "timed_out")
    for number in range(11):
        error = await w.refused(
            "already_resolved",
            parent.id,
            "question.answer",
            request_id=question["request_id"],
            answer=f"a{number}",
        )
        assert error["details"] == {"request_id": question["request_id"], "status": "timed_out"}
    own = await eventually(lambda: w.topic(child.run_id), lambda e: len(e) == 12)
    copies = await eventually(lambda: w.topic(parent.run_id, "child.*.question.>"), lambda e: len(e) == 12)
    assert [b for _, b in own] == [b for _, b in copies]
    late = [body["data"] for subject, body in own if subject.endswith(".late")]
    assert [data["late"]["answer"] for data in late] == [f"a{n}" for n in range(10)]
    assert all({k: v for k, v in data.items() if k != "late"} == ended for data in late)
    assert await w.question(question["request_id"]) == ended
    again = await child.ask("Which database?")
    assert (await w.question(again["request_id"]))["status"] == "waiting"
    assert await parent.listed() == [again["request_id"]]


async def test_the_reply_tells_the_end_where_that_comes_at_once(w: World) -> None:
    """A child that asks again hears of the end that came meanwhile, at whichever instance it asks."""
    parent, child = await w.family()
    asked = [(await child.ask(command_id="c"))["status"]]
    [request_id] = await parent.listed()
    await parent.answer(request_id, "SQLite.")
    for _ in range(8):
        again = await child.ask(command_id="c")
        assert (again["status"], again["answer"], again["request_id"]) == ("answered", "SQLite.", request_id)
    assert asked == ["waiting"]
    assert await w.in_log(child.run_id) == [f"{request_id}.requested", f"{request_id}.answered"]


async def test_a_question_outlives_its_runner(w: World) -> None:
    """Lost and claimed again, the run has its question still; who lost it can do nothing with it."""
    parent = await w.top()
    child = await w.child(parent, runner="runner-1")
    body = {"run_id": child.run_id, "question": "Which database?", "why_blocked": "w", "command_id": "c"}
    asked = (await w.do("runner-1", "question.ask", **body, attempt=1))["question"]
    await child.loses_its_runner()
    assert await parent.listed() == [asked["request_id"]]
    await w.refused("stale_attempt", "runner-1", "question.ask", **{**body, "command_id": "d"}, attempt=1)
    await w.refused("stale_attempt", "runner-1", "question.cancel", request_id=asked["request_id"])
    await child.is_claimed("runner-2")
    assert (await w.question(asked["request_id"], "runner-2"))["status"] == "waiting"
    again = await w.refused("duplicate_question", "runner-2", "question.ask", **body, attempt=2)
    assert again["details"]["request_id"] == asked["request_id"]
    assert (await parent.answer(asked["request_id"]))["status"] == "answered"
    await child.settles()
    await w.refused("run_not_active", "runner-2", "question.ask", **{**body, "command_id": "e"}, attempt=2)
    await w.refused("stale_attempt", "runner-1", "question.ask", **{**body, "command_id": "f"}, attempt=1)
    assert (await w.do("runner-1", "question.ask", **body, attempt=1))["question"]["status"] == "answered"


async def test_another_runs_command_id_harms_no_deadline(w: World) -> None:
    """A refused ask changes nothing, not even when it derives the id of a question that waits."""
    parent = await w.top()
    one, two = await w.child(parent, runner="runner-1"), await w.child(parent, runner="runner-1")
    body = {"question": "Which database?", "why_blocked": "w", "command_id": "call_1", "attempt": 1}
    asked = (await w.do("runner-1", "question.ask", **body, run_id=one.run_id, timeout_ms=400))["question"]
    for _ in range(3):
        await w.refused("command_id_reused", "runner-1", "question.ask", **body, run_id=two.run_id)
    await w.until_ended(asked["request_id"], "timed_out")
    assert await w.in_log(two.run_id) == []


async def test_a_command_that_comes_again_moves_no_deadline(w: World) -> None:
    """At an instance that knows the run from before, and not that it has asked since."""
    parent = await w.top()
    children = [await w.child(parent) for _ in range(8)]
    for child in children:
        for _ in range(3):
            await parent.answer((await child.ask())["request_id"])
    asked = [await child.ask(timeout_ms=4_500, command_id=child.id) for child in children]
    for child, question in zip(children, asked, strict=True):
        for _ in range(3):
            reused = await child.ask_reply("Which colour?", timeout_ms=60_000, command_id=child.id)
            assert reused["error"]["code"] == "command_id_reused"
            assert await child.ask(timeout_ms=4_500, command_id=child.id) == question
    for question in asked:
        ended = await w.until_ended(question["request_id"], "timed_out")
        late = times.from_wire(ended["updated_at"]) - times.from_wire(ended["expires_at"])
        assert late < 4_000  # by then nobody but JetStream has looked


async def test_a_deadline_that_fires_before_its_question_is_stored_is_no_lost_deadline(w: World) -> None:
    """A millisecond is over before the ask is even read."""
    parent = await w.top()
    children = [await w.child(parent) for _ in range(20)]
    asked = await asyncio.gather(*[child.ask(timeout_ms=1) for child in children])
    for child, question in zip(children, asked, strict=True):
        await w.until_ended(question["request_id"], "timed_out")
        assert await w.ends(child.run_id, question["request_id"]) == ["timed_out"]


async def test_a_refused_ask_leaves_no_deadline_behind(w: World) -> None:
    parent, child = await w.family()
    await parent.closes()
    for _ in range(3):
        await w.refused(
            "parent_unavailable", child.id, "question.ask", run_id=child.run_id, question="q", why_blocked="w"
        )
    left = [body for _, body in await w.timers() if json_run(body) == child.run_id]
    assert left == []


def json_run(body: bytes) -> str:
    return body.decode().partition('"run_id": "')[2].partition('"')[0]
