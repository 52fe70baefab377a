"""What is killed, emptied or away costs time, and never a rule, a question, a report or a list."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from .deployment import PARTS, SERVICES, Deployment
from .wire import (
    ENDS,
    OPERATOR,
    WHY,
    Json,
    Runner,
    Turn,
    Wire,
    at,
    eventually,
    never,
    now,
    select,
    uid,
    when,
)

pytestmark = [
    pytest.mark.asyncio(loop_scope="function"),
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.slow,
]

LONG = os.environ.get("UPCALL_FAULTS") == "long"

Meanwhile = Callable[[str], Awaitable[None]]


async def call(w: Wire, caller: str, command: str, **body: Any) -> Json:
    return await w.insist(caller, command, **body)


@dataclass(frozen=True)
class Lived:
    """What a family's story was about."""

    parent_id: str
    parent_run: str
    child: Turn
    request_id: str
    work_id: str


async def story(w: Wire, between: Meanwhile) -> Lived:
    """A family's life in eight steps, with something happening between any two."""
    parent_id = uid("S")
    await call(w, parent_id, "session.open", agent="lead")
    run = (await call(w, parent_id, "run.start"))["run"]
    await between("started")
    made = await call(
        w, parent_id, "session.spawn", agent="worker", task="Build.", host="self", run_id=run["run_id"]
    )
    child = Turn(w, made["session_id"], made["session_id"], made["run_id"], made["period_id"])
    await between("spawned")
    asked: Json = {"run_id": child.run_id, "question": "Which database?", "why_blocked": WHY}
    question = (await call(w, child.caller, "question.ask", **asked))["question"]
    request_id = question["request_id"]
    await between("asked")
    answered = (await call(w, parent_id, "question.answer", request_id=request_id, answer="SQLite."))[
        "question"
    ]
    assert (answered["status"], answered["answer"]) == ("answered", "SQLite.")
    await between("answered")
    job: Json = {"work_id": uid("W"), "kind": "shell", "label": "make test"}
    settle: Json = {"run_id": child.run_id, "outcome": "completed", "answer": "Built.", "background": [job]}
    await call(w, child.caller, "run.settle", **settle)
    await between("settled")
    await call(w, child.caller, "work.finish", work_id=job["work_id"], outcome="completed")
    await between("finished")
    await eventually(
        lambda: w.query_surely(OPERATOR, "report.list", session_id=child.session_id, status="delivered"),
        lambda page: [r["period_id"] for r in page["reports"]] == [child.period_id],
        within=60,
        why="the report is delivered",
    )
    return Lived(parent_id, run["run_id"], child, request_id, job["work_id"])


async def whole(w: Wire, lived: Lived) -> None:
    """Everything of a story happened once, in order, on both topics, in the inbox and in the records."""
    parent_id, parent_run, child = lived.parent_id, lived.parent_run, lived.child
    request_id, work_id = lived.request_id, lived.work_id
    own = await eventually(
        lambda: w.history(child.run_id), lambda e: bool(select(e, "report", None, "delivered")), within=30
    )
    told = [(s.family, s.id, s.event) for s in own if s.event != "held"]
    assert told == [
        ("lifecycle", "1", "started"),
        ("question", request_id, "requested"),
        ("question", request_id, "answered"),
        ("lifecycle", "1", "settled"),
        ("work", work_id, "finished"),
        ("report", child.period_id, "delivered"),
    ]
    copies = await eventually(
        lambda: w.history(parent_run, f"child.{child.run_id}.>"), lambda e: len(e) >= len(own), within=30
    )
    assert [s.body for s in copies] == [s.body for s in own]
    await w.until_item(parent_id, child.period_id)
    assert [i["item"]["item_id"] for i in await w.inbox(parent_id)] == [child.period_id]
    assert await w.questions(parent_id) == []
    assert (await w.session(child.session_id))["runs"] == 1
    assert (await w.session(parent_id))["runs"] == 1
    assert (await w.run(parent_run))["status"] == "running"


