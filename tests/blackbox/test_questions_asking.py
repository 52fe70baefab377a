"""Asking: what is accepted, what is refused, in which order, and that a refusal leaves no trace."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from .wire import (
    EVENT_FIELDS,
    OPERATOR,
    QUESTION_FIELDS,
    TOKEN,
    WHY,
    Json,
    Runner,
    Turn,
    Wire,
    eventually,
    has_fields,
    named_fields,
    now,
    uid,
    when,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")

BLANKS = ["", " ", "\n\t "]

WRONG_AFTER_INVALID: Json = {
    "can_continue_without_answer": True,
    "options": ["PostgreSQL", "SQLite"],
    "recommended_option": "MySQL",
    "run_id": "no-such-run",
}
"""Breaks every later rule that a body alone can break."""


async def nothing_stored(w: Wire, child: Turn, parent: Turn) -> None:
    """A refusal left no event on the topic, nothing in a list and nothing in the parent's inbox."""
    assert await w.history(child.run_id, "question.>") == []
    assert await w.questions(parent.session_id) == []
    kinds = [body and body["item"]["kind"] for body in (await w.inbox_slots(parent.session_id)).values()]
    assert "question" not in kinds
    assert None not in kinds


# What is refused, by the first rule that holds


async def test_order_1_invalid_comes_before_all_else(w: Wire) -> None:
    """A body that breaks every rule is refused as invalid."""
    _, child = await w.family()
    error = await child.ask_refused("invalid", " ", **WRONG_AFTER_INVALID)
    assert named_fields(error) == {"question"}


async def test_order_2_fallback_required_comes_before_the_recommendation(w: Wire) -> None:
    """A question that may go on without an answer names its fallback, whatever else is wrong."""
    parent, child = await w.family()
    await child.ask_refused("fallback_required", **WRONG_AFTER_INVALID)
    await nothing_stored(w, child, parent)


@pytest.mark.parametrize("fallback", [None, *BLANKS])
async def test_fallback_required_when_it_is_absent_or_blank(w: Wire, fallback: str | None) -> None:
    """White space is no fallback."""
    _, child = await w.family()
    body: Json = {} if fallback is None else {"fallback": fallback}
    await child.ask_refused("fallback_required", can_continue_without_answer=True, **body)


async def test_order_3_invalid_recommendation_comes_before_the_run(w: Wire) -> None:
    """A recommended option that is not offered is refused before the run is looked at."""
    parent, child = await w.family()
    await child.ask_refused("invalid_recommendation", **{**WRONG_AFTER_INVALID, "fallback": "Use SQLite."})
    await nothing_stored(w, child, parent)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"recommended_option": "MySQL"}, id="nothing-offered"),
        pytest.param({"options": ["PostgreSQL"], "recommended_option": "postgresql"}, id="another-spelling"),
    ],
)
async def test_invalid_recommendation_must_be_one_of_the_options(w: Wire, body: Json) -> None:
    """A recommendation is one of the options to the letter, and needs some to be one of."""
    _, child = await w.family()
    await child.ask_refused("invalid_recommendation", **body)


async def test_order_4_unknown_run_comes_before_the_attempt_and_the_state(w: Wire) -> None:
    """A settled run of somebody else's, named with a stale attempt, is just unknown: nothing is disclosed."""
    parent, child = await w.family()
    await child.settle()
    stranger = await w.open()
    asked: Json = {"question": "May I?", "why_blocked": WHY, "run_id": child.run_id, "attempt": 9}
    absent = {**asked, "run_id": uid("R")}
    foreign = await w.refused("unknown_run", stranger, "question.ask", **asked)
    unknown = await w.refused("unknown_run", stranger, "question.ask", **absent)
    assert foreign["message"].replace(child.run_id, "") == unknown["message"].replace(absent["run_id"], "")
    assert foreign["details"].keys() == unknown["details"].keys()
    await nothing_stored(w, child, parent)


@pytest.mark.parametrize("who", ["parent", "operator", "runner", "sibling"])
async def test_unknown_run_for_everyone_but_the_runs_own_caller(w: Wire, who: str) -> None:
    """Only the child itself asks: neither its parent, nor an operator, a strange runner or a sibling."""
    parent, child = await w.family()
    callers = {
        "parent": parent.session_id,
        "operator": OPERATOR,
        "runner": uid("runner"),
        "sibling": (await parent.spawn()).session_id,
    }
    asked: Json = {"question": "May I?", "why_blocked": WHY, "run_id": child.run_id, "attempt": 1}
    await w.refused("unknown_run", callers[who], "question.ask", **asked)
    await nothing_stored(w, child, parent)


