"""Bytes of any kind become a model or a refusal, and nothing is raised."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upcall_contracts.commands import COMMANDS, QuestionAsk, RunAppend, RunSettle, SessionOpen, SessionSpawn
from upcall_contracts.errors import ErrorCode, Refusal
from upcall_contracts.parsing import (
    body_fingerprint,
    parse_body,
    parse_command_message,
    parse_query_message,
)
from upcall_contracts.queries import QUERIES
from upcall_contracts.subjects import CommandAddress

OPEN = b'{"agent": "coder"%s}'


@pytest.mark.parametrize(
    ("raw", "meaning"),
    [
        (b"", "nothing"),
        (b" ", "white space"),
        (b"null", "null is no object"),
        (b"[]", "a list is no object"),
        (b'"text"', "a text is no object"),
        (b"5", "a number is no object"),
        (b"{", "cut off"),
        (b'{"agent": "coder"} x', "more than one value"),
        (b"{'agent': 'coder'}", "Python is no JSON"),
        (b'{"agent": "coder",}', "a comma too many"),
        (b"\xff\xfe", "no UTF-8 at all"),
        (b'{"agent": "\xff"}', "no UTF-8 within a text"),
        (b'{"title": "\\ud800", "agent": "coder"}', "half a surrogate pair can't be written as UTF-8"),
        (b"\xef\xbb\xbf" + OPEN % b"", "a byte order mark"),
        (OPEN % b', "meta": {"a": NaN}', "NaN is no JSON"),
        (OPEN % b', "x_a": -Infinity', "nor is infinity, not even where nobody looks"),
        (OPEN % b', "meta": {"a": 1e999}', "a number that no reader could hold"),
        (OPEN % b', "meta": {"a": -1E+400}', "the same, below zero"),
        (OPEN % (b', "meta": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000), "nested beyond reason"),
        (b"[" * 500_000, "nothing but nesting"),
        (OPEN % (b', "meta": {"a": ' + b"9" * 5000 + b"}"), "a number beyond reason"),
    ],
)
def test_invalid_json(raw: bytes, meaning: str) -> None:
    refusal = parse_body(raw, SessionOpen)
    assert isinstance(refusal, Refusal), meaning
    assert refusal.code is ErrorCode.INVALID_JSON, meaning


@pytest.mark.parametrize(
    ("raw", "meaning"),
    [
        (OPEN % b', "title": "NaN and Infinity, 1e999"', "texts may speak of them"),
        (OPEN % b', "meta": {"a": 1e-999, "b": 1e100}', "very small and rather large are finite"),
        (OPEN % b', "title": "a\\u0000b"', "a text may hold anything"),
        (OPEN % b', "title": "\\ud83d\\ude00"', "a whole surrogate pair"),
        (OPEN % (b', "meta": ' + b'{"a":' * 100 + b"1" + b"}" * 100), "deep, but within reason"),
        (b'{"agent": "x.y", "agent": "coder"}', "of a key that comes twice the last one counts"),
    ],
)
def test_valid_json(raw: bytes, meaning: str) -> None:
    body = parse_body(raw, SessionOpen)
    assert isinstance(body, SessionOpen), meaning
    assert body.agent == "coder"


def test_a_body_of_512_kib_is_taken_and_one_byte_more_is_not() -> None:
    head = b'{"agent": "coder", "x_fill": "'
    raw = head + b"x" * (512 * 1024 - len(head) - 2) + b'"}'
    assert isinstance(parse_body(raw, SessionOpen), SessionOpen)
    refusal = parse_body(raw + b" ", SessionOpen)
    assert isinstance(refusal, Refusal)
    assert refusal.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize(
    "raw",
    [
        b'{"run_id": "r1", "messages": [' + b"1," * 250_000 + b"1]}",
        b'{"run_id": "r1", "messages": [' + b"{}," * 2000 + b"{}]}",
        b"{" + b",".join(b'"f%d": 1' % n for n in range(30_000)) + b"}",
        b'{"' + b"f" * 500_000 + b'": 1}',
    ],
)
def test_a_body_full_of_problems_gets_a_short_reply(raw: bytes) -> None:
    refusal = parse_body(raw, RunAppend)
    assert isinstance(refusal, Refusal)
    assert refusal.code is ErrorCode.INVALID
    assert len(json.dumps(refusal.to_reply())) < 32_000


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    for spec in COMMANDS.values():
        parse_body(raw, spec.model)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
FIELDS = sorted({name for spec in COMMANDS.values() for name in spec.model.model_fields} | {"from", "x_a"})


@given(st.sampled_from(sorted(COMMANDS)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_no_json_object_raises_and_every_refusal_can_be_sent(
    key: tuple[str, str], fields: dict[str, Any]
) -> None:
    body = parse_body(json.dumps(fields).encode(), COMMANDS[key].model)
    if isinstance(body, Refusal):
        assert body.code in {ErrorCode.INVALID, ErrorCode.INVALID_ID, ErrorCode.INVALID_JSON}
        json.dumps(body.to_reply(), allow_nan=False)
    else:
        json.dumps(body.to_wire(), allow_nan=False)
        body_fingerprint(body)


def test_a_command_message_is_read_from_subject_and_body() -> None:
    read = parse_command_message("cmd.s1.session.open", OPEN % b"")
    assert not isinstance(read, Refusal)
    assert read[0] == CommandAddress("s1", "session", "open")
    assert isinstance(read[1], SessionOpen)


@pytest.mark.parametrize(("noun", "verb"), sorted(QUERIES))
def test_every_query_is_read_on_the_same_path(noun: str, verb: str) -> None:
    refusal = parse_query_message(f"query.s1.{noun}.{verb}", b'{"no_such": 1}')
    assert isinstance(refusal, Refusal)
    assert refusal.code is ErrorCode.INVALID


@pytest.mark.parametrize(
    ("subject", "code", "meaning"),
    [
        ("cmd.s1.session.fork", ErrorCode.UNKNOWN_VERB, "no such verb"),
        ("cmd.s1.agent.open", ErrorCode.UNKNOWN_VERB, "no such noun"),
        ("cmd.s1.session", ErrorCode.UNKNOWN_VERB, "no verb at all"),
        ("query.s1.session.open", ErrorCode.UNKNOWN_VERB, "a query is no command"),
        ("cmd.s 1.session.open", ErrorCode.INVALID_ID, "the caller is no token"),
        ("cmd.é.session.open", ErrorCode.INVALID_ID, "the caller is no token"),
        ("cmd." + "x" * 65 + ".session.open", ErrorCode.INVALID_ID, "the caller is too long"),
    ],
)
def test_a_subject_that_is_wrong_is_refused_before_the_body_is_read(
    subject: str, code: ErrorCode, meaning: str
) -> None:
    refusal = parse_command_message(subject, b"no json")
    assert isinstance(refusal, Refusal)
    assert refusal.code is code, meaning


ASK = {"run_id": "r1", "question": "Which?", "why_blocked": "Both work."}


def ask(**fields: Any) -> str:
    body = parse_body(json.dumps({**ASK, **fields}).encode(), QuestionAsk)
    assert isinstance(body, QuestionAsk)
    return body_fingerprint(body)


@pytest.mark.parametrize(
    ("fields", "meaning"),
    [
        ({"command_id": "c2"}, "the command_id itself"),
        ({"attempt": 2}, "a runner that took over repeats the command with its own attempt"),
        ({"x_trace": "abc"}, "extensions say nothing to us"),
        ({"timeout_ms": 300_000, "options": [], "fallback": None}, "defaults that are spelled out"),
    ],
)
def test_the_fingerprint_stays_the_same(fields: dict[str, Any], meaning: str) -> None:
    assert ask(**fields) == ask(), meaning


@pytest.mark.parametrize(
    "fields",
    [
        {"question": "Which? "},
        {"run_id": "r2"},
        {"options": ["a"]},
        {"meta": {}},
        {"meta": {"x_a": 1}},
        {"timeout_ms": 300_001},
        {"can_continue_without_answer": True},
    ],
)
def test_the_fingerprint_changes_with_what_is_said(fields: dict[str, Any]) -> None:
    assert ask(**fields) != ask()


def test_the_fingerprint_does_not_depend_on_the_order_of_fields() -> None:
    turned = parse_body(json.dumps(dict(reversed(ASK.items()))).encode(), QuestionAsk)
    assert isinstance(turned, QuestionAsk)
    assert body_fingerprint(turned) == ask()
    assert ask(meta={"a": 1, "b": 2}) == ask(meta={"b": 2, "a": 1})


def test_messages_count_whole_and_extensions_of_inner_objects_do_not() -> None:
    def append(message: dict[str, Any]) -> str:
        body = parse_body(json.dumps({"run_id": "r1", "messages": [message]}).encode(), RunAppend)
        assert isinstance(body, RunAppend)
        return body_fingerprint(body)

    message = {"role": "user", "content": "hi"}
    assert append(message) != append({**message, "x_id": 1})

    def settle(**fields: Any) -> str:
        work = {"work_id": "w1", "kind": "shell", "label": "l", **fields}
        body = parse_body(
            json.dumps({"run_id": "r1", "outcome": "failed", "background": [work]}).encode(), RunSettle
        )
        assert isinstance(body, RunSettle)
        return body_fingerprint(body)

    assert settle() == settle(x_pid=7) == settle(wakes=False)
    assert settle() != settle(wakes=True)


def test_a_fingerprint_never_changes_between_versions() -> None:
    """Fingerprints are kept in the log; a changed one would refuse honest repetitions after an upgrade."""
    assert ask() == "c64fc8fddf7489647de5e4a827eb1de9"


def test_what_python_builds_is_sent_without_its_defaults() -> None:
    assert SessionSpawn(agent="coder", task="do it", notify=False).to_wire() == {
        "agent": "coder",
        "task": "do it",
        "notify": False,
    }
    body = RunAppend.model_validate_json(
        b'{"run_id": "r1", "from": 3, "messages": [{"role": "user", "content": "hi"}]}'
    )
    assert body.from_ == 3
    assert body.to_wire()["from"] == 3