@pytest.mark.parametrize("part", PARTS)
async def test_part_killed_between_any_two_steps(crashable: Deployment, cw: Wire, part: str) -> None:
    """`kill -9` of one part after each step, and a restart: every command has its effect, once."""

    async def kill(step: str) -> None:
        assert step
        await asyncio.to_thread(crashable.kill, part)

    await whole(cw, await story(cw, kill))


@pytest.mark.parametrize("part", PARTS)
async def test_part_killed_during_each_step(crashable: Deployment, cw: Wire, part: str) -> None:
    """`kill -9` of one part while the next command is under way: it is carried out all the same, once."""
    killing: list[asyncio.Task[None]] = []

    async def kill(step: str) -> None:
        assert step
        if killing:
            await killing.pop()
        killing.append(asyncio.create_task(asyncio.to_thread(crashable.kill, part)))
        await asyncio.sleep(random.uniform(0, 0.02))

    lived = await story(cw, kill)
    await killing.pop()
    await whole(cw, lived)


async def test_everything_killed_between_any_two_steps(private: Deployment, pw: Wire) -> None:
    """`kill -9` of all at once after each step, and a new start on the same data: nothing lost or doubled."""

    async def restart(step: str) -> None:
        assert step
        await asyncio.to_thread(private.restart)

    await whole(pw, await story(pw, restart))


async def test_redis_emptied_between_any_two_steps(crashable: Deployment, cw: Wire) -> None:
    """FLUSHALL after each step changes nothing of the story."""

    async def flush(step: str) -> None:
        assert step
        await asyncio.to_thread(crashable.flush_redis)

    await whole(cw, await story(cw, flush))


async def test_redis_emptied_all_the_time(crashable: Deployment, cw: Wire) -> None:
    """FLUSHALL without a pause costs time, never a rule: ten families live through it at once."""

    async def nothing(step: str) -> None:
        assert step

    async def flush() -> None:
        while True:
            await asyncio.to_thread(crashable.flush_redis)
            await asyncio.sleep(0.01)

    flushing = asyncio.create_task(flush())
    try:
        lived = await asyncio.gather(*(story(cw, nothing) for _ in range(10)))
    finally:
        flushing.cancel()
    for family in lived:
        await whole(cw, family)


async def test_clean_stop_and_start_keeps_everything(private: Deployment, pw: Wire) -> None:
    """SIGTERM and a start on the same directory: records, history, inbox and deadlines are the same."""
    parent, child = await pw.family()
    sibling = await parent.spawn()
    await child.append("Half of it.")
    question = await child.ask()
    await sibling.settle(answer="Looked around.")
    await sibling.report()
    await pw.until_item(parent.session_id, sibling.period_id)

    async def everything() -> list[object]:
        await pw.query_surely(OPERATOR, "session.get", session_id=child.session_id)
        return [
            await pw.session(parent.session_id),
            await pw.session(child.session_id),
            await pw.run(child.run_id),
            await pw.run(sibling.run_id),
            await pw.question(question["request_id"]),
            await pw.report(sibling.period_id),
            await pw.query(parent.caller, "session.history", session_id=child.session_id),
            await pw.inbox(parent.session_id),
            [s.body for s in await pw.history(parent.run_id)],
            await pw.questions(parent.session_id),
        ]

    before = await everything()
    await asyncio.to_thread(private.stop)
    await asyncio.to_thread(private.start)
    assert await everything() == before
    await parent.answer(question["request_id"], "SQLite.")
    assert (await child.settle())["outcome"] == "completed"


# Acknowledged is carried out