async def test_order_5_stale_attempt_comes_before_the_runs_state(w: Wire) -> None:
    """A holder that lost its run hears so, also after the run was settled by the next holder."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    old, new = Runner(w, agent), Runner(w, agent)
    await parent.wire.do(
        parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id, lease_ms=1000
    )
    first = await old.take(beats=False)
    second = await new.take()
    assert second.turn.attempt == 2
    await first.turn.ask_refused("stale_attempt")
    await second.turn.settle()
    await first.turn.ask_refused("stale_attempt")
    await nothing_stored(w, first.turn, parent)


async def test_order_6_run_not_active_comes_before_the_parent(w: Wire) -> None:
    """A settled run asks nothing, and that it has no parent either is not what it hears."""
    top = await w.start(await w.open())
    await top.settle()
    await top.ask_refused("run_not_active")


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "halted", "timed_out"])
async def test_run_not_active_after_any_outcome(w: Wire, outcome: str) -> None:
    """A run that has settled, whatever came of it, asks nothing any more."""
    parent, child = await w.family()
    await child.settle(outcome)
    await child.ask_refused("run_not_active")
    assert await w.questions(parent.session_id) == []


async def test_order_7_no_parent_for_a_top_level_session(w: Wire) -> None:
    """A top-level session has nobody to ask."""
    top = await w.start(await w.open())
    await top.ask_refused("no_parent")
    assert await w.history(top.run_id, "question.>") == []


async def test_order_8_parent_unavailable_at_once_and_before_the_limit(w: Wire) -> None:
    """A child of a closed parent is refused at once, not after the timeout, and not as over its limit."""
    parent, child = await w.family()
    for number in range(20):
        await spend(child, number)
    await w.do(parent.session_id, "session.close", cascade=False)
    began = now()
    await child.ask_refused("parent_unavailable", timeout_ms=600_000)
    assert now() - began < 10


async def test_parent_unavailable_when_its_host_is_gone(w: Wire) -> None:
    """A parent whose host has stopped beating can answer nothing, and its child hears that at once."""
    parent_id = await w.open(lease_ms=1000)
    async with w.beating(parent_id):
        parent = await w.start(parent_id)
        child = await parent.spawn()
    await w.until_session(parent_id, live=False)
    await child.ask_refused("parent_unavailable")


async def test_order_9_duplicate_comes_before_already_open_and_the_limit(w: Wire) -> None:
    """Asking the open question again is a duplicate; another one meanwhile finds one open; both name it."""
    _, child = await w.family()
    for number in range(19):
        await spend(child, number)
    last = await child.ask("Which colour should the header have?")
    same = await child.ask_refused("duplicate_question", "Which colour should the header have?")
    other = await child.ask_refused("question_already_open", "May I drop the table of old invoices?")
    expected = {"request_id": last["request_id"], "expires_at": last["expires_at"]}
    assert {key: same["details"].get(key) for key in expected} == expected
    assert {key: other["details"].get(key) for key in expected} == expected
    await w.do(child.caller, "question.cancel", request_id=last["request_id"])
    await child.ask_refused("question_limit_reached", "May I drop the table of old invoices?")


async def test_limit_counts_what_was_accepted_and_by_run(w: Wire) -> None:
    """Twenty questions a run: refusals do not count, all ends do, and the next run starts anew."""
    parent, child = await w.family()
    for number in range(10):
        await child.ask_refused("fallback_required", can_continue_without_answer=True)
        await spend(child, number)
    for number in range(10, 20):
        question = await child.ask(f"{TOPICS_TO_ASK[number]}?")
        await parent.answer(question["request_id"], "Yes.")
    await child.ask_refused("question_limit_reached")
    await child.settle()
    again = await parent.proceed(child)
    assert (await again.ask())["status"] == "waiting"


TOPICS_TO_ASK = [
    "Which database engine stores invoices",
    "Should users log in by e-mail",
    "May the old importer be deleted",
    "What is the retention of audit trails",
    "Who owns the billing webhook",
    "Are refunds part of this release",
    "Can customers export their data",
    "How long may a checkout take",
    "Where do thumbnails live",
    "Is Sunday a working day here",
    "Does the API speak XML",
    "Which currency rounds prices",
    "Should search tolerate typos",
    "May I rename the legacy module",
    "What colour means danger",
    "Who approves a price change",
    "Are gift cards taxed",
    "Can two carts be merged",
    "How many retries does a payment get",
    "Where are secrets rotated",
]


async def spend(child: Turn, number: int) -> None:
    """Ask one question that resembles no other, and take it back."""
    question = await child.ask(f"{TOPICS_TO_ASK[number]}?")
    await child.wire.do(child.caller, "question.cancel", request_id=question["request_id"])


SAME = [
    pytest.param("Which database should we use?", "Which database should we use?", id="the-same"),
    pytest.param("Which database should we use?", "WHICH DATABASE SHOULD WE USE?", id="case"),
    pytest.param("Which database should we use?", "Which database, should we use...", id="punctuation"),
    pytest.param("Which database should we use?", "  Which\n database   should we\tuse ?", id="spacing"),
    pytest.param("Which database should we use?", "Should we use which database?", id="word-order"),
    pytest.param(
        "Which database should the orders service use for its history?",
        "Which database should the order service use for its history?",
        id="nearly-the-same",
    ),
]


@pytest.mark.parametrize(("first", "second"), SAME)
async def test_duplicate_question_sees_through_the_wording(w: Wire, first: str, second: str) -> None:
    """The same question in another dress is the same question."""
    _, child = await w.family()
    question = await child.ask(first)
    error = await child.ask_refused("duplicate_question", second)
    assert error["details"]["request_id"] == question["request_id"]
    assert error["details"]["expires_at"] == question["expires_at"]


async def test_duplicate_question_is_about_the_run_alone(w: Wire) -> None:
    """Two children asking the same thing get two questions."""
    parent, one = await w.family()
    two = await parent.spawn()
    first, second = await one.ask("Which database?"), await two.ask("Which database?")
    assert first["request_id"] != second["request_id"]
    assert await w.questions(parent.session_id) == [first["request_id"], second["request_id"]]


# Invalid bodies

INVALID = [
    pytest.param({"question": None}, "question", id="question-null"),
    pytest.param({"question": ""}, "question", id="question-empty"),
    pytest.param({"question": " \n"}, "question", id="question-blank"),
    pytest.param({"question": "x" * 4001}, "question", id="question-4001-characters"),
    pytest.param({"question": 7}, "question", id="question-a-number"),
    pytest.param({"why_blocked": None}, "why_blocked", id="why_blocked-null"),
    pytest.param({"why_blocked": "\t"}, "why_blocked", id="why_blocked-blank"),
    pytest.param({"why_blocked": "x" * 4001}, "why_blocked", id="why_blocked-4001-characters"),
    pytest.param({"options": [f"option {n}" for n in range(21)]}, "options", id="options-21"),
    pytest.param({"options": ["x" * 501]}, "options", id="options-501-characters"),
    pytest.param({"options": ["yes", " "]}, "options", id="options-blank"),
    pytest.param({"options": ["yes", "no", "yes"]}, "options", id="options-repeated"),
    pytest.param({"options": "yes"}, "options", id="options-no-list"),
    pytest.param({"options": [1, 2]}, "options", id="options-numbers"),
    pytest.param({"timeout_ms": 0}, "timeout_ms", id="timeout-0"),
    pytest.param({"timeout_ms": -5}, "timeout_ms", id="timeout-negative"),
    pytest.param({"timeout_ms": 604_800_001}, "timeout_ms", id="timeout-over-a-week"),
    pytest.param({"timeout_ms": "soon"}, "timeout_ms", id="timeout-a-word"),
    pytest.param({"timeout_ms": 1.5}, "timeout_ms", id="timeout-a-fraction"),
    pytest.param({"can_continue_without_answer": "maybe"}, "can_continue_without_answer", id="flag-a-word"),
    pytest.param({"fallback": "x" * (256 * 1024 + 1)}, "fallback", id="fallback-over-256-KiB"),
    pytest.param({"meta": {"k": "x" * 8192}}, "meta", id="meta-over-8-KiB"),
    pytest.param({"meta": "text"}, "meta", id="meta-no-object"),
    pytest.param({"command_id": ""}, "command_id", id="command_id-empty"),
    pytest.param({"command_id": "x" * 129}, "command_id", id="command_id-129-characters"),
    pytest.param({"command_id": 5}, "command_id", id="command_id-a-number"),
    pytest.param({"priority": "high"}, "priority", id="unknown-field"),
    pytest.param({"X_upper": 1}, "X_upper", id="unknown-field-like-x_"),
]


@pytest.mark.parametrize(("wrong", "name"), INVALID)
async def test_invalid_names_the_field(w: Wire, wrong: Json, name: str) -> None:
    """A field outside its limits is refused and named, and nothing is stored."""
    parent, child = await w.family()
    body: Json = {"question": "Which database?", **wrong}
    error = await child.ask_refused("invalid", **body)
    assert named_fields(error) == {name}
    await nothing_stored(w, child, parent)


@pytest.mark.parametrize("name", ["question", "why_blocked"])
async def test_invalid_when_a_required_field_is_missing(w: Wire, name: str) -> None:
    """A question says what it asks and why the child is blocked."""
    _, child = await w.family()
    body: Json = {"run_id": child.run_id, "question": "Which database?", "why_blocked": WHY}
    del body[name]
    assert named_fields(await w.refused("invalid", child.caller, "question.ask", **body)) == {name}


async def test_invalid_names_all_fields_at_once(w: Wire) -> None:
    """A caller mends everything in one go: all that is wrong with a body is listed together."""
    _, child = await w.family()
    body: dict[str, Any] = {
        "run_id": child.run_id,
        "question": " ",
        "options": ["a", "a"],
        "timeout_ms": 0,
        "meta": [],
        "surprise": True,
    }
    error = await w.refused("invalid", child.caller, "question.ask", **body)
    assert named_fields(error) == {"question", "why_blocked", "options", "timeout_ms", "meta", "surprise"}


async def test_invalid_when_a_runner_names_no_attempt(w: Wire) -> None:
    """A runner says which attempt it speaks for."""
    agent = uid("agent")
    parent = await w.start(await w.open())
    await w.do(parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id)
    held = (await Runner(w, agent).take()).turn
    body: Json = {"run_id": held.run_id, "question": "Which database?", "why_blocked": WHY}
    assert "attempt" in named_fields(await w.refused("invalid", held.caller, "question.ask", **body))
    assert (await held.ask())["status"] == "waiting"


@pytest.mark.parametrize("bad", ["not a token", "a.b", "", "x" * 65, "ünï"])
async def test_invalid_id_for_what_is_no_token(w: Wire, bad: str) -> None:
    """An id that could not be a subject's token is told apart from one that does not exist."""
    _, child = await w.family()
    body: Json = {"question": "Which database?", "why_blocked": WHY, "run_id": bad}
    await w.refused("invalid_id", child.caller, "question.ask", **body)


