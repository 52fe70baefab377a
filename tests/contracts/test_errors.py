"""Refusals: stable codes, the right ones retryable, details as promised, and messages that teach."""

import json
from typing import Any

import pytest

from upcall_contracts import refusals
from upcall_contracts.errors import RETRYABLE, ErrorCode, Refusal, ok, parse_reply
from upcall_contracts.records import QuestionRecord

QUESTION = QuestionRecord(request_id="q1", question="Which?", options=["a"], expires_at=1000)

SITUATIONS: list[tuple[Refusal, ErrorCode, dict[str, Any] | None]] = [
    (refusals.invalid([{"field": "a", "problem": "b"}]), ErrorCode.INVALID, None),
    (refusals.invalid_field("cursor", "is not one of ours"), ErrorCode.INVALID, None),
    (refusals.attempt_required(), ErrorCode.INVALID, None),
    (refusals.order_not_met("from", 5, 3), ErrorCode.INVALID, None),
    (refusals.invalid_json("x"), ErrorCode.INVALID_JSON, {}),
    (refusals.invalid_id([{"field": "a", "problem": "b"}]), ErrorCode.INVALID_ID, None),
    (refusals.invalid_caller("a b"), ErrorCode.INVALID_ID, None),
    (refusals.operator_cannot_open(), ErrorCode.INVALID_ID, None),
    (refusals.too_large(600_000), ErrorCode.TOO_LARGE, {"size": 600_000, "limit": 524_288}),
    (refusals.unknown_verb("cmd.a.run.x", ["run.start"]), ErrorCode.UNKNOWN_VERB, {"known": ["run.start"]}),
    (refusals.unknown_session("s1"), ErrorCode.UNKNOWN_SESSION, {}),
    (refusals.unknown_run("r1"), ErrorCode.UNKNOWN_RUN, {}),
    (refusals.unknown_request("q1"), ErrorCode.UNKNOWN_REQUEST, {}),
    (refusals.nothing_open("r1"), ErrorCode.UNKNOWN_REQUEST, {}),
    (refusals.unknown_report("p1"), ErrorCode.UNKNOWN_REPORT, {}),
    (refusals.session_closed("s1"), ErrorCode.SESSION_CLOSED, {}),
    (refusals.session_busy("r1"), ErrorCode.SESSION_BUSY, {"run_id": "r1"}),
    (refusals.session_busy(None), ErrorCode.SESSION_BUSY, {"run_id": None}),
    (refusals.question_open(QUESTION), ErrorCode.QUESTION_OPEN, {"question": QUESTION.to_wire()}),
    (refusals.agent_mismatch("s1", "coder", "tester"), ErrorCode.AGENT_MISMATCH, {"agent": "coder"}),
    (refusals.wrong_host("s1"), ErrorCode.WRONG_HOST, {}),
    (refusals.too_deep(5), ErrorCode.TOO_DEEP, {"max_depth": 5}),
    (refusals.run_not_active("r1", "settled"), ErrorCode.RUN_NOT_ACTIVE, None),
    (refusals.no_active_run("s1"), ErrorCode.RUN_NOT_ACTIVE, {}),
    (refusals.run_not_claimable("r1", "running"), ErrorCode.RUN_NOT_CLAIMABLE, None),
    (refusals.stale_attempt("r1", 2), ErrorCode.STALE_ATTEMPT, {"run_id": "r1", "attempt": 2}),
    (refusals.step_budget_exhausted("r1", 3), ErrorCode.STEP_BUDGET_EXHAUSTED, None),
    (refusals.no_parent("s1"), ErrorCode.NO_PARENT, {}),
    (refusals.parent_unavailable(), ErrorCode.PARENT_UNAVAILABLE, {}),
    (refusals.fallback_required(), ErrorCode.FALLBACK_REQUIRED, {}),
    (refusals.invalid_recommendation(["a"]), ErrorCode.INVALID_RECOMMENDATION, {"options": ["a"]}),
    (
        refusals.duplicate_question("q1", 1000),
        ErrorCode.DUPLICATE_QUESTION,
        {"request_id": "q1", "expires_at": "1970-01-01T00:00:01.000Z"},
    ),
    (
        refusals.question_already_open("q1", 1000),
        ErrorCode.QUESTION_ALREADY_OPEN,
        {"request_id": "q1", "expires_at": "1970-01-01T00:00:01.000Z"},
    ),
    (refusals.question_limit_reached(20), ErrorCode.QUESTION_LIMIT_REACHED, {"limit": 20}),
    (refusals.unknown_option(["a"]), ErrorCode.UNKNOWN_OPTION, {"options": ["a"]}),
    (
        refusals.already_resolved("q1", "timed_out"),
        ErrorCode.ALREADY_RESOLVED,
        {"request_id": "q1", "status": "timed_out"},
    ),
    (refusals.not_held("s1"), ErrorCode.NOT_HELD, {}),
    (refusals.command_id_reused("c1"), ErrorCode.COMMAND_ID_REUSED, {"command_id": "c1"}),
    (refusals.overloaded(), ErrorCode.OVERLOADED, {}),
    (refusals.internal(), ErrorCode.INTERNAL, {}),
]


@pytest.mark.parametrize(("refusal", "code", "details"), SITUATIONS)
def test_each_situation_has_its_code_and_details(
    refusal: Refusal, code: ErrorCode, details: dict[str, Any] | None
) -> None:
    assert refusal.code is code
    assert details is None or refusal.details == details


@pytest.mark.parametrize("refusal", [refusal for refusal, _, _ in SITUATIONS])
def test_a_message_is_a_sentence_or_more_and_says_what_to_do(refusal: Refusal) -> None:
    assert len(refusal.message) > 30
    assert refusal.message.endswith(".")


def test_every_code_has_a_situation() -> None:
    assert {code for _, code, _ in SITUATIONS} == set(ErrorCode)


def test_busy_open_and_ours_are_retryable_and_nothing_else() -> None:
    assert {"session_busy", "question_open", "overloaded", "internal"} == RETRYABLE


def test_the_message_of_already_resolved_names_the_final_status() -> None:
    assert "timed_out" in refusals.already_resolved("q1", "timed_out").message


@pytest.mark.parametrize("refusal", [refusal for refusal, _, _ in SITUATIONS])
def test_a_refusal_goes_over_the_wire_and_back(refusal: Refusal) -> None:
    reply = json.dumps(refusal.to_reply())
    assert parse_reply(reply) == refusal
    assert json.loads(reply)["error"].keys() == {"code", "message", "retryable", "details"}


def test_a_result_goes_over_the_wire_and_back() -> None:
    assert parse_reply(json.dumps(ok({"run": {"run_id": "r1"}}))) == {"run": {"run_id": "r1"}}


@pytest.mark.parametrize(("retryable", "nearest"), [(True, ErrorCode.INTERNAL), (False, ErrorCode.INVALID)])
def test_a_code_of_a_newer_server_keeps_whether_it_is_retryable(retryable: bool, nearest: ErrorCode) -> None:
    raw = {"ok": False, "error": {"code": "brand_new", "message": "m", "retryable": retryable, "details": {}}}
    assert parse_reply(json.dumps(raw)) == Refusal(nearest, "m", {"code": "brand_new"})


@pytest.mark.parametrize("raw", ["[]", "{}", '{"ok": true}', '{"ok": false}', "x", '{"ok": 1, "result": {}}'])
def test_what_is_no_reply_is_an_error(raw: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # of the JSON parser or of ours
        parse_reply(raw)
