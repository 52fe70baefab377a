"""How a question ends: once, by whoever comes first, seen by all in the same words."""

from __future__ import annotations

import asyncio

import pytest

from .wire import (
    ENDS,
    OPERATOR,
    QUESTION_FIELDS,
    WITHIN,
    Json,
    Runner,
    Seen,
    Turn,
    Wire,
    at,
    eventually,
    has_fields,
    named_fields,
    now,
    select,
    uid,
    when,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")


async def stands_ended(
    w: Wire, parent: Turn, child: Turn, question: Json, end: str, **expected: object
) -> Json:
    """All that a question's end has to leave behind; returns the record."""
    request_id = question["request_id"]
    record = await w.question(request_id)
    assert record["status"] == end
    assert {name: record[name] for name in expected} == expected
    own = await eventually(
        lambda: w.history(child.run_id, f"question.{request_id}.*"), lambda e: any(s.event == end for s in e)
    )
    copies = await eventually(
        lambda: w.history(parent.run_id, f"child.{child.run_id}.question.{request_id}.*"),
        lambda e: len(e) >= len(own),
    )
    assert [s.event for s in own] == ["requested", end]
    assert own[-1].type == f"parent_question_{end}"
    assert [s.body for s in own] == [s.body for s in copies]
    assert {n: own[-1].data[n] for n in QUESTION_FIELDS} == {n: record[n] for n in QUESTION_FIELDS}
    await w.until_no_item(parent.session_id, request_id)
    slot = (await w.inbox_slots(parent.session_id)).get(request_id)
    assert slot is None or slot["type"] == f"parent_question_{end}"
    listed = (await w.query(parent.session_id, "inbox.list"))["items"]
    assert request_id not in [body["item"]["item_id"] for body in listed]
    assert request_id not in await w.questions(parent.session_id)
    assert request_id not in await w.questions(OPERATOR, status="waiting", scope="tree")
    assert request_id in await w.questions(parent.session_id, status=end)
    return record


# Answered


async def test_answered_by_the_parent(w: Wire) -> None:
    """The parent's answer ends the question and stands in the record with its author and moment."""
    parent, child = await w.family()
    question = await child.ask("Which database?", options=["PostgreSQL", "SQLite"])
    before = now()
    answered = await parent.answer(
        question["request_id"], "Use SQLite for now.", rationale="It is one node.", selected_option="SQLite"
    )
    has_fields(answered, QUESTION_FIELDS)
    record = await stands_ended(
        w,
        parent,
        child,
        question,
        "answered",
        answer="Use SQLite for now.",
        rationale="It is one node.",
        selected_option="SQLite",
        action="accept",
        answered_by={"kind": "agent", "id": parent.session_id},
        reason=None,
    )
    assert record == answered
    assert before - 1 < when(record["answered_at"]) < now() + 1
    assert when(record["updated_at"]) >= when(record["created_at"])
    assert record["created_at"] == question["created_at"]
    assert record["expires_at"] == question["expires_at"]


async def test_answered_by_an_operator(w: Wire) -> None:
    """A person may answer any question, and is named as one."""
    parent, child = await w.family()
    question = await child.ask()
    await w.do(OPERATOR, "question.answer", request_id=question["request_id"], answer="SQLite.")
    by = {"kind": "human", "id": OPERATOR}
    await stands_ended(w, parent, child, question, "answered", answer="SQLite.", answered_by=by)


async def test_answered_by_the_runner_that_holds_the_parents_run(w: Wire) -> None:
    """Who holds the parent's run speaks for the parent, also when the parent has many ancestors."""
    top = await w.start(await w.open())
    agent = uid("agent")
    await w.do(top.session_id, "session.spawn", agent=agent, task="Lead.", run_id=top.run_id)
    held = (await Runner(w, agent).take()).turn
    child = await held.spawn()
    question = await child.ask()
    assert question["parent_session_id"] == held.session_id
    answered = await held.answer(question["request_id"], "SQLite.")
    assert answered["answered_by"] == {"kind": "agent", "id": held.caller}
    await stands_ended(w, held, child, question, "answered", answer="SQLite.")


async def test_answered_by_the_session_though_a_runner_holds_its_run(w: Wire) -> None:
    """The parent session itself may answer too, whoever carries out its run."""
    top = await w.start(await w.open())
    agent = uid("agent")
    await w.do(top.session_id, "session.spawn", agent=agent, task="Lead.", run_id=top.run_id)
    held = (await Runner(w, agent).take()).turn
    child = await held.spawn()
    question = await child.ask()
    answer = {"request_id": question["request_id"], "answer": "SQLite."}
    record = (await w.do(held.session_id, "question.answer", **answer))["question"]
    assert record["answered_by"] == {"kind": "agent", "id": held.session_id}


@pytest.mark.parametrize("who", ["child", "sibling", "grandparent", "stranger", "runner"])
async def test_unknown_request_for_everyone_who_may_not_answer(w: Wire, who: str) -> None:
    """An answer by anyone else is refused as if the question did not exist, and leaves it open."""
    top = await w.start(await w.open())
    parent = await top.spawn()
    child = await parent.spawn()
    callers = {
        "child": child.caller,
        "sibling": (await parent.spawn()).caller,
        "grandparent": top.caller,
        "stranger": await w.open(),
        "runner": uid("runner"),
    }
    question = await child.ask()
    foreign = await w.refused(
        "unknown_request", callers[who], "question.answer", request_id=question["request_id"], answer="x"
    )
    absent = uid("Q")
    nothing = await w.refused(
        "unknown_request", callers[who], "question.answer", request_id=absent, answer="x"
    )
    said = foreign["message"].replace(question["request_id"], "")
    assert said == nothing["message"].replace(absent, "")
    assert await w.question(question["request_id"]) == question
    await parent.answer(question["request_id"], "SQLite.")


@pytest.mark.parametrize("options", [None, ["PostgreSQL", "SQLite"]], ids=["nothing-offered", "two-offered"])
async def test_unknown_option_leaves_the_question_open(w: Wire, options: list[str] | None) -> None:
    """The option chosen is one of those offered, to the letter."""
    parent, child = await w.family()
    offered: Json = {"options": options} if options else {}
    question = await child.ask(**offered)
    await w.refused(
        "unknown_option",
        parent.caller,
        "question.answer",
        request_id=question["request_id"],
        answer="MySQL.",
        selected_option="sqlite",
    )
    assert await w.question(question["request_id"]) == question
    assert await w.questions(parent.session_id) == [question["request_id"]]


async def test_declined_is_an_answer_without_one(w: Wire) -> None:
    """A parent that will not decide says so: the child learns it at once instead of waiting."""
    parent, child = await w.family()
    question = await child.ask()
    await parent.answer(
        question["request_id"], action="decline", rationale="Ask the owner of the billing code."
    )
    await stands_ended(
        w,
        parent,
        child,
        question,
        "answered",
        action="decline",
        answer=None,
        rationale="Ask the owner of the billing code.",
    )


INVALID = [
    pytest.param({}, "answer", id="no-answer"),
    pytest.param({"action": "accept"}, "answer", id="accepted-without-answer"),
    pytest.param({"answer": "x", "action": "perhaps"}, "action", id="unknown-action"),
    pytest.param({"answer": 5}, "answer", id="answer-a-number"),
    pytest.param({"answer": "x" * (256 * 1024 + 1)}, "answer", id="answer-over-256-KiB"),
    pytest.param(
        {"answer": "x", "rationale": "x" * (256 * 1024 + 1)}, "rationale", id="rationale-over-256-KiB"
    ),
    pytest.param({"answer": "x", "by": "operator"}, "by", id="unknown-field"),
]


@pytest.mark.parametrize(("body", "name"), INVALID)
async def test_invalid_answer_leaves_the_question_open(w: Wire, body: Json, name: str) -> None:
    """An answer outside its limits is refused, its field named, and nothing has changed."""
    parent, child = await w.family()
    question = await child.ask()
    error = await w.refused(
        "invalid", parent.caller, "question.answer", request_id=question["request_id"], **body
    )
    assert named_fields(error) == {name}
    assert await w.question(question["request_id"]) == question


@pytest.mark.parametrize(
    "answer",
    ["x" * (256 * 1024), "  `rm -rf /`\n$(reboot) {{x}} ", "Größe 大きさ"],
    ids=["long", "code", "words"],
)
async def test_answer_is_text_and_kept_as_given(w: Wire, answer: str) -> None:
    """An answer is a decision to read: it arrives letter by letter."""
    parent, child = await w.family()
    topic = await child.topic()
    question = await child.ask()
    await parent.answer(question["request_id"], answer)
    seen = await topic.until("question", question["request_id"], "answered")
    assert seen.data["answer"] == answer


async def test_same_answer_command_again_is_no_error(w: Wire) -> None:
    """A parent whose reply was lost answers again under the same command id and is told how it stands."""
    parent, child = await w.family()
    question = await child.ask()
    command = uid("call")
    first = await parent.answer(question["request_id"], "SQLite.", command_id=command)
    assert await parent.answer(question["request_id"], "SQLite.", command_id=command) == first
    many = (parent.answer(question["request_id"], "SQLite.", command_id=command) for _ in range(10))
    assert all(record == first for record in await asyncio.gather(*many))
    await child.settle()
    assert await parent.answer(question["request_id"], "SQLite.", command_id=command) == first
    assert [s.event for s in await w.history(child.run_id, "question.>")] == ["requested", "answered"]


async def test_answer_command_reused_for_another_answer(w: Wire) -> None:
    """One command id cannot answer twice in different words."""
    parent, child = await w.family()
    question = await child.ask()
    command = uid("call")
    await parent.answer(question["request_id"], "SQLite.", command_id=command)
    body = {"request_id": question["request_id"], "answer": "MySQL.", "command_id": command}
    await w.refused("command_id_reused", parent.caller, "question.answer", **body)
    assert (await w.question(question["request_id"]))["answer"] == "SQLite."


async def test_second_answer_is_refused_and_kept_as_late(w: Wire) -> None:
    """Of two answers the first counts; the second is told the final status, and its text is kept."""
    parent, child = await w.family()
    question = await child.ask()
    first = await parent.answer(question["request_id"], "SQLite.")
    error = await w.refused(
        "already_resolved", OPERATOR, "question.answer", request_id=question["request_id"], answer="MySQL."
    )
    assert error["details"]["request_id"] == question["request_id"]
    assert error["details"]["status"] == "answered"
    assert "answered" in error["message"]
    late = (await late_events(w, child.run_id, question["request_id"]))[0]
    assert late.data["answer"] == "SQLite."
    assert late.data["late"]["answer"] == "MySQL."
    assert late.data["late"]["answered_by"] == {"kind": "human", "id": OPERATOR}
    assert (await w.question(question["request_id"]))["answer"] == first["answer"]


async def test_answers_at_once_have_one_winner(w: Wire) -> None:
    """Twenty answers in flight at once: one ends the question, all others are told that it has ended."""
    parent, child = await w.family()
    question = await child.ask()
    callers = [parent.caller, OPERATOR]
    replies = await asyncio.gather(
        *(
            w.reply_to(
                f"cmd.{callers[n % 2]}.question.answer",
                {"request_id": question["request_id"], "answer": f"Answer {n}."},
            )
            for n in range(20)
        )
    )
    won = [reply["result"]["question"] for reply in replies if reply["ok"]]
    assert len(won) == 1
    assert {reply["error"]["code"] for reply in replies if not reply["ok"]} == {"already_resolved"}
    assert (await w.question(question["request_id"]))["answer"] == won[0]["answer"]
    assert await w.ends(child.run_id, question["request_id"]) == ["answered"]


# Timed out


async def late_events(w: Wire, run_id: str, request_id: str, count: int = 1) -> list[Seen]:
    """The late answers on a question's topic, once there are so many."""
    return await eventually(
        lambda: w.history(run_id, f"question.{request_id}.late"), lambda e: len(e) >= count, why="late events"
    )


async def test_timed_out_at_expires_at(w: Wire) -> None:
    """The server ends the question by itself: not before its deadline, and soon after it."""
    parent, child = await w.family()
    topic = await child.topic()
    question = await child.ask(timeout_ms=1500)
    assert abs(when(question["expires_at"]) - when(question["created_at"]) - 1.5) <= 0.1
    seen = await topic.until("question", question["request_id"], *ENDS)
    arrived = now()
    assert seen.event == "timed_out"
    assert when(seen.body["time"]) >= when(question["expires_at"])
    assert when(question["expires_at"]) - 0.05 <= arrived <= when(question["expires_at"]) + 2
    record = await stands_ended(
        w, parent, child, question, "timed_out", answer=None, answered_by=None, answered_at=None, action=None
    )
    assert record["expires_at"] == question["expires_at"]


async def test_shortest_timeout_ends_too(w: Wire) -> None:
    """A question of one millisecond is asked and ends."""
    parent, child = await w.family()
    question = await child.ask(timeout_ms=1)
    await w.until_question(question["request_id"], "timed_out")
    await stands_ended(w, parent, child, question, "timed_out")


async def test_answer_just_before_the_deadline_wins(w: Wire) -> None:
    """An answer that was stored before the deadline counts, and the deadline changes nothing any more."""
    parent, child = await w.family()
    question = await child.ask(timeout_ms=1500)
    await at(when(question["expires_at"]) - 0.3)
    await parent.answer(question["request_id"], "SQLite.")
    await at(when(question["expires_at"]) + 0.7)
    await stands_ended(w, parent, child, question, "answered", answer="SQLite.")


async def test_answer_after_the_timeout_is_refused_and_kept(w: Wire) -> None:
    """A late answer is told that it timed out; its text stands on both topics and nowhere else."""
    parent, child = await w.family()
    own, above = await child.topic(), await parent.topic()
    question = await child.ask("Which database?", options=["PostgreSQL", "SQLite"], timeout_ms=300)
    request_id = question["request_id"]
    ended = await w.until_question(request_id, "timed_out")
    before = now()
    error = await w.refused(
        "already_resolved",
        parent.caller,
        "question.answer",
        request_id=request_id,
        answer="SQLite, please.",
        rationale="One node.",
        selected_option="SQLite",
    )
    assert error["details"]["request_id"] == request_id
    assert error["details"]["status"] == "timed_out"
    assert "timed_out" in error["message"]
    event = await own.until("question", request_id, "late")
    copy = await above.until("question", request_id, "late", child=child.run_id)
    assert event.body == copy.body
    assert event.type == "parent_question_late_answer"
    assert event.data["status"] == "timed_out"
    assert event.data["answer"] is None
    late = event.data["late"]
    assert late["answer"] == "SQLite, please."
    assert late["rationale"] == "One node."
    assert late["selected_option"] == "SQLite"
    assert late["answered_by"] == {"kind": "agent", "id": parent.session_id}
    assert before - 1 < when(late["stored_at"]) < now() + 1
    record = await w.question(request_id)
    assert {n: record[n] for n in QUESTION_FIELDS - {"updated_at"}} == {
        n: ended[n] for n in QUESTION_FIELDS - {"updated_at"}
    }
    assert await w.ends(child.run_id, request_id) == ["timed_out"]
    assert request_id not in [i["item"]["item_id"] for i in await w.inbox(parent.session_id)]


async def test_late_answers_are_kept_ten_times(w: Wire) -> None:
    """A parent that keeps answering an ended question fills no log: ten texts are kept."""
    parent, child = await w.family()
    question = await child.ask(timeout_ms=50)
    await w.until_question(question["request_id"], "timed_out")
    for number in range(13):
        error = await w.refused(
            "already_resolved",
            parent.caller,
            "question.answer",
            request_id=question["request_id"],
            answer=f"Answer {number}.",
        )
        assert error["details"]["status"] == "timed_out"
    await late_events(w, child.run_id, question["request_id"], 10)
    later = await child.ask("And which colour?")
    await parent.answer(later["request_id"], "Blue.")
    assert len(await late_events(w, child.run_id, question["request_id"], 10)) == 10


async def test_late_answer_of_a_stranger_is_unknown_and_not_kept(w: Wire) -> None:
    """Who may not answer may not leave text on a topic either."""
    _, child = await w.family()
    question = await child.ask(timeout_ms=50)
    await w.until_question(question["request_id"], "timed_out")
    await w.refused(
        "unknown_request",
        await w.open(),
        "question.answer",
        request_id=question["request_id"],
        answer="Trust me.",
    )
    assert await w.history(child.run_id, f"question.{question['request_id']}.late") == []


async def test_same_late_answer_again_is_kept_once(w: Wire) -> None:
    """A late answer sent again under its command id is the same late answer."""
    parent, child = await w.family()
    question = await child.ask(timeout_ms=50)
    await w.until_question(question["request_id"], "timed_out")
    body = {"request_id": question["request_id"], "answer": "SQLite.", "command_id": uid("call")}
    for _ in range(3):
        await w.refused("already_resolved", parent.caller, "question.answer", **body)
    assert len(await late_events(w, child.run_id, question["request_id"])) == 1


@pytest.mark.parametrize("end", ["answered", "timed_out", "cancelled"])
async def test_ask_again_after_the_end_and_no_older_answer_resolves_it(w: Wire, end: str) -> None:
    """After an end the run may ask the same again; no late answer reaches the new question."""
    parent, child = await w.family()
    first = await child.ask("Which database?", timeout_ms=200 if end == "timed_out" else 60_000)
    if end == "answered":
        await parent.answer(first["request_id"], "SQLite.")
    elif end == "cancelled":
        await w.do(child.caller, "question.cancel", request_id=first["request_id"])
    await w.until_question(first["request_id"], end)
    second = await child.ask("Which database?")
    assert second["request_id"] != first["request_id"]
    late = {"request_id": first["request_id"], "answer": "Too late."}
    await w.refused("already_resolved", parent.caller, "question.answer", **late)
    assert await w.question(second["request_id"]) == second
    assert await w.questions(parent.session_id) == [second["request_id"]]
    await parent.answer(second["request_id"], "PostgreSQL.")
    assert (await w.question(second["request_id"]))["answer"] == "PostgreSQL."


# Cancelled


async def test_cancelled_by_the_child_by_request_id(w: Wire) -> None:
    """A child that needs no answer any more takes its question back."""
    parent, child = await w.family()
    question = await child.ask()
    await w.do(child.caller, "question.cancel", request_id=question["request_id"])
    await stands_ended(w, parent, child, question, "cancelled", reason="child", answer=None)


async def test_cancelled_by_the_child_by_run(w: Wire) -> None:
    """A child that does not know the id any more names its run; the reason it gives is kept."""
    parent, child = await w.family()
    question = await child.ask()
    ended = await w.do(child.caller, "question.cancel", run_id=child.run_id, reason="found it in the docs")
    assert ended["question"]["request_id"] == question["request_id"]
    await stands_ended(w, parent, child, question, "cancelled", reason="found it in the docs")


async def test_cancelled_by_an_operator(w: Wire) -> None:
    """An operator may take any question back."""
    parent, child = await w.family()
    question = await child.ask()
    await w.do(OPERATOR, "question.cancel", request_id=question["request_id"], reason="moot")
    await stands_ended(w, parent, child, question, "cancelled", reason="moot")


async def test_cancelled_by_the_runner_that_asked(w: Wire) -> None:
    """A child's runner takes back what it asked for its run."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    await w.do(parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id)
    held = (await Runner(w, agent).take()).turn
    question = await held.ask()
    await w.do(held.caller, "question.cancel", request_id=question["request_id"])
    await stands_ended(w, parent, held, question, "cancelled", reason="child")


UNKNOWN_BY_RUN = {"unknown_request", "unknown_run"}
"""Somebody else's run has, for a stranger, neither itself nor a question."""


@pytest.mark.parametrize("who", ["parent", "sibling", "stranger"])
@pytest.mark.parametrize("name", ["request_id", "run_id"])
async def test_cancelling_somebody_elses_question_is_unknown(w: Wire, who: str, name: str) -> None:
    """Only the child's side and an operator cancel: a parent declines instead."""
    parent, child = await w.family()
    question = await child.ask()
    callers = {
        "parent": parent.caller,
        "sibling": (await parent.spawn()).caller,
        "stranger": await w.open(),
    }
    body = {name: question["request_id"] if name == "request_id" else child.run_id}
    reply = await w.reply_to(f"cmd.{callers[who]}.question.cancel", body)
    assert not reply["ok"]
    assert reply["error"]["code"] in (
        ("unknown_request",) if name == "request_id" else ("unknown_request", "unknown_run")
    )
    assert await w.question(question["request_id"]) == question


async def test_cancelling_when_nothing_is_open(w: Wire) -> None:
    """By run there is nothing to cancel; by id the ended question says how it ended."""
    parent, child = await w.family()
    await w.refused("unknown_request", child.caller, "question.cancel", run_id=child.run_id)
    question = await child.ask()
    await parent.answer(question["request_id"], "SQLite.")
    await w.refused("unknown_request", child.caller, "question.cancel", run_id=child.run_id)
    error = await w.refused(
        "already_resolved", child.caller, "question.cancel", request_id=question["request_id"]
    )
    assert error["details"]["request_id"] == question["request_id"]
    assert error["details"]["status"] == "answered"
    await stands_ended(w, parent, child, question, "answered", answer="SQLite.")


async def test_cancelling_twice_with_one_command_id(w: Wire) -> None:
    """A cancel whose reply was lost is sent again and is no error."""
    _, child = await w.family()
    question = await child.ask()
    body = {"request_id": question["request_id"], "command_id": uid("call")}
    first = await w.do(child.caller, "question.cancel", **body)
    assert await w.do(child.caller, "question.cancel", **body) == first


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "halted", "timed_out"])
async def test_settling_the_run_cancels_its_question(w: Wire, outcome: str) -> None:
    """No question stays open on a run that has settled, whatever came of it."""
    parent, child = await w.family()
    question = await child.ask()
    await child.settle(outcome)
    assert question["request_id"] not in await w.questions(parent.session_id)
    await w.until_question(question["request_id"])
    await stands_ended(w, parent, child, question, "cancelled", reason="run_settled")
    error = await w.refused(
        "already_resolved", parent.caller, "question.answer", request_id=question["request_id"], answer="x"
    )
    assert error["details"]["status"] == "cancelled"


