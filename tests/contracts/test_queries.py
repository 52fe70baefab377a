"""Every row of the query table: defaults, limits and what is refused."""

import json
from typing import Any

import pytest

from upcall_contracts.errors import Refusal
from upcall_contracts.parsing import parse_body
from upcall_contracts.queries import QUERIES

MINIMAL: dict[str, dict[str, Any]] = {
    "session.get": {"session_id": "s1"},
    "session.list": {},
    "session.history": {"session_id": "s1"},
    "run.get": {"run_id": "r1"},
    "run.wait": {"run_id": "r1", "timeout_ms": 60_000},
    "question.get": {"request_id": "q1"},
    "question.wait": {"request_id": "q1", "timeout_ms": 0},
    "question.list": {},
    "report.get": {"period_id": "p1"},
    "report.list": {},
    "inbox.list": {},
    "log.introspect": {"run_id": "r1"},
}

PAGE = {"cursor": None, "limit": 100}

DEFAULTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in MINIMAL},
    "session.list": {**PAGE, "session_id": None, "scope": "children", "status": None},
    "session.history": {"from": 1, "limit": 100},
    "question.list": {**PAGE, "status": "waiting", "scope": "mine"},
    "report.list": {**PAGE, "session_id": None, "status": None},
    "inbox.list": {"session_id": None},
    "log.introspect": {**PAGE, "session_id": None, "root_session_id": None},
}

GOOD: list[tuple[str, dict[str, Any], str]] = [
    ("session.list", {"limit": 1}, "the smallest page"),
    ("session.list", {"limit": 500}, "the largest page"),
    ("session.list", {"scope": "tree", "status": "closed", "cursor": "abc"}, "as given"),
    ("session.history", {"from": 7, "limit": 500}, "as given"),
    ("question.list", {"status": "timed_out", "scope": "tree"}, "as given"),
    ("report.list", {"status": "held"}, "as given"),
    ("log.introspect", {"run_id": None, "root_session_id": "s1"}, "by tree"),
    ("log.introspect", {"x_mine": 1}, "an unknown field that begins with x_"),
]

ONE_OF_THREE = "give exactly one of run_id, session_id and root_session_id"

BAD: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("session.list", {"limit": 0}, "limit", "must be at least 1", "just under"),
    ("session.list", {"limit": 501}, "limit", "must be at most 500", "just over"),
    ("session.list", {"scope": "mine"}, "scope", "must be 'children' or 'tree'", "the scope of questions"),
    ("session.list", {"status": "open"}, "status", "must be 'idle', 'busy' or 'closed'", "no such status"),
    ("session.history", {"from": 0}, "from", "must be at least 1", "indices begin at 1"),
    ("run.wait", {"timeout_ms": 60_001}, "timeout_ms", "must be at most 60000", "just over"),
    ("run.wait", {"timeout_ms": -1}, "timeout_ms", "must be at least 0", "just under"),
    ("question.wait", {"timeout_ms": 60_001}, "timeout_ms", "must be at most 60000", "just over"),
    ("question.list", {"scope": "all"}, "scope", "must be 'mine' or 'tree'", "no such scope"),
    ("question.list", {"cursor": 5}, "cursor", "must be a text", "cursors are opaque texts"),
    (
        "report.list",
        {"state": "held"},
        "state",
        "is not a field here; fields of your own begin with x_",
        "a typo",
    ),
    ("log.introspect", {"run_id": None}, "root_session_id", ONE_OF_THREE, "none"),
    ("log.introspect", {"session_id": "s1"}, "root_session_id", ONE_OF_THREE, "two"),
    ("log.introspect", {"limit": 501}, "limit", "must be at most 500", "just over"),
]


def parse(name: str, body: dict[str, Any]) -> Any:
    noun, verb = name.split(".")
    return parse_body(json.dumps(body).encode(), QUERIES[noun, verb].model)


def test_the_table_is_whole() -> None:
    assert set(MINIMAL) == {f"{noun}.{verb}" for noun, verb in QUERIES}


@pytest.mark.parametrize("name", MINIMAL)
def test_a_minimal_body_gets_exactly_the_defaults_of_the_table(name: str) -> None:
    body = parse(name, MINIMAL[name])
    assert not isinstance(body, Refusal), body
    assert body.model_dump(mode="json") == {**DEFAULTS[name], **MINIMAL[name]}


@pytest.mark.parametrize(("name", "fields", "meaning"), GOOD)
def test_accepted(name: str, fields: dict[str, Any], meaning: str) -> None:
    body = parse(name, {**MINIMAL[name], **fields})
    assert not isinstance(body, Refusal), (meaning, body)


@pytest.mark.parametrize(("name", "fields", "field", "problem", "meaning"), BAD)
def test_refused(name: str, fields: dict[str, Any], field: str, problem: str, meaning: str) -> None:
    refusal = parse(name, {**MINIMAL[name], **fields})
    assert isinstance(refusal, Refusal), meaning
    assert refusal.code == "invalid", meaning
    assert refusal.details == {"fields": [{"field": field, "problem": problem}]}, meaning


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, body in MINIMAL.items() for field in body if "." in name]
)
def test_a_required_field_is_missed(name: str, field: str) -> None:
    refusal = parse(name, {key: value for key, value in MINIMAL[name].items() if key != field})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid"


def test_a_bad_id_is_invalid_id() -> None:
    refusal = parse("run.get", {"run_id": "a.b"})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "invalid_id"