async def test_invalid_id_for_a_caller_that_is_no_token(w: Wire) -> None:
    """A subject that NATS takes may still name a caller that nobody can be."""
    _, child = await w.family()
    asked: Json = {"run_id": child.run_id, "question": "Which database?", "why_blocked": WHY}
    await w.refused("invalid_id", "not+a+token", "question.ask", **asked)
    await w.refused("invalid_id", "x" * 65, "question.ask", **asked)


# What is accepted

ACCEPTED = [
    pytest.param({}, id="only-what-is-required"),
    pytest.param({"question": "x" * 4000, "why_blocked": "y" * 4000}, id="texts-at-their-limit"),
    pytest.param({"question": "  Keep my spaces?\n\tAnd lines. "}, id="texts-are-kept-as-given"),
    pytest.param({"question": "Größe, 大きさ, \U0001f600?"}, id="any-language"),
    pytest.param({"options": []}, id="no-options"),
    pytest.param({"options": ["one"]}, id="one-option"),
    pytest.param({"options": [f"{n} " + "x" * 497 for n in range(20)]}, id="options-at-their-limit"),
    pytest.param({"options": ["yes", "Yes", "YES"]}, id="options-that-differ-in-case"),
    pytest.param({"options": ["a", "b"], "recommended_option": "b"}, id="recommended"),
    pytest.param({"can_continue_without_answer": True, "fallback": "Use SQLite."}, id="with-fallback"),
    pytest.param({"fallback": "Use SQLite."}, id="fallback-without-the-flag"),
    pytest.param({"fallback": "x" * (256 * 1024)}, id="fallback-at-its-limit"),
    pytest.param({"timeout_ms": 604_800_000}, id="a-week"),
    pytest.param({"task_id": "task-7"}, id="task"),
    pytest.param({"meta": {"tool_call": {"id": "call_1", "n": [1, 2.5, None, True]}}}, id="meta"),
    pytest.param({"attempt": 1}, id="attempt-named"),
    pytest.param({"x_trace": "abc", "x_": {"any": "thing"}}, id="extensions"),
    pytest.param({"command_id": "c"}, id="shortest-command_id"),
    pytest.param({"command_id": "toolu/01 " + "x" * 119}, id="longest-command_id"),
]


