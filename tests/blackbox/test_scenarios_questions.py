"""What went wrong with questions in real harnesses, retold as steps and the right result."""

from __future__ import annotations

import asyncio
import os

import pytest

from .deployment import Deployment
from .wire import (
    ENDS,
    OPERATOR,
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

pytestmark = pytest.mark.asyncio(loop_scope="function")

LONG = os.environ.get("UPCALL_FAULTS") == "long"


async def wait_for_child(w: Wire, parent: Turn, child: Turn, answers: dict[str, str]) -> list[Json]:
    """A foreground call as a harness makes it: wait, answer what is asked, wait again; all that it heard."""
    heard: list[Json] = []
    while True:
        state = await w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000, within=25)
        heard.append(state)
        if state["state"] == "settled":
            return heard
        assert state["state"] == "question", state
        await parent.answer(state["question"]["request_id"], answers[state["question"]["question"]])


async def test_q1_question_is_answered_while_the_spawn_call_is_open(w: Wire) -> None:
    """A foreground call hears the child's question, and the same call returns the child's final result."""
    parent, child = await w.family(background=False)
    answers = {"Which database?": "SQLite.", "Which colour?": "Blue."}
    call = asyncio.create_task(wait_for_child(w, parent, child, answers))
    topic = await child.topic()
    for question, answer in answers.items():
        asked = await child.ask(question)
        got = await topic.until("question", asked["request_id"], "answered")
        assert got.data["answer"] == answer
        assert not call.done()
    await child.settle(answer="Built on SQLite, in blue.")
    heard = await call
    assert [state["state"] for state in heard] == ["question", "question", "settled"]
    assert heard[-1]["run"]["run_id"] == child.run_id
    assert heard[-1]["run"]["answer"] == "Built on SQLite, in blue."


async def test_q3_parent_without_a_connection_finds_the_question_later(
    quick_deployment: Deployment, quick: Wire
) -> None:
    """A parent without a lease is never gone: what was asked meanwhile waits, and its answer resumes C."""
    away = await Wire.connect(quick_deployment.nats_url)
    parent = await away.start(await away.open())
    child = await quick.spawn(parent.session_id)
    await away.close()
    topic = await child.topic()
    question = await child.ask("Which database?")
    # The tale has two minutes; without a lease, three of the deployment's leases tell the same.
    await at(now() + (120 if LONG else 6))
    back = await Wire.connect(quick_deployment.nats_url)
    try:
        item = await back.until_item(parent.session_id, question["request_id"])
        assert item["data"]["question"] == "Which database?"
        assert await back.questions(parent.session_id) == [question["request_id"]]
        await back.do(
            parent.session_id, "question.answer", request_id=question["request_id"], answer="SQLite."
        )
    finally:
        await back.close()
    seen = await topic.until("question", question["request_id"], *ENDS)
    assert (seen.event, seen.data["answer"]) == ("answered", "SQLite.")
    assert (await child.settle())["outcome"] == "completed"


async def test_q4_expired_question_invites_nobody(w: Wire) -> None:
    """After the timeout the inbox asks nothing, the list is empty, and an answer names the state."""
    parent, child = await w.family()
    question = await child.ask(timeout_ms=500)
    request_id = question["request_id"]
    await w.until_item(parent.session_id, request_id)
    await w.until_question(request_id, "timed_out")
    await w.until_no_item(parent.session_id, request_id)
    assert await w.inbox(parent.session_id) == []
    assert (await w.query(parent.session_id, "inbox.list"))["items"] == []
    slot = (await w.inbox_slots(parent.session_id)).get(request_id)
    assert slot is None or slot["type"] == "parent_question_timed_out"
    assert slot is None or "to resolve request" not in slot["item"]["text"]
    assert await w.questions(parent.session_id) == []
    error = await w.refused(
        "already_resolved", parent.caller, "question.answer", request_id=request_id, answer="SQLite."
    )
    assert error["details"]["status"] == "timed_out"
    assert "timed_out" in error["message"]