async def test_acknowledged_commands_are_carried_out_when_the_services_are_back(
    crashable: Deployment, cw: Wire
) -> None:
    """With every service down JetStream takes commands; they are carried out once, without a resend."""
    parent, child = await cw.family()
    sibling = await parent.spawn()
    question = await sibling.ask()
    topics = await child.topic(), await sibling.topic()
    await asyncio.to_thread(crashable.kill_and_leave, *SERVICES)
    try:
        ask = child.asking("Which colour?", {})
        await cw.publish(f"cmd.{child.caller}.question.ask", ask)
        answer = {"request_id": question["request_id"], "answer": "SQLite."}
        await cw.publish(f"cmd.{parent.caller}.question.answer", answer)
        append = {"run_id": child.run_id, "messages": [{"role": "assistant", "content": "Thinking."}]}
        await cw.publish(f"cmd.{child.caller}.run.append", append)
    finally:
        await asyncio.to_thread(crashable.repair)
    asked = await topics[0].until("question", None, "requested", within=60)
    answered = await topics[1].until("question", question["request_id"], *ENDS, within=60)
    assert asked.data["question"] == "Which colour?"
    assert (answered.event, answered.data["answer"]) == ("answered", "SQLite.")
    await eventually(
        lambda: cw.session(child.session_id), lambda s: s["history_seq"] == 2, within=60, why="the append"
    )
    await sibling.settle()
    await sibling.report()
    assert len(await cw.history(child.run_id, "question.*.requested")) == 1
    assert await cw.ends(sibling.run_id, question["request_id"]) == ["answered"]


@pytest.mark.parametrize("part", ["session", "question_broker"])
async def test_command_in_hand_when_its_service_dies(crashable: Deployment, cw: Wire, part: str) -> None:
    """A command that a frozen service may already hold is carried out once after its `kill -9`."""
    parent, child = await cw.family()
    topic = await child.topic()
    with crashable.frozen(part):
        if part == "session":
            body: Json = {"run_id": child.run_id, "outcome": "completed", "answer": "Built."}
            await cw.publish(f"cmd.{child.caller}.run.settle", body)
        else:
            await cw.publish(f"cmd.{child.caller}.question.ask", child.asking("Which database?", {}))
        await asyncio.to_thread(crashable.kill, part)
    if part == "session":
        await topic.until("lifecycle", "1", "settled", within=90)
        await child.report(within=60)
        assert len(await cw.history(child.run_id, "lifecycle.1.settled")) == 1
    else:
        await topic.until("question", None, "requested", within=90)
        assert len(await cw.history(child.run_id, "question.*.requested")) == 1
        assert len(await cw.questions(parent.session_id)) == 1


async def test_redis_away_is_waited_for(crashable: Deployment, cw: Wire) -> None:
    """Commands sent while Redis is away are carried out, at the latest when it is back."""
    parent, child = await cw.family()
    topic = await child.topic()
    await asyncio.to_thread(crashable.kill_and_leave, "redis")
    try:
        await cw.publish(f"cmd.{child.caller}.question.ask", child.asking("Which database?", {}))
        await asyncio.sleep(1)
    finally:
        await asyncio.to_thread(crashable.repair)
    asked = await topic.until("question", None, "requested", within=60)
    await cw.insist(parent.caller, "question.answer", request_id=asked.id, answer="SQLite.")
    assert await cw.ends(child.run_id, asked.id) == ["answered"]


async def test_redis_frozen_is_waited_for(crashable: Deployment, cw: Wire) -> None:
    """A Redis that hangs without dying costs time only."""
    _, child = await cw.family()
    topic = await child.topic()
    with crashable.frozen("redis"):
        await cw.publish(f"cmd.{child.caller}.question.ask", child.asking("Which database?", {}))
        await asyncio.sleep(3)
    await topic.until("question", None, "requested", within=60)
    assert len(await cw.history(child.run_id, "question.*.requested")) == 1


# Deadlines


async def test_answer_stored_in_time_wins_though_all_was_down(private: Deployment, pw: Wire) -> None:
    """An answer that JetStream took before the deadline counts, though nobody was there until after it."""
    parent, child = await pw.family()
    question = await child.ask(timeout_ms=6000)
    await asyncio.to_thread(private.kill_and_leave, *SERVICES)
    answer = {"request_id": question["request_id"], "answer": "SQLite.", "command_id": uid("call")}
    await pw.publish(f"cmd.{parent.caller}.question.answer", answer)
    assert now() < when(question["expires_at"])
    await asyncio.to_thread(private.kill_all)
    await at(when(question["expires_at"]) + 1)
    await asyncio.to_thread(private.start)
    await pw.query_surely(OPERATOR, "question.get", request_id=question["request_id"])
    record = await pw.until_question(question["request_id"], within=60)
    assert (record["status"], record["answer"]) == ("answered", "SQLite.")
    assert await pw.ends(child.run_id, question["request_id"]) == ["answered"]
    again = await pw.do(parent.caller, "question.answer", **answer)
    assert again["question"]["status"] == "answered"