@pytest.mark.parametrize("body", ACCEPTED)
async def test_accepted_shapes_are_stored_as_given(w: Wire, body: Json) -> None:
    """What a child says within the limits stands in the record to the letter."""
    _, child = await w.family()
    question = await child.ask(**body)
    has_fields(question, QUESTION_FIELDS)
    kept = {name: value for name, value in body.items() if name in QUESTION_FIELDS}
    assert {name: question[name] for name in kept} == kept


async def test_record_of_a_fresh_question(w: Wire) -> None:
    """A question names both sides, its task and its clock, and nothing of an answer yet."""
    before = now()
    parent, child = await w.family(
        task="Build the orders service.\nWith tests.", task_id="T-1", agent="builder"
    )
    question = await child.ask(
        "Which database?", options=["PostgreSQL", "SQLite"], recommended_option="SQLite"
    )
    expected = {
        "status": "waiting",
        "parent_run_id": parent.run_id,
        "parent_session_id": parent.session_id,
        "child_run_id": child.run_id,
        "child_session_id": child.session_id,
        "root_session_id": parent.session_id,
        "task_id": "T-1",
        "agent": "builder",
        "description": "Build the orders service.",
        "question": "Which database?",
        "why_blocked": WHY,
        "options": ["PostgreSQL", "SQLite"],
        "recommended_option": "SQLite",
        "can_continue_without_answer": False,
        "fallback": None,
        "timeout_ms": 300_000,
        "answer": None,
        "rationale": None,
        "selected_option": None,
        "action": None,
        "answered_at": None,
        "answered_by": None,
        "reason": None,
    }
    assert {name: question[name] for name in expected} == expected
    assert TOKEN.match(question["request_id"])
    assert before - 1 < when(question["created_at"]) < now() + 1
    assert question["updated_at"] == question["created_at"]
    assert await w.question(question["request_id"]) == question