async def test_no_list_shows_a_question_of_a_settled_run(w: Wire) -> None:
    """Once a run is seen settled, its question is in no list, and an answer is refused."""
    parent = await w.start(await w.open())
    for _ in range(10):
        child = await parent.spawn()
        question = await child.ask()
        topic = await child.topic()
        settled = asyncio.create_task(child.settle())
        await topic.until("lifecycle", None, "settled")
        listed, answer = await asyncio.gather(
            w.query(parent.session_id, "question.list"),
            w.reply_to(
                f"cmd.{parent.caller}.question.answer", {"request_id": question["request_id"], "answer": "x"}
            ),
        )
        assert question["request_id"] not in [q["request_id"] for q in listed["questions"]]
        assert not answer["ok"]
        assert answer["error"]["code"] == "already_resolved"
        await settled
        await w.until_question(question["request_id"], "cancelled")


async def test_settle_and_answer_at_once_leave_one_end(w: Wire) -> None:
    """Whichever comes first, the question has one end, and the answerer was told which."""
    parent = await w.start(await w.open())
    for _ in range(10):
        child = await parent.spawn()
        question = await child.ask()
        answer = {"request_id": question["request_id"], "answer": "SQLite."}
        reply, _ = await asyncio.gather(
            w.reply_to(f"cmd.{parent.caller}.question.answer", answer), child.settle()
        )
        record = await w.until_question(question["request_id"])
        assert record["status"] == ("answered" if reply["ok"] else "cancelled")
        assert await w.ends(child.run_id, question["request_id"]) == [record["status"]]