async def test_q5_foreground_child_that_asks_is_not_reported_as_completed(w: Wire) -> None:
    """A foreground spawn whose child asks stays open, and ends with one real result."""
    parent, child = await w.family(background=False)
    question = await child.ask()
    heard = await w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=10_000)
    assert heard["state"] == "question"
    assert heard["run"]["status"] == "running"
    assert heard["run"]["answer"] is None
    await never(
        lambda: w.history(child.run_id, "report.>"), lambda e: e, over=1, why="a report while the child waits"
    )
    await parent.answer(question["request_id"], "SQLite.")
    await child.settle(answer="Built on SQLite.")
    result = await w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=10_000)
    assert (result["state"], result["run"]["answer"]) == ("settled", "Built on SQLite.")
    report = await child.report()
    assert (report["for_run"], report["answer"]) == (parent.run_id, "Built on SQLite.")
    delivered = await w.history(child.run_id, "report.*.delivered")
    assert len(delivered) == 1


async def test_q7_two_children_answered_in_reverse_order(w: Wire) -> None:
    """Each child gets its own answer, whatever the order, and the list keeps the order of asking."""
    parent = await w.start(await w.open())
    one, two = await parent.spawn(), await parent.spawn()
    first = await one.ask("Which database?")
    second = await two.ask("Which colour?")
    for _ in range(3):
        assert await w.questions(parent.session_id) == [first["request_id"], second["request_id"]]
    topics = await one.topic(), await two.topic()
    await parent.answer(second["request_id"], "Blue.")
    assert await w.questions(parent.session_id) == [first["request_id"]]
    await parent.answer(first["request_id"], "SQLite.")
    got_one = await topics[0].until("question", None, "answered")
    got_two = await topics[1].until("question", None, "answered")
    assert (got_one.id, got_one.data["answer"]) == (first["request_id"], "SQLite.")
    assert (got_two.id, got_two.data["answer"]) == (second["request_id"], "Blue.")


async def test_q8_grandchild_asks_its_parent_not_the_root(w: Wire) -> None:
    """What G asks reaches C, in G's words, and not P; C's answer resumes G."""
    parent, child = await w.family()
    grandchild = await child.spawn(description="Write the migration")
    above, top = await child.topic(), await parent.topic()
    topic = await grandchild.topic()
    question = await grandchild.ask("Which\nengine?", options=["InnoDB", "Aria"])
    request_id = question["request_id"]
    seen = await above.until("question", request_id, "requested", child=grandchild.run_id)
    assert (seen.data["question"], seen.data["options"]) == ("Which\nengine?", ["InnoDB", "Aria"])
    item = await w.until_item(child.session_id, request_id)
    assert "Child task: Write the migration" in item["item"]["text"]
    assert "Question: Which\n  engine?" in item["item"]["text"]
    assert "- InnoDB\n- Aria" in item["item"]["text"]
    assert await w.inbox_slots(parent.session_id) == {}
    assert await w.questions(parent.session_id) == []
    assert select(top.events, "question") == []
    refusal = {"request_id": request_id, "answer": "Aria."}
    await w.refused("unknown_request", parent.caller, "question.answer", **refusal)
    await child.answer(request_id, "InnoDB.", selected_option="InnoDB")
    got = await topic.until("question", request_id, *ENDS)
    assert (got.event, got.data["answer"], got.data["selected_option"]) == ("answered", "InnoDB.", "InnoDB")
    assert await w.history(parent.run_id, f"child.{grandchild.run_id}.>") == []


async def test_q11_two_questions_fired_at_once(w: Wire) -> None:
    """Of two questions at once one is accepted, the other refused; after the answer C asks again."""
    parent, child = await w.family()
    texts = ["Which database?", "May I drop the table of invoices?"]
    began = now()
    replies = await asyncio.gather(
        *(w.reply_to(f"cmd.{child.caller}.question.ask", child.asking(text, {})) for text in texts)
    )
    assert now() - began < 10
    accepted = [reply["result"]["question"] for reply in replies if reply["ok"]]
    refused = [reply["error"] for reply in replies if not reply["ok"]]
    assert len(accepted) == 1
    assert [error["code"] for error in refused] == ["question_already_open"]
    assert refused[0]["details"]["request_id"] == accepted[0]["request_id"]
    assert refused[0]["details"]["expires_at"] == accepted[0]["expires_at"]
    await parent.answer(accepted[0]["request_id"], "Yes.")
    other = next(text for text in texts if text != accepted[0]["question"])
    assert (await child.ask(other))["status"] == "waiting"