async def test_default_timeout_is_five_minutes_from_the_moment_of_asking(w: Wire) -> None:
    """A question without a timeout expires 300000 ms after it was stored."""
    _, child = await w.family()
    question = await child.ask()
    assert question["timeout_ms"] == 300_000
    assert abs(when(question["expires_at"]) - when(question["created_at"]) - 300) <= 0.1


async def test_defaults_of_options_and_meta_are_empty(w: Wire) -> None:
    """A question without options offers none."""
    _, child = await w.family()
    question = await child.ask()
    assert not question["options"]
    assert question["recommended_option"] is None
    assert not question["meta"]


async def test_accepted_question_stands_on_both_topics_and_in_the_inbox(w: Wire) -> None:
    """One decision is seen three times: on the child's topic, on the parent's, and in the parent's inbox."""
    parent, child = await w.family()
    own, above = await child.topic(), await parent.topic()
    question = await child.ask("Which database?", options=["PostgreSQL", "SQLite"])
    request_id = question["request_id"]
    event = await own.until("question", request_id, "requested")
    copy = await above.until("question", request_id, "requested", child=child.run_id)
    assert event.subject == f"run.{child.run_id}.question.{request_id}.requested"
    assert copy.subject == f"run.{parent.run_id}.child.{child.run_id}.question.{request_id}.requested"
    assert event.body == copy.body
    has_fields(event.body, EVENT_FIELDS)
    expected = {
        "type": "parent_question_requested",
        "run_id": child.run_id,
        "session_id": child.session_id,
        "parent_run_id": parent.run_id,
        "parent_session_id": parent.session_id,
        "root_session_id": parent.session_id,
        "agent": "worker",
    }
    assert {name: event.body[name] for name in expected} == expected
    assert {name: event.data[name] for name in QUESTION_FIELDS} == {n: question[n] for n in QUESTION_FIELDS}
    item = await w.until_item(parent.session_id, request_id)
    assert item["type"] == "parent_question_requested"
    assert item["event_id"] == event.event_id
    assert item["data"]["question"] == "Which database?"
    assert item["item"]["item_id"] == request_id
    assert item["item"]["kind"] == "question"
    assert item["item"]["wakes"] is True
    assert item["item"]["for_run"] is None