async def test_settle_and_ask_at_once_leave_nothing_open(w: Wire) -> None:
    """A question that races with its run's end is refused, or ends with it: none stays open."""
    parent = await w.start(await w.open())
    for _ in range(10):
        child = await parent.spawn()
        reply, _ = await asyncio.gather(
            w.reply_to(f"cmd.{child.caller}.question.ask", child.asking("Which database?", {})),
            child.settle(),
        )
        if reply["ok"]:
            await w.until_question(reply["result"]["question"]["request_id"], "cancelled")
        else:
            assert reply["error"]["code"] == "run_not_active"
    assert await w.questions(parent.session_id) == []
    assert [i for i in await w.inbox(parent.session_id) if i["item"]["kind"] == "question"] == []


async def test_cancelling_the_session_cancels_its_question(w: Wire) -> None:
    """A child that is cancelled waits for no answer."""
    parent, child = await w.family()
    question = await child.ask()
    await w.do(parent.caller, "session.cancel", session_id=child.session_id)
    await w.until_question(question["request_id"])
    await stands_ended(w, parent, child, question, "cancelled", reason="session_cancelled")


async def test_cancelling_an_ancestor_cancels_a_descendants_question(w: Wire) -> None:
    """A cancel cascades: what a grandchild asks ends with it."""
    top = await w.start(await w.open())
    parent = await top.spawn()
    child = await parent.spawn()
    question = await child.ask()
    await w.do(top.caller, "session.cancel", session_id=parent.session_id)
    ended = await w.until_question(question["request_id"])
    assert (ended["status"], ended["reason"]) == ("cancelled", "session_cancelled")