async def test_answer_stored_late_never_wins_though_all_was_down(private: Deployment, pw: Wire) -> None:
    """An answer that JetStream took after the deadline is late, though no service had noticed it yet."""
    parent, child = await pw.family()
    question = await child.ask(timeout_ms=2500)
    await asyncio.to_thread(private.kill_and_leave, *SERVICES)
    await at(when(question["expires_at"]) + 0.3)
    answer = {"request_id": question["request_id"], "answer": "SQLite.", "command_id": uid("call")}
    await pw.publish(f"cmd.{parent.caller}.question.answer", answer)
    await asyncio.to_thread(private.repair)
    record = await pw.until_question(question["request_id"], within=60)
    assert (record["status"], record["answer"]) == ("timed_out", None)
    late = await eventually(
        lambda: pw.history(child.run_id, f"question.{question['request_id']}.late"), bool, within=60
    )
    assert late[0].data["late"]["answer"] == "SQLite."
    assert when(late[0].data["late"]["stored_at"]) >= when(question["expires_at"])
    assert await pw.ends(child.run_id, question["request_id"]) == ["timed_out"]


async def test_deadline_that_passes_while_all_is_down(private: Deployment, pw: Wire) -> None:
    """A deadline that nobody was there for is carried out on return, once."""
    parent, child = await pw.family()
    question = await child.ask(timeout_ms=3000)
    await asyncio.to_thread(private.kill_all)
    await at(when(question["expires_at"]) + 1)
    await asyncio.to_thread(private.start)
    await pw.query_surely(OPERATOR, "question.get", request_id=question["request_id"])
    record = await pw.until_question(question["request_id"], within=30)
    assert record["status"] == "timed_out"
    assert record["expires_at"] == question["expires_at"]
    assert await pw.ends(child.run_id, question["request_id"]) == ["timed_out"]
    assert await pw.questions(parent.session_id) == []
    again = await child.ask()
    assert await pw.questions(parent.session_id) == [again["request_id"]]


@pytest.mark.parametrize("part", PARTS)
async def test_deadline_survives_the_kill_of(crashable: Deployment, cw: Wire, part: str) -> None:
    """A deadline set before a part was killed is kept after it, to the second."""
    _, child = await cw.family()
    question = await child.ask(timeout_ms=8000)
    await asyncio.to_thread(crashable.kill, part)
    assert (await cw.question(question["request_id"]))["expires_at"] == question["expires_at"]
    record = await cw.until_question(question["request_id"], within=30)
    assert record["status"] == "timed_out"
    ended = await cw.history(child.run_id, f"question.{question['request_id']}.timed_out")
    late_by = when(ended[0].body["time"]) - when(question["expires_at"])
    assert 0 <= late_by < 10
    assert await cw.ends(child.run_id, question["request_id"]) == ["timed_out"]


# Races, with two instances of each service


async def test_answer_and_timeout_in_the_same_millisecond(quick: Wire) -> None:
    """Two hundred answers at the moment of the deadline: one end each, and the answerer was told which."""
    parent = await quick.start(await quick.open())
    children = [await parent.spawn() for _ in range(20)]
    ends: Counter[str] = Counter()

    async def one(child: Turn, number: int) -> None:
        question = await child.ask(f"Question {number} of {child.run_id}?", timeout_ms=1000)
        # Spread over some milliseconds around the deadline, so that both sides win some.
        await at(when(question["expires_at"]) + random.uniform(-0.006, 0.006))
        body = {"request_id": question["request_id"], "answer": "SQLite."}
        reply = await quick.reply_to(f"cmd.{parent.caller}.question.answer", body)
        record = await quick.until_question(question["request_id"])
        assert record["status"] in ("answered", "timed_out")
        assert reply["ok"] == (record["status"] == "answered"), (reply, record)
        if not reply["ok"]:
            assert reply["error"]["code"] == "already_resolved"
            assert reply["error"]["details"]["status"] == "timed_out"
        assert await quick.ends(child.run_id, question["request_id"]) == [record["status"]]
        ends[record["status"]] += 1

    for number in range(10):
        await asyncio.gather(*(one(child, number) for child in children))
    assert sum(ends.values()) == 200
    assert await quick.questions(parent.session_id) == []