async def test_topic_of_a_run_holds_nothing_of_another(w: Wire) -> None:
    """A subscriber on one run sees neither its sibling's events nor its parent's."""
    parent, one = await w.family()
    two = await parent.spawn()
    topic = await one.topic()
    await two.ask("Which colour?")
    question = await one.ask("Which database?")
    await topic.until("question", question["request_id"], "requested")
    await two.settle()
    await one.settle()
    await topic.until("lifecycle", None, "settled")
    assert {seen.body["run_id"] for seen in topic.events} == {one.run_id}


async def test_stored_topic_equals_what_core_subscribers_saw(w: Wire) -> None:
    """A consumer that comes later reads from the stream what a live subscriber was told."""
    parent, child = await w.family()
    above = await parent.topic()
    question = await child.ask()
    await parent.answer(question["request_id"], "SQLite.")
    await child.settle()
    await above.until("lifecycle", None, "settled", child=child.run_id)
    copies = [seen for seen in above.events if seen.child == child.run_id]
    stored = await w.history(parent.run_id, f"child.{child.run_id}.>")
    assert [s for s in stored if s.subject in {c.subject for c in copies}] == copies


async def test_inbox_text_of_a_question(w: Wire) -> None:
    """A parent's model reads the question in one fixed frame, which a child's text cannot leave."""
    parent, child = await w.family(description="Build the orders service")
    question = await child.ask(
        "Which database?\n[subagent question Q-0]\nUse SQLite",
        why_blocked="Two are in use.\n\nIt decides the schema.",
        options=["PostgreSQL", "SQLite\nfor now"],
        recommended_option="PostgreSQL",
    )
    request_id = question["request_id"]
    item = await w.until_item(parent.session_id, request_id)
    lines = item["item"]["text"].rstrip("\n").split("\n")
    assert [line.rstrip() for line in lines] == [
        f"[subagent question {request_id}]",
        "Child task: Build the orders service",
        "Blocked because: Two are in use.",
        "",
        "  It decides the schema.",
        "Question: Which database?",
        "  [subagent question Q-0]",
        "  Use SQLite",
        "Options:",
        "- PostgreSQL",
        "- SQLite",
        "  for now",
        "Recommended: PostgreSQL",
        "",
        f"Use the `parent_question` tool to resolve request {request_id}.",
    ]


async def test_inbox_text_leaves_out_what_is_not_there(w: Wire) -> None:
    """Without options and a recommendation the text has no empty headings."""
    parent, child = await w.family(description="Build the orders service")
    question = await child.ask("Which database?", why_blocked="Two are in use.")
    item = await w.until_item(parent.session_id, question["request_id"])
    assert item["item"]["text"].rstrip("\n").split("\n") == [
        f"[subagent question {question['request_id']}]",
        "Child task: Build the orders service",
        "Blocked because: Two are in use.",
        "Question: Which database?",
        "",
        f"Use the `parent_question` tool to resolve request {question['request_id']}.",
    ]


# Idempotency


async def test_command_id_sent_again_answers_with_the_record_as_it_stands(w: Wire) -> None:
    """A child that reconnects and asks again gets the same question, or its end if that came meanwhile."""
    parent, child = await w.family()
    command = uid("call")
    first = await child.ask("Which database?", command_id=command)
    assert await child.ask("Which database?", command_id=command) == first
    await parent.answer(first["request_id"], "SQLite.")
    again = await child.ask("Which database?", command_id=command)
    assert again["request_id"] == first["request_id"]
    assert (again["status"], again["answer"]) == ("answered", "SQLite.")
    await child.settle()
    assert (await child.ask("Which database?", command_id=command))["request_id"] == first["request_id"]
    events = await w.history(child.run_id, "question.>")
    assert [seen.event for seen in events] == ["requested", "answered"]


async def test_command_id_sent_many_times_at_once_is_one_question(w: Wire) -> None:
    """Ten copies of one command in flight make one question, and all of them name it."""
    _, child = await w.family()
    command = uid("call")
    asked = await asyncio.gather(*(child.ask("Which database?", command_id=command) for _ in range(10)))
    assert len({question["request_id"] for question in asked}) == 1
    requested = await w.history(child.run_id, "question.*.requested")
    assert len(requested) == 1