async def test_childs_host_gone_cancels_its_question(w: Wire) -> None:
    """A child that is gone for good leaves no question behind."""
    parent = await w.start(await w.open())
    child = await parent.spawn(lease_ms=1000)
    async with w.beating(child.session_id):
        question = await child.ask()
    await w.until_question(question["request_id"])
    await stands_ended(w, parent, child, question, "cancelled", reason="run_settled")
    assert (await w.run(child.run_id))["outcome"] == "lost"


# Error


async def test_parent_closed_ends_the_question_as_error(w: Wire) -> None:
    """Nobody is left who could answer: the child hears it now, not at its timeout."""
    parent, child = await w.family()
    own, above = await child.topic(), await parent.topic()
    question = await child.ask(timeout_ms=600_000)
    await w.do(parent.caller, "session.close", cascade=False)
    seen = await own.until("question", question["request_id"], *ENDS)
    assert seen.event == "error"
    assert seen.type == "parent_question_error"
    copy = await above.until("question", question["request_id"], "error", child=child.run_id)
    assert copy.body == seen.body
    record = await w.question(question["request_id"])
    assert (record["status"], record["reason"], record["answer"]) == ("error", "parent_unavailable", None)
    assert (await w.run(child.run_id))["status"] == "running"
    assert question["request_id"] not in await w.questions(OPERATOR, status="waiting", scope="tree")
    error = await w.refused(
        "already_resolved", OPERATOR, "question.answer", request_id=question["request_id"], answer="x"
    )
    assert error["details"]["status"] == "error"
    await child.ask_refused("parent_unavailable")