async def test_q12_answer_after_timeout_is_refused_and_kept(w: Wire) -> None:
    """An answer at 2 s to a question of 1 s names timed_out, changes nothing for the child, and is kept."""
    parent, child = await w.family()
    topic = await child.topic()
    question = await child.ask(timeout_ms=1000)
    request_id = question["request_id"]
    ended = await topic.until("question", request_id, *ENDS)
    assert ended.event == "timed_out"
    await at(when(question["created_at"]) + 2)
    error = await w.refused(
        "already_resolved", parent.caller, "question.answer", request_id=request_id, answer="SQLite."
    )
    assert error["details"] | {"request_id": request_id, "status": "timed_out"} == error["details"]
    assert "timed_out" in error["message"]
    late = await topic.until("question", request_id, "late")
    assert late.data["late"]["answer"] == "SQLite."
    record = await w.question(request_id, child.caller)
    assert (record["status"], record["answer"], record["answered_by"]) == ("timed_out", None, None)
    assert await w.ends(child.run_id, request_id) == ["timed_out"]
    settled = await child.settle(answer="Went on without.")
    assert settled["answer"] == "Went on without."


async def test_q14_other_items_are_never_taken_for_the_answer(w: Wire) -> None:
    """What else reaches P meanwhile leaves the question open; the server ends it at its deadline."""
    parent, child = await w.family()
    sibling = await parent.spawn(task="Look around.")
    topic = await child.topic()
    question = await child.ask(timeout_ms=2500)
    await sibling.settle(answer="SQLite is the answer.")
    await w.until_item(parent.session_id, sibling.period_id)
    other = await parent.spawn()
    await other.settle(answer=f"Re: {question['request_id']}: PostgreSQL.")
    await other.report()
    await w.do(parent.caller, "inbox.handle", item_ids=[sibling.period_id])
    await parent.append("I have read the report: SQLite is the answer.")
    assert await w.question(question["request_id"]) == question
    seen = await topic.until("question", question["request_id"], *ENDS)
    assert seen.event == "timed_out"
    assert when(seen.body["time"]) >= when(question["expires_at"])
    assert seen.data["answer"] is None


@pytest.mark.timeout(300)
async def test_q15_question_of_a_killed_child_is_closed_once_over_restarts(
    crashable: Deployment, cw: Wire
) -> None:
    """C dies for good and everything restarts twice: its question has one end and is never listed again."""
    parent = await cw.start(await cw.open())
    child = await parent.spawn(lease_ms=1500)
    async with cw.beating(child.session_id):
        question = await child.ask(timeout_ms=600_000)
    await asyncio.to_thread(crashable.restart)
    await eventually(
        lambda: cw.query_surely(OPERATOR, "question.get", request_id=question["request_id"]),
        lambda r: r["question"]["status"] in ENDS,
        within=30,
        why="the question of a dead child ends",
    )
    ended = await cw.question(question["request_id"])
    assert (ended["status"], ended["reason"]) == ("cancelled", "run_settled")
    assert await cw.questions(parent.session_id) == []
    await asyncio.to_thread(crashable.restart)
    assert (await cw.query_surely(parent.session_id, "question.list"))["questions"] == []

    async def listed() -> list[str]:
        return await cw.questions(OPERATOR, status="waiting", scope="tree")

    def again(found: list[str]) -> bool:
        return question["request_id"] in found

    await never(listed, again, over=4, why="a closed question is listed again")
    assert await cw.question(question["request_id"]) == ended
    assert await cw.ends(child.run_id, question["request_id"]) == ["cancelled"]
    assert [i for i in await cw.inbox(parent.session_id) if i["item"]["kind"] == "question"] == []
    assert (await cw.run(child.run_id))["outcome"] == "lost"


async def test_q16_silent_child_that_beats_keeps_its_question(quick: Wire) -> None:
    """A child that only waits, longer than any idle limit, is still listed and can be answered."""
    parent = await quick.start(await quick.open())
    child = await parent.spawn(lease_ms=1000)
    async with quick.beating(child.session_id):
        question = await child.ask(timeout_ms=600_000)
        await at(now() + (60 if LONG else 6))
        assert await quick.questions(parent.session_id) == [question["request_id"]]
        assert (await quick.session(child.session_id))["live"] is True
        await parent.answer(question["request_id"], "SQLite.")
        assert (await quick.question(question["request_id"]))["status"] == "answered"
        assert (await child.settle())["outcome"] == "completed"