async def test_fifty_asks_of_one_run_at_once(quick_deployment: Deployment, quick: Wire) -> None:
    """Fifty different questions of one run from ten connections: one is accepted, all others name it."""
    parent, child = await quick.family()
    wires = [await Wire.connect(quick_deployment.nats_url) for _ in range(10)]
    texts = [f"May I touch the module called {uid('m')}?" for _ in range(50)]
    try:
        replies = await asyncio.gather(
            *(
                wires[number % 10].reply_to(f"cmd.{child.caller}.question.ask", child.asking(text, {}))
                for number, text in enumerate(texts)
            )
        )
    finally:
        for wire in wires:
            await wire.close()
    accepted = [reply["result"]["question"] for reply in replies if reply["ok"]]
    refused = [reply["error"] for reply in replies if not reply["ok"]]
    assert len(accepted) == 1
    assert {error["code"] for error in refused} <= {"question_already_open", "duplicate_question"}
    assert {error["details"]["request_id"] for error in refused} == {accepted[0]["request_id"]}
    assert await quick.questions(parent.session_id) == [accepted[0]["request_id"]]
    assert len(await quick.history(child.run_id, "question.*.requested")) == 1


async def test_fifty_asks_at_once_while_redis_is_emptied(quick_deployment: Deployment, quick: Wire) -> None:
    """The rule of one open question does not rest on Redis."""
    parent, child = await quick.family()
    texts = [f"May I touch the module called {uid('m')}?" for _ in range(50)]

    async def flush() -> None:
        while True:
            await asyncio.to_thread(quick_deployment.flush_redis)
            await asyncio.sleep(0.002)

    flushing = asyncio.create_task(flush())
    try:
        replies = await asyncio.gather(
            *(
                quick.reply_to(f"cmd.{child.caller}.question.ask", child.asking(text, {}), within=60)
                for text in texts
            )
        )
    finally:
        flushing.cancel()
    assert sum(reply["ok"] for reply in replies) == 1
    assert len(await quick.questions(parent.session_id)) == 1
    assert len(await quick.history(child.run_id, "question.*.requested")) == 1


async def test_fifty_children_ask_and_are_answered_at_once(quick: Wire) -> None:
    """Fifty questions to one parent in flight together: each gets its own answer."""
    parent = await quick.start(await quick.open())
    children = [await parent.spawn() for _ in range(50)]
    asked = await asyncio.gather(*(child.ask(f"Which part for {child.run_id}?") for child in children))
    listed = await quick.questions(parent.session_id)
    assert sorted(listed) == sorted(q["request_id"] for q in asked)
    created = {q["request_id"]: q["created_at"] for q in asked}
    assert [created[i] for i in listed] == sorted(created.values())
    await asyncio.gather(*(parent.answer(q["request_id"], f"Part {q['child_run_id']}.") for q in asked))
    for question in asked:
        record = await quick.question(question["request_id"])
        assert record["answer"] == f"Part {record['child_run_id']}."
    assert await quick.questions(parent.session_id) == []


# Redis emptied