async def test_parent_gone_ends_the_question_as_error(w: Wire) -> None:
    """A parent whose host stops beating is gone within lease and two seconds, and so are its questions."""
    parent_id = await w.open(lease_ms=1000)
    async with w.beating(parent_id):
        parent = await w.start(parent_id)
        child = await parent.spawn()
        topic = await child.topic()
        question = await child.ask(timeout_ms=600_000)
    silent_since = now()
    seen = await topic.until("question", question["request_id"], *ENDS)
    assert (seen.event, seen.data["reason"]) == ("error", "parent_unavailable")
    assert now() - silent_since < 1 + 2 + 3
    assert (await w.run(child.run_id))["status"] == "running"


async def test_parent_that_beats_is_never_taken_for_gone(w: Wire) -> None:
    """A parent within its lease keeps its child's question open, over many leases."""
    parent_id = await w.open(lease_ms=1000)
    async with w.beating(parent_id):
        parent = await w.start(parent_id)
        child = await parent.spawn()
        question = await child.ask()
        await at(now() + 5)
        assert (await w.question(question["request_id"]))["status"] == "waiting"
        await parent.answer(question["request_id"], "SQLite.")


async def test_close_and_ask_at_once_leave_nothing_open(w: Wire) -> None:
    """A question that races with its parent's close is refused, or ends as error: none stays open."""
    for _ in range(8):
        parent, child = await w.family()
        asked, closed = await asyncio.gather(
            w.reply_to(f"cmd.{child.caller}.question.ask", child.asking("Which database?", {})),
            w.reply_to(f"cmd.{parent.caller}.session.close", {"cascade": False}),
        )
        assert closed["ok"], closed
        if asked["ok"]:
            ended = await w.until_question(asked["result"]["question"]["request_id"])
            assert (ended["status"], ended["reason"]) == ("error", "parent_unavailable")
        else:
            assert asked["error"]["code"] == "parent_unavailable"