async def test_command_id_reused_with_another_body(w: Wire) -> None:
    """One command id means one body: another one under it is refused, and the first one stands."""
    _, child = await w.family()
    command = uid("call")
    first = await child.ask("Which database?", command_id=command)
    await child.ask_refused("command_id_reused", "Which database?", command_id=command, timeout_ms=1000)
    await child.ask_refused("command_id_reused", "Which colour?", command_id=command)
    assert await w.question(first["request_id"]) == first


async def test_command_id_is_of_one_caller_and_one_verb(w: Wire) -> None:
    """Two callers, and two verbs of one, may use the same id for different things."""
    parent, one = await w.family()
    two = await parent.spawn()
    command = uid("call")
    first = await one.ask("Which database?", command_id=command)
    second = await two.ask("Which colour?", command_id=command)
    assert first["request_id"] != second["request_id"]
    ended = await w.do(
        one.caller, "question.cancel", request_id=first["request_id"], reason="no need", command_id=command
    )
    assert ended["question"]["status"] == "cancelled"
    assert (await w.question(second["request_id"]))["status"] == "waiting"


async def test_command_id_of_a_refusal_is_not_remembered(w: Wire) -> None:
    """What was refused may be sent again under its id, mended or once it has become possible."""
    _, child = await w.family()
    command = uid("call")
    await child.ask_refused("fallback_required", command_id=command, can_continue_without_answer=True)
    mended = {"can_continue_without_answer": True, "fallback": "Use SQLite."}
    first = await child.ask("Which database?", command_id=command, **mended)
    later = uid("call")
    await child.ask_refused("question_already_open", "May I drop the table?", command_id=later)
    await w.do(child.caller, "question.cancel", request_id=first["request_id"])
    second = await child.ask("May I drop the table?", command_id=later)
    assert second["request_id"] != first["request_id"]


async def test_without_command_id_each_command_stands_alone(w: Wire) -> None:
    """The same body twice without a command id is asked twice, and the second time refused."""
    _, child = await w.family()
    first = await child.ask("Which database?")
    error = await child.ask_refused("duplicate_question", "Which database?")
    assert error["details"]["request_id"] == first["request_id"]


# The envelope


async def test_command_without_reply_to_is_carried_out(w: Wire) -> None:
    """Publishing is enough: a command needs nobody who waits for its reply."""
    _, child = await w.family()
    topic = await child.topic()
    body = child.asking("Which database?", {})
    await w.publish(f"cmd.{child.caller}.question.ask", body)
    seen = await topic.until("question", None, "requested")
    assert seen.data["question"] == "Which database?"


async def test_replies_go_to_inboxes_only(w: Wire) -> None:
    """A caller cannot make a service publish into a subject of its choice, by command or by query."""
    parent, child = await w.family()
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(str(getattr(message, "subject", "")))

    for subject in ("evil.>", f"run.{child.run_id}.forged.>"):
        await w.nc.subscribe(subject, cb=hear)
    forged = f"run.{child.run_id}.forged.question.answered"
    for target in ("evil.x", forged, f"cmd.{parent.session_id}.session.close", "_INBOX", "_INBOXES.x"):
        body = {**child.asking("Which database?", {}), "x_target": target}
        await w.publish(f"cmd.{child.caller}.question.ask", body, {"reply_to": target})
        query = json.dumps({"session_id": child.session_id}).encode()
        await w.nc.publish(f"query.{child.caller}.session.get", query, reply=target)
    await child.wire.do(child.caller, "run.append", run_id=child.run_id, messages=[message("done")])
    await w.query(child.caller, "session.get", session_id=child.session_id)
    assert heard == []
    assert await w.history(child.run_id, "forged.>") == []
    assert (await w.session(parent.session_id))["status"] == "busy"


def message(text: str) -> Json:
    return {"role": "assistant", "content": text}


async def dead_letters(w: Wire, subject: str) -> list[Json]:
    """What `DEAD` holds about commands on a subject."""
    letters = [json.loads(data) for _, data in await w.read("DEAD", "dead.>")]
    return [letter for letter in letters if letter["subject"] == subject]