@pytest.mark.timeout(300)
async def test_q18_ask_restart_answer_ask_shows_the_second_only(crashable: Deployment, cw: Wire) -> None:
    """A question answered after a restart is over; the list shows the one that was asked after it."""
    parent, child = await cw.family()
    first = await child.ask("Which database?")
    await asyncio.to_thread(crashable.restart)
    listed = (await cw.query_surely(parent.session_id, "question.list"))["questions"]
    assert [q["request_id"] for q in listed] == [first["request_id"]]
    assert listed[0]["expires_at"] == first["expires_at"]
    await cw.insist(parent.caller, "question.answer", request_id=first["request_id"], answer="SQLite.")
    second = await child.ask("And which colour for the header?")
    assert await cw.questions(parent.session_id) == [second["request_id"]]
    open_items = [i["item"]["item_id"] for i in await cw.inbox(parent.session_id)]
    assert open_items == [second["request_id"]]


@pytest.mark.parametrize("lease_ms", [0, 3000])
async def test_q20_only_the_parent_restarts_and_subscribes_afresh(
    deployment: Deployment, w: Wire, lease_ms: int
) -> None:
    """A parent process that comes back within its lease finds the question as it stood, and may answer it."""
    before = await Wire.connect(deployment.nats_url)
    parent = await before.start(await before.open(lease_ms=lease_ms))
    child = await w.spawn(parent.session_id, run_id=parent.run_id)
    question = await child.ask("Which database?")
    await before.close()
    back = await Wire.connect(deployment.nats_url)
    try:
        await back.open(parent.session_id, lease_ms=lease_ms)
        assert (await back.run(parent.run_id))["outcome"] == "lost"
        async with back.beating(parent.session_id):
            item = await back.until_item(parent.session_id, question["request_id"])
            assert item["data"]["status"] == "waiting"
            assert await back.question(question["request_id"], parent.session_id) == question
            requested = await back.history(parent.run_id, f"child.{child.run_id}.question.>")
            assert [s.event for s in requested] == ["requested"]
            answer = {"request_id": question["request_id"], "answer": "SQLite."}
            await back.do(parent.session_id, "question.answer", **answer)
    finally:
        await back.close()
    assert (await w.question(question["request_id"]))["status"] == "answered"
    assert (await child.settle())["outcome"] == "completed"


async def test_q20_parent_that_merely_reconnects_keeps_its_run(deployment: Deployment, w: Wire) -> None:
    """A parent whose connection broke, and nothing else, subscribes afresh and gets the open question."""
    before = await Wire.connect(deployment.nats_url)
    parent = await before.start(await before.open())
    child = await w.spawn(parent.session_id, run_id=parent.run_id)
    question = await child.ask("Which database?")
    await before.close()
    assert question["request_id"] in [i["item"]["item_id"] for i in await w.inbox(parent.session_id)]
    assert (await w.run(parent.run_id))["status"] == "running"
    answer = {"request_id": question["request_id"], "answer": "SQLite."}
    await w.do(parent.session_id, "question.answer", **answer)
    assert (await w.question(question["request_id"]))["status"] == "answered"