async def test_answer_cancel_and_close_at_once_leave_one_end(w: Wire) -> None:
    """Answer, cancel, settle and close in flight together: one end, and every copy names the same."""
    for _ in range(8):
        parent, child = await w.family()
        question = await child.ask()
        request = {"request_id": question["request_id"]}
        await asyncio.gather(
            w.reply_to(f"cmd.{parent.caller}.question.answer", {**request, "answer": "SQLite."}),
            w.reply_to(f"cmd.{child.caller}.question.cancel", request),
            w.reply_to(f"cmd.{child.caller}.run.settle", {"run_id": child.run_id, "outcome": "completed"}),
            w.reply_to(f"cmd.{parent.caller}.session.close", {"cascade": False}),
        )
        record = await w.until_question(question["request_id"])
        assert await w.ends(child.run_id, question["request_id"]) == [record["status"]]
        copies = await w.history(parent.run_id, f"child.{child.run_id}.question.{question['request_id']}.*")
        assert [s.event for s in copies if s.event in ENDS] == [record["status"]]


# Seeing and waiting


async def test_question_get_shows_it_to_those_concerned(w: Wire) -> None:
    """The child, its ancestors and an operator see a question; for all others it does not exist."""
    top = await w.start(await w.open())
    parent = await top.spawn()
    child = await parent.spawn()
    grandchild = await child.spawn()
    sibling = await parent.spawn()
    question = await child.ask()
    for caller in (child.caller, parent.caller, top.caller, OPERATOR):
        assert await w.question(question["request_id"], caller) == question
    for caller in (sibling.caller, grandchild.caller, await w.open(), uid("nobody")):
        foreign = await w.query_refused(
            "unknown_request", caller, "question.get", request_id=question["request_id"]
        )
        nothing = await w.query_refused("unknown_request", caller, "question.get", request_id="no-such")
        assert foreign["message"].replace(question["request_id"], "") == nothing["message"].replace(
            "no-such", ""
        )