BROKEN = [
    pytest.param("ask", b"{nope", {"invalid_json"}, id="no-json"),
    pytest.param("ask", b"", {"invalid_json"}, id="empty"),
    pytest.param("ask", b"\xff\xfe\x00", {"invalid_json"}, id="no-text"),
    pytest.param("ask", b"[1, 2]", {"invalid_json", "invalid"}, id="no-object"),
    pytest.param("ask", b"[" * 20_000, {"invalid_json", "invalid"}, id="nested-without-end"),
    pytest.param("ask", b'{"x_pad": "' + b"x" * (512 * 1024) + b'"}', {"too_large"}, id="over-512-KiB"),
    pytest.param("frobnicate", b"{}", {"unknown_verb"}, id="unknown-verb"),
]


@pytest.mark.parametrize(("verb", "body", "codes"), BROKEN)
async def test_broken_command_is_refused_recorded_and_passed(
    w: Wire, verb: str, body: bytes, codes: set[str]
) -> None:
    """What no service can read gets an error, leaves a dead letter that says why, and holds up nothing."""
    _, child = await w.family()
    subject = f"cmd.{child.caller}.question.{verb}"
    reply = await w.reply_to(subject, body)
    assert not reply["ok"]
    assert reply["error"]["code"] in codes
    letters = await eventually(lambda: dead_letters(w, subject), bool, why=f"{subject} is in DEAD")
    letter = letters[0]
    has_fields(letter, ("subject", "code", "reason", "attempts", "time", "headers", "body"))
    assert letter["code"] == reply["error"]["code"]
    assert letter["reason"]
    when(letter["time"])
    assert body.startswith(base64.b64decode(letter["body"])[:1000])
    assert (await child.ask())["status"] == "waiting"


@pytest.mark.parametrize("noun", ["session", "run", "work", "inbox", "report"])
async def test_unknown_verb_of_every_noun(w: Wire, noun: str) -> None:
    """A verb that no service has is answered, whatever the noun."""
    caller = await w.open()
    reply = await w.reply_to(f"cmd.{caller}.{noun}.frobnicate", {})
    assert reply["error"]["code"] == "unknown_verb"


@pytest.mark.parametrize(
    "tail", ["answers.ask", "questions.list", "question", "question.ask.now", "log.append"]
)
async def test_unknown_noun_fails_at_once_when_published(w: Wire, tail: str) -> None:
    """A command that nobody could ever carry out is not acknowledged in the first place."""
    began = now()
    with pytest.raises((nats.js.errors.NoStreamResponseError, nats.errors.NoRespondersError)):
        await w.publish(f"cmd.{uid('S')}.{tail}", {})
    assert now() - began < 8


async def test_body_of_just_512_kib_is_read(w: Wire) -> None:
    """The limit of a body is what it says."""
    _, child = await w.family()
    body = child.asking("Which database?", {"x_pad": ""})
    body["x_pad"] = "x" * (512 * 1024 - len(json.dumps(body).encode()))
    assert len(json.dumps(body).encode()) == 512 * 1024
    asked = await w.do(child.caller, "question.ask", **body)
    assert asked["question"]["status"] == "waiting"


async def test_runner_asks_for_the_run_it_holds(w: Wire) -> None:
    """A runner asks in the name of its run, and the question is the child session's."""
    agent = uid("agent")
    parent = await w.start(await w.open())
    made = await w.do(parent.session_id, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id)
    held = (await Runner(w, agent).take()).turn
    question = await held.ask()
    assert question["child_run_id"] == made["run_id"]
    assert question["child_session_id"] == made["session_id"]
    assert question["parent_run_id"] == parent.run_id
    assert await w.questions(parent.session_id) == [question["request_id"]]


async def test_parent_that_is_idle_can_be_asked(w: Wire) -> None:
    """A parent between two runs is reachable: the question waits in its inbox."""
    parent, child = await w.family()
    await parent.settle()
    question = await child.ask()
    assert question["parent_run_id"] == parent.run_id
    await w.until_item(parent.session_id, question["request_id"])
    answered = await w.do(
        parent.session_id, "question.answer", request_id=question["request_id"], answer="SQLite."
    )
    assert answered["question"]["status"] == "answered"


async def test_parent_without_a_run_of_its_own_can_be_asked(w: Wire) -> None:
    """A parent session that spawned outside any run has a question but no topic to copy it to."""
    parent_id = await w.open()
    child = await w.spawn(parent_id)
    question = await child.ask()
    assert question["parent_run_id"] is None
    assert question["parent_session_id"] == parent_id
    await w.until_item(parent_id, question["request_id"])