async def test_redis_emptied_and_the_lists_are_back(crashable: Deployment, cw: Wire) -> None:
    """After FLUSHALL every list, record and refusal is what it was before."""
    parent, child = await cw.family()
    sibling, held, done = await parent.spawn(), await parent.spawn(), await parent.spawn()
    command = uid("call")
    question = await child.ask("Which database should we use?", command_id=command)
    old = await sibling.ask("And which colour?")
    await parent.answer(old["request_id"], "Blue.")
    await held.settle(background=[{"work_id": uid("W"), "kind": "shell", "label": "make test"}])
    await held.report("held")
    await done.settle()
    await done.report()
    await cw.until_item(parent.session_id, done.period_id)

    async def lists() -> list[object]:
        return [
            await cw.questions(parent.session_id),
            await cw.questions(parent.session_id, status="answered"),
            await cw.pages(parent.caller, "session.list", "sessions"),
            await cw.pages(parent.caller, "session.list", "sessions", scope="tree"),
            await cw.pages(parent.caller, "report.list", "reports"),
            await cw.pages(parent.caller, "report.list", "reports", status="held"),
            await cw.query(parent.caller, "inbox.list"),
            await cw.question(question["request_id"]),
            await cw.session(held.session_id),
        ]

    before = await lists()
    await asyncio.to_thread(crashable.flush_redis)
    assert await lists() == before
    await asyncio.to_thread(crashable.flush_redis)
    assert await child.ask("Which database should we use?", command_id=command) == question
    await child.ask_refused("duplicate_question", "Should we use which database?")
    await child.ask_refused("question_already_open", "May I drop the table of invoices?")
    error = await cw.refused(
        "already_resolved", parent.caller, "question.answer", request_id=old["request_id"], answer="Red."
    )
    assert error["details"]["status"] == "answered"
    body: Json = {"session_id": child.session_id, "task": "Go on."}
    await cw.refused("question_open", parent.caller, "session.continue", **body)
    await asyncio.to_thread(crashable.flush_redis)
    await parent.answer(question["request_id"], "SQLite.")
    assert await cw.ends(child.run_id, question["request_id"]) == ["answered"]


async def test_limit_per_run_survives_an_empty_redis(crashable: Deployment, cw: Wire) -> None:
    """How often a run has asked is not forgotten with Redis."""
    _, child = await cw.family()
    for number in range(20):
        question = await child.ask(f"{number}: may I go on with part {number}?")
        await cw.do(child.caller, "question.cancel", request_id=question["request_id"])
    await asyncio.to_thread(crashable.flush_redis)
    await child.ask_refused("question_limit_reached")


# What was over stays over


async def test_handled_and_ended_items_stay_so_over_kills_of_nats(crashable: Deployment, cw: Wire) -> None:
    """After `kill -9` of NATS neither a handled report nor an ended question is back in the inbox."""
    parent, child = await cw.family()
    reported = [await parent.spawn() for _ in range(5)]
    for turn in reported:
        await turn.settle()
        await cw.until_item(parent.session_id, turn.period_id)
    question = await child.ask("Which database?")
    still = await (await parent.spawn()).ask("Which colour?")
    await parent.answer(question["request_id"], "SQLite.")
    ids = [turn.period_id for turn in reported]
    assert (await cw.do(parent.caller, "inbox.handle", item_ids=ids[:4]))["handled"] == ids[:4]
    expected = [ids[4], still["request_id"]]
    for _ in range(3):
        await asyncio.to_thread(crashable.kill, "nats")
        await cw.query_surely(OPERATOR, "session.get", session_id=parent.session_id)
        assert [i["item"]["item_id"] for i in await cw.inbox(parent.session_id)] == expected
        listed = (await cw.query_surely(parent.caller, "inbox.list"))["items"]
        assert [i["item"]["item_id"] for i in listed] == expected


# Liveness over outages


@asynccontextmanager
async def hosted(w: Wire) -> AsyncIterator[tuple[Turn, Turn]]:
    """A parent without a lease, and a child whose host beats with a short one."""
    parent = await w.start(await w.open())
    child = await parent.spawn(lease_ms=2000)
    async with w.beating(child.session_id):
        yield parent, child


@pytest.mark.parametrize("part", PARTS)
async def test_nothing_is_gone_that_beats_over_the_kill_of(
    crashable: Deployment, cw: Wire, part: str
) -> None:
    """A part's crash is not taken for the silence of a host."""
    async with hosted(cw) as (_, child):
        await asyncio.to_thread(crashable.kill, part)
        await at(now() + 5)
        run = (await cw.query_surely(OPERATOR, "run.get", run_id=child.run_id))["run"]
        assert (run["status"], run["attempt"]) == ("running", 1)
        assert (await cw.session(child.session_id))["live"] is True