async def test_question_list_is_oldest_first_and_stable(w: Wire) -> None:
    """A parent's list keeps its order while questions come and go."""
    parent = await w.start(await w.open())
    children = [await parent.spawn() for _ in range(6)]
    asked = [(await child.ask())["request_id"] for child in children]
    assert await w.questions(parent.session_id) == asked
    await parent.answer(asked[2], "x")
    assert await w.questions(parent.session_id) == [*asked[:2], *asked[3:]]
    again = (await children[2].ask("And which colour?"))["request_id"]
    assert await w.questions(parent.session_id) == [*asked[:2], *asked[3:], again]
    assert await w.questions(parent.session_id, status="answered") == [asked[2]]
    assert await w.questions(parent.session_id, status="timed_out") == []


async def test_question_list_pages_by_cursor(w: Wire) -> None:
    """Pages of two show each question once, in order, and then end."""
    parent = await w.start(await w.open())
    asked = [(await (await parent.spawn()).ask())["request_id"] for _ in range(5)]
    first = await w.query(parent.session_id, "question.list", limit=2)
    assert [q["request_id"] for q in first["questions"]] == asked[:2]
    assert first["cursor"]
    assert await w.questions(parent.session_id, limit=2) == asked
    assert await w.questions(parent.session_id, limit=5) == asked
    assert not (await w.query(parent.session_id, "question.list", limit=100))["cursor"]


async def test_question_list_by_scope(w: Wire) -> None:
    """Mine is what I am asked; the tree is what is asked anywhere below me; nobody sees a stranger's."""
    top = await w.start(await w.open())
    parent = await top.spawn()
    child = await parent.spawn()
    to_parent = (await child.ask())["request_id"]
    to_top = (await parent.ask("Which colour?"))["request_id"]
    assert await w.questions(top.session_id) == [to_top]
    assert await w.questions(top.session_id, scope="mine") == [to_top]
    assert await w.questions(top.session_id, scope="tree") == [to_parent, to_top]
    assert await w.questions(parent.session_id) == [to_parent]
    stranger = await w.open()
    assert await w.questions(stranger) == []
    assert await w.questions(stranger, scope="tree") == []
    everything = await w.questions(OPERATOR, scope="tree")
    assert {to_parent, to_top} <= set(everything)


async def test_question_wait_returns_with_the_end(w: Wire) -> None:
    """A child that waits by query hears the end when it comes."""
    parent, child = await w.family()
    question = await child.ask()
    waiting = asyncio.create_task(
        w.query(
            child.caller, "question.wait", request_id=question["request_id"], timeout_ms=20_000, within=25
        )
    )
    await at(now() + 0.5)
    assert not waiting.done()
    await parent.answer(question["request_id"], "SQLite.")
    began = now()
    record = (await waiting)["question"]
    assert (record["status"], record["answer"]) == ("answered", "SQLite.")
    assert now() - began < 8
    again = await w.query(child.caller, "question.wait", request_id=question["request_id"], timeout_ms=20_000)
    assert again["question"] == record


