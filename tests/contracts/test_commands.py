"""Every row of the command table: its defaults, each limit at and just over, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from upcall_contracts.commands import COMMANDS
from upcall_contracts.errors import Refusal
from upcall_contracts.parsing import parse_body

SCHEMAS = Path(__file__).parents[2] / "contracts" / "schemas"

MINIMAL: dict[str, dict[str, Any]] = {
    "session.open": {"agent": "coder"},
    "session.spawn": {"agent": "coder", "task": "do it"},
    "session.continue": {"session_id": "s1", "task": "go on"},
    "session.background": {"run_id": "r1"},
    "session.cancel": {"session_id": "s1"},
    "session.close": {},
    "run.start": {},
    "run.claim": {"run_id": "r1"},
    "run.append": {"run_id": "r1", "messages": [{"role": "user", "content": "hi"}]},
    "run.settle": {"run_id": "r1", "outcome": "completed"},
    "work.finish": {"work_id": "w1", "outcome": "completed"},
    "inbox.handle": {"item_ids": []},
    "question.ask": {"run_id": "r1", "question": "Which?", "why_blocked": "Both work."},
    "question.answer": {"request_id": "q1", "answer": "This."},
    "question.cancel": {"request_id": "q1"},
    "report.release": {"session_id": "s1"},
}

NONE: dict[str, None] = dict.fromkeys(
    ("description", "task_id", "notify", "model", "variant", "step_budget", "timeout_ms", "run_id")
)

DEFAULTS: dict[str, dict[str, Any]] = {
    "session.open": {"title": None, "host": "self", "lease_ms": 0, "meta": None},
    "session.spawn": {**NONE, "host": "runner", "lease_ms": None, "background": True, "meta": None},
    "session.continue": {**NONE, "agent": None, "background": True},
    "session.background": {},
    "session.cancel": {"reason": None, "cascade": True},
    "session.close": {"session_id": None, "cascade": True},
    "run.start": {"task": None, "trigger": "self", "causes": []},
    "run.claim": {},
    "run.append": {"from": None, "steps": None, "attempt": None},
    "run.settle": {"answer": None, "error": None, "history_seq": None, "background": [], "attempt": None},
    "work.finish": {"session_id": None, "summary": None},
    "inbox.handle": {"session_id": None},
    "question.ask": {
        "options": [],
        "recommended_option": None,
        "can_continue_without_answer": False,
        "fallback": None,
        "timeout_ms": 300_000,
        "task_id": None,
        "attempt": None,
        "meta": None,
    },
    "question.answer": {"rationale": None, "selected_option": None, "action": "accept"},
    "question.cancel": {"run_id": None, "reason": None},
    "report.release": {"reason": None},
}

KIB = 1024
LONG = "x" * 256 * KIB
OVER = LONG + "x"
EURO = "€" * (256 * KIB // 3)  # three bytes each: 262143 of them
WORK = {"work_id": "w1", "kind": "shell", "label": "npm run dev"}

# command, fields over its minimal body, meaning
GOOD: list[tuple[str, dict[str, Any], str]] = [
    ("session.open", {"host": "runner"}, "either host"),
    ("session.open", {"lease_ms": 1000}, "the shortest lease"),
    ("session.open", {"lease_ms": 86_400_000}, "the longest lease"),
    ("session.open", {"title": " "}, "an optional text may be blank and is kept"),
    ("session.open", {"command_id": "x" * 128}, "the longest command_id"),
    ("session.open", {"command_id": "any text: not only a token"}, "a command_id is no token"),
    ("session.open", {"meta": {"a": "x" * (8 * KIB - 8)}}, "meta of exactly 8 KiB"),
    ("session.open", {"x_mine": {"any": ["thing"]}}, "an unknown field that begins with x_"),
    ("session.open", {"meta": {}}, "an empty meta"),
    ("session.open", {"meta": None, "title": None}, "null is absent where absent means none"),
    ("session.spawn", {"task": LONG}, "a task of exactly 256 KiB"),
    ("session.spawn", {"task": EURO}, "256 KiB are counted in bytes"),
    ("session.spawn", {"task": "  as given\n"}, "texts are kept as given"),
    ("session.spawn", {"description": "x" * 200}, "the longest description"),
    ("session.spawn", {"timeout_ms": 1}, "the shortest time limit"),
    ("session.spawn", {"timeout_ms": 604_800_000}, "the longest time limit"),
    ("session.spawn", {"step_budget": 1}, "the smallest budget"),
    ("session.spawn", {"host": "self", "lease_ms": 0, "notify": False, "background": False}, "as given"),
    ("session.continue", {"agent": "coder", "model": "m", "variant": "v", "notify": True}, "as given"),
    ("session.cancel", {"cascade": False, "reason": ""}, "as given"),
    ("run.start", {"trigger": "prompt", "task": "hi", "causes": ["q1", "p1"]}, "as given"),
    ("run.start", {"causes": None}, "a list that is null is empty"),
    ("run.append", {"from": 1, "steps": 0, "attempt": 1}, "the smallest numbers"),
    (
        "run.append",
        {"messages": [{"role": "tool", "content": [{"a": None}], "more": 1}]},
        "messages are free",
    ),
    ("run.append", {"messages": [{"role": "tool", "content": None}]}, "content may be null, but not absent"),
    *[
        ("run.settle", {"outcome": outcome}, "each outcome that a host may say")
        for outcome in ("completed", "failed", "cancelled", "halted", "timed_out")
    ],
    ("run.settle", {"answer": LONG}, "an answer of exactly 256 KiB"),
    ("run.settle", {"error": LONG}, "an error of exactly 256 KiB"),
    (
        "run.settle",
        {"background": [WORK, WORK | {"work_id": "w2", "kind": "other", "wakes": True}]},
        "two works",
    ),
    ("run.settle", {"background": [WORK | {"label": "x" * 200}]}, "the longest label"),
    ("run.settle", {"background": [WORK | {"x_pid": 7}]}, "x_ goes for inner objects too"),
    ("run.settle", {"history_seq": 0}, "a run may have no history"),
    ("work.finish", {"outcome": "failed", "summary": LONG, "session_id": "s1"}, "a summary of 256 KiB"),
    ("inbox.handle", {"item_ids": ["q1", "q1"]}, "what is handled already is skipped, so twice is no error"),
    ("question.ask", {"question": "€" * 4000, "why_blocked": "x" * 4000}, "4000 characters, not bytes"),
    ("question.ask", {"options": [f"{n}" for n in range(20)]}, "20 options"),
    ("question.ask", {"options": ["x" * 500]}, "an option of 500 characters"),
    ("question.ask", {"options": ["a", "a "]}, "options are compared as given"),
    ("question.ask", {"options": None}, "a list that is null is empty"),
    ("question.ask", {"timeout_ms": 1}, "the shortest wait"),
    ("question.ask", {"timeout_ms": 604_800_000}, "the longest wait"),
    ("question.ask", {"fallback": LONG}, "a fallback of exactly 256 KiB"),
    ("question.ask", {"can_continue_without_answer": True}, "fallback_required is decided by the core"),
    ("question.ask", {"recommended_option": "none of them"}, "so is invalid_recommendation"),
    ("question.answer", {"answer": LONG[: 200 * KIB], "rationale": "x"}, "an answer of 200 KiB"),
    ("question.answer", {"rationale": LONG}, "a rationale of exactly 256 KiB"),
    ("question.answer", {"selected_option": "whatever"}, "unknown_option is decided by the core"),
    ("question.answer", {"action": "decline", "answer": None}, "declining needs no answer"),
    ("question.answer", {"action": "decline", "answer": "  "}, "declining may have a blank answer"),
    ("question.cancel", {"request_id": None, "run_id": "r1"}, "by run"),
    ("question.cancel", {"reason": "no longer needed"}, "with a reason"),
]

TOKEN = "must be 1 to 64 characters of A-Z a-z 0-9 _ -"
NO_FIELD = "is not a field here; fields of your own begin with x_"
BYTES = "must have at most 262144 bytes of UTF-8"
TIMEOUT = "must be at most 604800000"
ONE_OF_TWO = "give request_id or run_id, and not both"
ANSWER = "is required and must not be blank, unless action is decline"

# command, fields over its minimal body, the field and problem, meaning
BAD: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("session.open", {"host": "cloud"}, "host", "must be 'self' or 'runner'", "no such host"),
    (
        "session.open",
        {"host": None},
        "host",
        "must be 'self' or 'runner'",
        "null where a default means something",
    ),
    (
        "session.open",
        {"lease_ms": 999},
        "lease_ms",
        "must be 0, which means never gone, or 1000 to 86400000",
        "just under",
    ),
    (
        "session.open",
        {"lease_ms": 86_400_001},
        "lease_ms",
        "must be 0, which means never gone, or 1000 to 86400000",
        "just over",
    ),
    (
        "session.open",
        {"lease_ms": -1},
        "lease_ms",
        "must be 0, which means never gone, or 1000 to 86400000",
        "negative",
    ),
    ("session.open", {"lease_ms": "5000"}, "lease_ms", "must be an integer", "a text is no integer"),
    ("session.open", {"lease_ms": True}, "lease_ms", "must be an integer", "true is no integer"),
    ("session.open", {"lease_ms": 5000.0}, "lease_ms", "must be an integer", "a fraction is no integer"),
    ("session.open", {"title": 5}, "title", "must be a text", "an integer is no text"),
    ("session.open", {"command_id": ""}, "command_id", "must have at least 1 character", "empty"),
    (
        "session.open",
        {"command_id": "x" * 129},
        "command_id",
        "must have at most 128 characters",
        "just over",
    ),
    ("session.open", {"command_id": 7}, "command_id", "must be a text", "an integer is no text"),
    (
        "session.open",
        {"meta": {"a": "x" * (8 * KIB - 7)}},
        "meta",
        "must have at most 8192 bytes as compact JSON, and has 8193",
        "just over",
    ),
    ("session.open", {"meta": []}, "meta", "must be an object", "a list is no object"),
    ("session.open", {"meta": "{}"}, "meta", "must be an object", "a text is no object"),
    ("session.open", {"agents": "a"}, "agents", NO_FIELD, "a typo is not swallowed"),
    ("session.open", {"X_mine": 1}, "X_mine", NO_FIELD, "x_ is spelled small"),
    ("session.open", {"xmine": 1}, "xmine", NO_FIELD, "x_ has its underscore"),
    ("session.spawn", {"task": OVER}, "task", BYTES, "just over"),
    ("session.spawn", {"task": EURO + "€"}, "task", BYTES, "just over, in bytes"),
    ("session.spawn", {"task": ""}, "task", "must not be blank", "empty"),
    ("session.spawn", {"task": " \n\t\u2003"}, "task", "must not be blank", "white space of any kind"),
    ("session.spawn", {"task": None}, "task", "must be a text", "null where a text is required"),
    (
        "session.spawn",
        {"description": "x" * 201},
        "description",
        "must have at most 200 characters",
        "just over",
    ),
    ("session.spawn", {"timeout_ms": 0}, "timeout_ms", "must be at least 1", "just under"),
    ("session.spawn", {"timeout_ms": 604_800_001}, "timeout_ms", TIMEOUT, "just over"),
    ("session.spawn", {"step_budget": 0}, "step_budget", "must be at least 1", "no step at all"),
    ("session.spawn", {"background": "true"}, "background", "must be true or false", "a text is no boolean"),
    ("session.spawn", {"background": 1}, "background", "must be true or false", "1 is no boolean"),
    ("session.spawn", {"notify": "no"}, "notify", "must be true or false", "a text is no boolean"),
    ("session.continue", {"task": " "}, "task", "must not be blank", "blank"),
    ("session.continue", {"host": "self"}, "host", NO_FIELD, "a continued session keeps its host"),
    ("session.cancel", {"cascade": None}, "cascade", "must be true or false", "null is no boolean"),
    ("run.start", {"trigger": "wake"}, "trigger", "must be 'self' or 'prompt'", "wake is the service's"),
    ("run.start", {"causes": "q1"}, "causes", "must be a list", "a text is no list"),
    ("run.append", {"messages": []}, "messages", "must hold at least 1", "nothing to append"),
    ("run.append", {"messages": [{"role": "user"}]}, "messages.0.content", "is required", "no content"),
    ("run.append", {"messages": [{"content": "x"}]}, "messages.0.role", "is required", "no role"),
    (
        "run.append",
        {"messages": [{"role": " ", "content": 1}]},
        "messages.0.role",
        "must not be blank",
        "blank",
    ),
    ("run.append", {"messages": ["hi"]}, "messages.0", "must be an object", "a text is no message"),
    ("run.append", {"from": 0}, "from", "must be at least 1", "indices begin at 1"),
    ("run.append", {"from_": 1}, "from_", NO_FIELD, "the name in Python is not the name on the wire"),
    ("run.append", {"steps": -1}, "steps", "must be at least 0", "negative"),
    ("run.append", {"attempt": 0}, "attempt", "must be at least 1", "attempts begin at 1"),
    ("run.append", {"from": 2**53}, "from", "must be at most 9007199254740991", "inexact in other readers"),
    (
        "run.settle",
        {"outcome": "lost"},
        "outcome",
        "must be 'completed', 'failed', 'cancelled', 'halted' or 'timed_out'",
        "lost is the service's",
    ),
    ("run.settle", {"answer": OVER}, "answer", BYTES, "just over"),
    ("run.settle", {"error": OVER}, "error", BYTES, "just over"),
    (
        "run.settle",
        {"background": [WORK, WORK]},
        "background",
        "must not hold the same work_id twice",
        "twice",
    ),
    (
        "run.settle",
        {"background": [WORK | {"kind": "session"}]},
        "background.0.kind",
        "must be 'shell' or 'other'",
        "children are known without being named",
    ),
    (
        "run.settle",
        {"background": [WORK | {"label": "x" * 201}]},
        "background.0.label",
        "must have at most 200 characters",
        "just over",
    ),
    (
        "run.settle",
        {"background": [WORK | {"label": " "}]},
        "background.0.label",
        "must not be blank",
        "blank",
    ),
    ("run.settle", {"background": [WORK | {"pid": 7}]}, "background.0.pid", NO_FIELD, "inner objects too"),
    (
        "work.finish",
        {"outcome": "halted"},
        "outcome",
        "must be 'completed', 'failed' or 'cancelled'",
        "work has no budget",
    ),
    ("work.finish", {"summary": OVER}, "summary", BYTES, "just over"),
    ("inbox.handle", {"item_ids": None}, "item_ids", "must be a list", "null where a list is required"),
    ("question.ask", {"question": " "}, "question", "must not be blank", "blank"),
    ("question.ask", {"why_blocked": "\u3000"}, "why_blocked", "must not be blank", "blank in any script"),
    ("question.ask", {"question": "x" * 4001}, "question", "must have at most 4000 characters", "just over"),
    (
        "question.ask",
        {"why_blocked": "x" * 4001},
        "why_blocked",
        "must have at most 4000 characters",
        "just over",
    ),
    (
        "question.ask",
        {"options": [f"{n}" for n in range(21)]},
        "options",
        "must hold at most 20",
        "just over",
    ),
    (
        "question.ask",
        {"options": ["a", "x" * 501]},
        "options.1",
        "must have at most 500 characters",
        "just over",
    ),
    ("question.ask", {"options": ["a", " "]}, "options", "must not hold a blank option", "blank"),
    (
        "question.ask",
        {"options": ["a", "b", "a"]},
        "options",
        "must not hold the same option twice",
        "repeated",
    ),
    ("question.ask", {"options": [1]}, "options.0", "must be a text", "an integer is no text"),
    ("question.ask", {"timeout_ms": 0}, "timeout_ms", "must be at least 1", "just under"),
    ("question.ask", {"timeout_ms": 604_800_001}, "timeout_ms", TIMEOUT, "just over"),
    ("question.ask", {"timeout_ms": None}, "timeout_ms", "must be an integer", "null is no integer"),
    ("question.ask", {"fallback": OVER}, "fallback", BYTES, "just over"),
    ("question.answer", {"answer": " "}, "answer", ANSWER, "blank"),
    ("question.answer", {"answer": None}, "answer", ANSWER, "null is absent"),
    ("question.answer", {"answer": OVER}, "answer", BYTES, "just over"),
    ("question.answer", {"rationale": OVER}, "rationale", BYTES, "just over"),
    ("question.answer", {"action": "cancel"}, "action", "must be 'accept' or 'decline'", "no such action"),
    ("question.cancel", {"run_id": "r1"}, "run_id", ONE_OF_TWO, "both"),
    ("question.cancel", {"request_id": None}, "run_id", ONE_OF_TWO, "neither"),
]

REQUIRED = [
    (name, field)
    for name, body in MINIMAL.items()
    for field in body
    if (name, field) not in {("question.answer", "answer"), ("question.cancel", "request_id")}
]

IDS = [
    ("session.open", "agent"),
    ("session.spawn", "agent"),
    ("session.spawn", "run_id"),
    ("session.spawn", "task_id"),
    ("session.continue", "session_id"),
    ("session.continue", "run_id"),
    ("session.continue", "agent"),
    ("session.continue", "task_id"),
    ("session.background", "run_id"),
    ("session.cancel", "session_id"),
    ("session.close", "session_id"),
    ("run.claim", "run_id"),
    ("run.append", "run_id"),
    ("run.settle", "run_id"),
    ("work.finish", "work_id"),
    ("work.finish", "session_id"),
    ("inbox.handle", "session_id"),
    ("question.ask", "run_id"),
    ("question.ask", "task_id"),
    ("question.answer", "request_id"),
    ("question.cancel", "request_id"),
    ("report.release", "session_id"),
]


def parse(name: str, body: dict[str, Any]) -> Any:
    noun, verb = name.split(".")
    return parse_body(json.dumps(body, ensure_ascii=False).encode(), COMMANDS[noun, verb].model)


def schema_of(name: str) -> Any:
    schema = json.loads((SCHEMAS / "commands" / f"{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema)


def test_the_table_is_whole() -> None:
    assert set(MINIMAL) == set(DEFAULTS) == {f"{noun}.{verb}" for noun, verb in COMMANDS}


@pytest.mark.parametrize("name", MINIMAL)
def test_a_minimal_body_gets_exactly_the_defaults_of_the_table(name: str) -> None:
    body = parse(name, MINIMAL[name])
    assert not isinstance(body, Refusal), body
    expected = {"command_id": None, **DEFAULTS[name], **MINIMAL[name]}
    assert body.model_dump(mode="json") == expected
    assert schema_of(name).is_valid(MINIMAL[name])


@pytest.mark.parametrize(("name", "fields", "meaning"), GOOD)
def test_accepted(name: str, fields: dict[str, Any], meaning: str) -> None:
    given = {**MINIMAL[name], **fields}
    body = parse(name, given)
    assert not isinstance(body, Refusal), (meaning, body)
    dumped = body.model_dump(mode="json")
    kept = {field: value for field, value in fields.items() if value is not None}
    assert {field: dumped[field] for field in kept} == kept or "background" in fields, meaning


@pytest.mark.parametrize(("name", "fields", "field", "problem", "meaning"), BAD)
def test_refused(name: str, fields: dict[str, Any], field: str, problem: str, meaning: str) -> None:
    refusal = parse(name, {**MINIMAL[name], **fields})
    assert isinstance(refusal, Refusal), meaning
    assert refusal.code == "invalid", meaning
    assert refusal.details == {"fields": [{"field": field, "problem": problem}]}, meaning


@pytest.mark.parametrize(("name", "field"), REQUIRED)
def test_a_required_field_is_missed(name: str, field: str) -> None:
    refusal = parse(name, {key: value for key, value in MINIMAL[name].items() if key != field})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid"
    assert refusal.details == {"fields": [{"field": field, "problem": "is required"}]}


def test_accepting_needs_an_answer_also_where_it_is_left_away() -> None:
    refusal = parse("question.answer", {"request_id": "q1"})
    assert isinstance(refusal, Refusal)
    assert refusal.details == {"fields": [{"field": "answer", "problem": ANSWER}]}


@pytest.mark.parametrize(("name", "field"), IDS)
@pytest.mark.parametrize("bad", ["", "a.b", "a b", "x" * 65, "*"])
def test_where_only_ids_are_wrong_it_is_invalid_id(name: str, field: str, bad: str) -> None:
    refusal = parse(name, {**MINIMAL[name], field: bad})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid_id"
    assert refusal.details == {"fields": [{"field": field, "problem": TOKEN}]}
    assert field in refusal.message


@pytest.mark.parametrize(
    ("name", "fields", "path"),
    [
        ("run.start", {"causes": ["q1", "a b"]}, "causes.1"),
        ("inbox.handle", {"item_ids": ["a.b"]}, "item_ids.0"),
        ("run.settle", {"background": [WORK | {"work_id": "a b"}]}, "background.0.work_id"),
    ],
)
def test_ids_in_lists_are_ids_too(name: str, fields: dict[str, Any], path: str) -> None:
    refusal = parse(name, {**MINIMAL[name], **fields})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid_id"
    assert refusal.details == {"fields": [{"field": path, "problem": TOKEN}]}


def test_an_id_of_another_type_is_invalid_and_not_invalid_id() -> None:
    refusal = parse("run.claim", {"run_id": 5})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid"


def test_all_problems_are_told_at_once() -> None:
    body = {"agent": "a b", "host": "x", "lease_ms": "1", "meta": 1, "tittle": "t", "notify": 0}
    refusal = parse("session.spawn", body)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid"
    named = {entry["field"] for entry in refusal.details["fields"]}
    assert named == {"agent", "task", "host", "lease_ms", "meta", "tittle", "notify"}


def test_a_rule_between_fields_is_told_beside_the_others() -> None:
    refusal = parse("question.cancel", {"reason": 5})
    assert isinstance(refusal, Refusal)
    assert [entry["field"] for entry in refusal.details["fields"]] == ["run_id", "reason"]


NOT_IN_SCHEMA = {"must not hold the same work_id twice", BYTES, "must not hold a blank option"}


@pytest.mark.parametrize(("name", "fields", "field", "problem", "meaning"), BAD)
def test_the_json_schema_refuses_it_too(
    name: str, fields: dict[str, Any], field: str, problem: str, meaning: str
) -> None:
    """What JSON Schema can't say (bytes, unique by one field, Python's 5000.0) is left to the service."""
    sayable = (
        problem not in NOT_IN_SCHEMA and "compact JSON" not in problem and fields != {"lease_ms": 5000.0}
    )
    if sayable and not (name == "run.append" and "messages.0.role" in field and meaning == "blank"):
        assert not schema_of(name).is_valid({**MINIMAL[name], **fields}), meaning


@pytest.mark.parametrize(("name", "fields", "meaning"), GOOD)
def test_the_json_schema_accepts_it_too(name: str, fields: dict[str, Any], meaning: str) -> None:
    null_lists = {"causes": None}, {"options": None}
    if fields not in null_lists:  # the schema is stricter here, so that clients send lists
        assert schema_of(name).is_valid({**MINIMAL[name], **fields}), meaning