async def test_nothing_is_gone_that_beats_over_an_outage_longer_than_its_lease(
    private: Deployment, pw: Wire
) -> None:
    """After an outage nobody is declared gone before a whole lease has passed; then the silent one is."""
    async with hosted(pw) as (parent, child):
        silent = await parent.spawn(lease_ms=2000)
        async with pw.beating(silent.session_id):
            await asyncio.sleep(0.5)
        await asyncio.to_thread(private.kill_all)
        await asyncio.sleep(4)
        await asyncio.to_thread(private.start)
        await pw.query_surely(OPERATOR, "run.get", run_id=child.run_id)
        await eventually(
            lambda: pw.run(silent.run_id), lambda r: r["status"] == "settled", within=15, why="is lost"
        )
        run = await pw.run(child.run_id)
        assert (run["status"], run["attempt"]) == ("running", 1)
        assert (await child.settle())["outcome"] == "completed"


async def test_held_run_of_a_runner_survives_a_restart_within_its_lease(
    private: Deployment, pw: Wire
) -> None:
    """A runner that goes on beating keeps its run over a restart of everything, with its question."""
    parent = await pw.start(await pw.open())
    agent = uid("agent")
    await pw.do(parent.caller, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id)
    claim = await Runner(pw, agent).take()
    question = await claim.turn.ask()
    await asyncio.to_thread(private.restart)
    await pw.query_surely(OPERATOR, "run.get", run_id=claim.turn.run_id)
    await pw.insist(parent.caller, "question.answer", request_id=question["request_id"], answer="SQLite.")
    settled = await claim.turn.settle(answer="Built.")
    assert (settled["outcome"], settled["attempt"], settled["holder"]) == ("completed", 1, claim.turn.caller)


async def test_queued_run_survives_a_restart(private: Deployment, pw: Wire) -> None:
    """A run that was dispatched before everything was killed is claimed after it, once."""
    parent = await pw.start(await pw.open())
    agent = uid("agent")
    made = await pw.do(parent.caller, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id)
    await asyncio.to_thread(private.restart)
    await pw.query_surely(OPERATOR, "run.get", run_id=made["run_id"])
    claim = await Runner(pw, agent).take(within=60)
    assert (claim.turn.run_id, claim.turn.attempt) == (made["run_id"], 1)
    await claim.turn.settle()
    await pw.until_report(made["period_id"], "delivered")
    starts = await pw.history(made["run_id"], "lifecycle.*.started")
    assert len(starts) == 1


async def test_items_that_wake_cause_one_run_over_kills(crashable: Deployment, cw: Wire) -> None:
    """An item is the cause of one run at most, and of one at least, over kills of the session service."""
    top = await cw.start(await cw.open())
    agent = uid("agent")
    made = await cw.do(top.caller, "session.spawn", agent=agent, task="Lead.", run_id=top.run_id)
    runner = Runner(cw, agent)
    lead = (await runner.take()).turn
    children = [await lead.spawn() for _ in range(6)]
    await lead.settle(answer="Delegated.")
    killing = asyncio.create_task(asyncio.to_thread(crashable.kill, "session"))
    for child in children:
        await cw.insist(child.caller, "run.settle", run_id=child.run_id, outcome="completed")
    await killing
    causes: Counter[str] = Counter()
    while sum(causes.values()) < 6:
        run, message = await runner.dispatched(within=90)
        claimed = await cw.insist(runner.id, "run.claim", run_id=run["run_id"])
        await message.ack()
        causes.update(claimed["run"]["causes"])
        body: Json = {"run_id": run["run_id"], "attempt": claimed["run"]["attempt"], "outcome": "completed"}
        await cw.insist(runner.id, "run.settle", **body)
        if sum(causes.values()) == 3:
            await asyncio.to_thread(crashable.kill, "session")
    assert causes == Counter(child.period_id for child in children)
    await cw.until_report(made["period_id"], "delivered", within=60)

    async def session() -> Json:
        return await cw.session(made["session_id"])

    runs = (await session())["runs"]
    await never(session, lambda s: s["runs"] != runs, over=2, why="one more wake run")