async def test_q21_answer_resumes_the_child_where_it_stood(w: Wire) -> None:
    """What C did before it asked stands once, in the same run, also for the runner that goes on with it."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    await w.do(
        parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id, lease_ms=1000
    )
    first = await Runner(w, agent).take(every=0.2)
    await first.turn.append("Read the code.", "Wrote the schema.", steps=2)
    question = await first.turn.ask("Which database?")
    first.die()
    await parent.answer(question["request_id"], "SQLite.")
    second = await Runner(w, agent).take()
    assert (second.run["run_id"], second.run["attempt"]) == (first.turn.run_id, 2)
    assert [(q["request_id"], q["answer"]) for q in second.questions] == [(question["request_id"], "SQLite.")]
    assert second.run["steps"] == 2
    await second.turn.append("Went on with SQLite.", steps=1)
    settled = await second.turn.settle(answer="Built.")
    assert settled["run_id"] == first.turn.run_id
    assert settled["steps"] == 3
    page = await w.query(parent.session_id, "session.history", session_id=first.turn.session_id)
    said = [m["content"] for m in page["messages"]]
    assert said == ["Build.", "Read the code.", "Wrote the schema.", "Went on with SQLite."]
    session = await w.session(first.turn.session_id)
    assert session["runs"] == 1


async def test_q22_second_question_waits_for_its_own_answer(w: Wire) -> None:
    """The answer to the first of two questions in a row is never the answer to the second."""
    parent, child = await w.family()
    topic = await child.topic()
    first = await child.ask("Which database?")
    await parent.answer(first["request_id"], "SQLite.", command_id=(again := uid("call")))
    await topic.until("question", first["request_id"], "answered")
    second = await child.ask("Which colour?")
    await parent.answer(first["request_id"], "SQLite.", command_id=again)
    late = {"request_id": first["request_id"], "answer": "Green."}
    await w.refused("already_resolved", parent.caller, "question.answer", **late)
    assert await w.question(second["request_id"]) == second
    await parent.answer(second["request_id"], "Blue.")
    got = await topic.until("question", second["request_id"], *ENDS)
    assert (got.event, got.data["answer"]) == ("answered", "Blue.")
    assert (await w.question(first["request_id"]))["answer"] == "SQLite."


@pytest.mark.timeout(300)
async def test_q24_grandchild_resumes_after_its_ancestors_restarted(crashable: Deployment, cw: Wire) -> None:
    """G asks, the hosts of C and P restart and all services with them: the answer still resumes G."""
    parent = await cw.start(await cw.open())
    child = await parent.spawn()
    grandchild = await child.spawn()
    question = await grandchild.ask("Which engine?")
    await asyncio.to_thread(crashable.restart)
    await cw.insist(parent.session_id, "session.open", agent="lead")
    await cw.insist(child.session_id, "session.open", agent="worker")
    assert await cw.question(question["request_id"], grandchild.caller) == question
    item = await cw.until_item(child.session_id, question["request_id"])
    assert item["data"]["status"] == "waiting"
    topic = await grandchild.topic()
    answer = {"request_id": question["request_id"], "answer": "InnoDB."}
    await cw.do(child.session_id, "question.answer", **answer)
    seen = await topic.until("question", question["request_id"], *ENDS)
    assert (seen.event, seen.data["answer"]) == ("answered", "InnoDB.")
    assert (await grandchild.settle(answer="Migrated."))["outcome"] == "completed"
    report = await grandchild.report()
    assert report["answer"] == "Migrated."
    assert await cw.until_item(child.session_id, grandchild.period_id)


async def test_q25_parents_subscriber_sees_requested_then_answered(w: Wire) -> None:
    """On the parent's topic, for ten questions in a row, each requested precedes its answered."""
    parent, child = await w.family()
    above = await parent.topic()
    expected = []
    for number in range(10):
        question = await child.ask(f"Question number {number}?")
        await parent.answer(question["request_id"], f"Answer {number}.")
        expected += [(question["request_id"], "requested"), (question["request_id"], "answered")]
    await above.until_all("question", child=child.run_id, count=20)
    assert [(s.id, s.event) for s in select(above.events, "question")] == expected


async def test_q27_default_timeout_applies_and_other_items_are_not_held_up(w: Wire) -> None:
    """A question without a timeout has the default one, and P's other items come through at once."""
    parent, child = await w.family()
    sibling = await parent.spawn()
    question = await child.ask()
    assert question["timeout_ms"] == 300_000
    assert abs(when(question["expires_at"]) - when(question["created_at"]) - 300) <= 0.1
    began = now()
    await sibling.settle(answer="Looked around.")
    await w.until_item(parent.session_id, sibling.period_id)
    assert now() - began < 10
    kinds = {i["item"]["item_id"]: i["item"]["kind"] for i in await w.inbox(parent.session_id)}
    assert kinds == {question["request_id"]: "question", sibling.period_id: "report"}


async def test_q28_continuing_a_child_that_waits_fails_with_the_question(w: Wire) -> None:
    """Continuing a C that waits for an answer: an error at once with request, question and options."""
    parent, child = await w.family()
    question = await child.ask("Which database?", options=["PostgreSQL", "SQLite"])
    began = now()
    error = await w.refused(
        "question_open", parent.caller, "session.continue", session_id=child.session_id, task="Go on."
    )
    assert now() - began < 10
    shown = error["details"]["question"]
    assert shown["request_id"] == question["request_id"]
    assert shown["question"] == "Which database?"
    assert shown["options"] == ["PostgreSQL", "SQLite"]
    assert error["retryable"] is True
    assert (await w.session(child.session_id))["runs"] == 1
    assert await w.question(question["request_id"]) == question