async def test_question_wait_that_runs_out_shows_it_waiting(w: Wire) -> None:
    """A bounded wait ends in time with the question as it stands."""
    _, child = await w.family()
    question = await child.ask()
    began = now()
    waited = await w.query(child.caller, "question.wait", request_id=question["request_id"], timeout_ms=700)
    assert waited["question"] == question
    assert 0.6 <= now() - began < 6
    await w.query_refused(
        "unknown_request", await w.open(), "question.wait", request_id=question["request_id"], timeout_ms=100
    )


async def test_run_wait_returns_early_with_the_question(w: Wire) -> None:
    """A parent that waits in the foreground hears the question, answers, and waits again for the result."""
    parent, child = await w.family(background=False)
    waiting = asyncio.create_task(
        w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000, within=25)
    )
    question = await child.ask()
    heard = await waiting
    assert heard["state"] == "question"
    assert heard["question"]["request_id"] == question["request_id"]
    assert heard["run"]["run_id"] == child.run_id
    assert heard["run"]["status"] == "running"
    await parent.answer(question["request_id"], "SQLite.")
    again = asyncio.create_task(
        w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000, within=25)
    )
    await child.settle(answer="Built on SQLite.")
    result = await again
    assert result["state"] == "settled"
    assert result["run"]["answer"] == "Built on SQLite."


async def test_run_wait_sees_a_question_that_is_already_open(w: Wire) -> None:
    """A wait that begins after the question was asked returns at once with it."""
    parent, child = await w.family()
    question = await child.ask()
    began = now()
    heard = await w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000)
    assert heard["state"] == "question"
    assert heard["question"]["request_id"] == question["request_id"]
    assert now() - began < 8


async def test_claim_hands_over_the_runs_questions_with_their_ends(w: Wire) -> None:
    """The runner that takes over a run learns what was asked before it came, and how that ended."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    await w.do(
        parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id, lease_ms=1000
    )
    first = await Runner(w, agent).take(every=0.2)
    done = await first.turn.ask("Which database?")
    await parent.answer(done["request_id"], "SQLite.")
    still = await first.turn.ask("Which colour should the header have?")
    first.die()
    second = await Runner(w, agent).take()
    assert second.turn.run_id == first.turn.run_id
    assert second.turn.attempt == 2
    found = {q["request_id"]: (q["status"], q["answer"]) for q in second.questions}
    assert found == {done["request_id"]: ("answered", "SQLite."), still["request_id"]: ("waiting", None)}
    await parent.answer(still["request_id"], "Blue.")
    assert (await w.question(still["request_id"]))["status"] == "answered"
    assert (await second.turn.settle())["outcome"] == "completed"


async def test_runner_hears_what_became_of_its_question_after_the_run(w: Wire) -> None:
    """It held the run to its end, so what it asked there is not unknown to it."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    await w.do(parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id)
    runner, stranger = Runner(w, agent), uid("runner")
    claim = await runner.take()
    asked = {"request_id": (await claim.turn.ask("Which database?"))["request_id"]}
    await w.query_refused("unknown_request", stranger, "question.get", **asked)
    await claim.turn.settle(answer="Built without.")
    for verb, more in (("question.wait", {"timeout_ms": 5000}), ("question.get", {})):
        assert (await w.query(runner.id, verb, **asked, **more))["question"]["status"] == "cancelled"
        await w.query_refused("unknown_request", stranger, verb, **asked, **more)


async def test_requested_precedes_its_end_on_every_reading(w: Wire) -> None:
    """A live subscriber on the parent's topic and a later reader see requested and its end in that order."""
    parent, child = await w.family()
    above = await parent.topic()
    question = await child.ask()
    await parent.answer(question["request_id"], "SQLite.")
    seen = await above.until_all(
        "question", question["request_id"], child=child.run_id, count=2, within=WITHIN
    )
    assert [s.event for s in seen] == ["requested", "answered"]
    stored = await w.history(parent.run_id, f"child.{child.run_id}.question.>")
    assert [s.event for s in select(stored, "question", question["request_id"])] == ["requested", "answered"]


async def test_introspection_shows_a_question_from_asking_to_its_end(w: Wire) -> None:
    """The log of a run holds the question's originals, once each and in order."""
    parent, child = await w.family()
    question = await child.ask()
    await parent.answer(question["request_id"], "SQLite.")
    events = await w.pages(OPERATOR, "log.introspect", "events", run_id=child.run_id)
    mine = [e["type"] for e in events if e["type"].startswith("parent_question_")]
    assert mine == ["parent_question_requested", "parent_question_answered"]