# A storm


async def test_storm_of_kills_keeps_every_rule(private: Deployment, pw: Wire) -> None:
    """While parts die at random, families live on; afterwards each has one of everything, none is missing."""
    chance = random.Random(7)
    quiet = asyncio.Event()

    async def storm() -> None:
        for _ in range(20 if LONG else 5):
            part = chance.choice([*PARTS, "flush"])
            if part == "flush":
                await asyncio.to_thread(private.flush_redis)
            else:
                await asyncio.to_thread(private.kill, part)
        quiet.set()

    async def pause(step: str) -> None:
        assert step
        await asyncio.sleep(chance.uniform(0, 0.3))

    async def lives() -> list[Lived]:
        lived: list[Lived] = []
        while not quiet.is_set():
            lived.append(await story(pw, pause))
        return lived

    storming = asyncio.create_task(storm())
    found = await asyncio.gather(*(lives() for _ in range(6)))
    await storming
    families = [*(family for lived in found for family in lived), await story(pw, pause)]
    assert len(families) > 6
    for family in families:
        await whole(pw, family)


# Too much


async def test_overloaded_refuses_what_opens_and_drops_nothing(deploy: Callable[..., Deployment]) -> None:
    """With a log over its limit nothing new begins, what is under way ends, and what was stored is there."""
    up = await asyncio.to_thread(lambda: deploy(UPCALL_MAX_LOG_BYTES="4000000"))
    w = await Wire.connect(up.nats_url)
    try:
        parent, child = await w.family()
        idle = await parent.spawn()
        await idle.settle(answer="Built.")
        other = await parent.spawn()
        question = await child.ask()
        before: list[tuple[str, str, Json]] = [
            (uid("S"), "session.open", {"agent": "lead"}),
            (parent.caller, "session.spawn", {"agent": "worker", "task": "x", "host": "self"}),
            (parent.caller, "session.continue", {"session_id": idle.session_id, "task": "x"}),
        ]
        before = [(caller, name, {**body, "command_id": uid("c")}) for caller, name, body in before]
        replies = [await w.do(caller, name, **body) for caller, name, body in before]
        await w.do(
            idle.caller, "run.settle", run_id=replies[-1]["run_id"], outcome="completed", answer="Again."
        )
        spawn: Json = {"agent": "worker", "task": "x" * 200_000, "host": "self"}
        spawned: list[Json] = []
        error: Json = {}
        for _ in range(100):
            reply = await w.reply_to(f"cmd.{parent.caller}.session.spawn", spawn)
            if not reply["ok"]:
                error = reply["error"]
                break
            spawned.append(reply["result"])
        assert error.get("code") == "overloaded", error
        assert error["retryable"] is True
        await w.refused("overloaded", uid("S"), "session.open", agent="lead")
        await w.refused("overloaded", parent.caller, "session.continue", session_id=idle.session_id, task="x")
        await at(now() + 1.1)  # the log's size is believed for a second
        await other.ask_refused("overloaded")
        for (caller, name, body), reply in zip(before, replies, strict=True):
            again = await w.do(caller, name, **body)
            assert again.get("run_id") == reply.get("run_id"), "what was done before is answered as ever"
        await w.refused("unknown_session", parent.caller, "session.continue", session_id=uid("S"), task="x")
        await w.refused("unknown_session", uid("S"), "session.spawn", agent="worker", task="x")
        await parent.answer(question["request_id"], "SQLite.")
        await child.settle(answer="Built.")
        assert (await child.report())["answer"] == "Built."
        assert await w.until_item(parent.session_id, child.period_id)
        handled = await w.do(parent.caller, "inbox.handle", item_ids=[child.period_id])
        assert handled["handled"] == [child.period_id]
        await w.do(parent.caller, "session.cancel", session_id=other.session_id)
        for receipt in spawned:
            assert (await w.run(receipt["run_id"]))["status"] == "running"
    finally:
        await w.close()
