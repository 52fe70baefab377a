"""Cancelling: who may take a question back, and when it is too late for that."""

from typing import Any

import pytest

from tests.question_broker.situations import (
    CHILD,
    MINUTE,
    NOW,
    PARENT,
    RUN,
    RUNNER,
    Decided,
    EndFirst,
    Repeated,
    Situation,
)
from upcall_contracts.errors import ErrorCode, Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import EndReason, QuestionStatus

ASKED = Situation().asked("Q", timeout_ms=MINUTE, at=NOW)
HELD = Situation().held_by_runner().asked("Q", caller=RUNNER, attempt=2)
TAKEN_OVER = HELD.lost_by_runner().claimed_by("runner-2")


def code(outcome: Any) -> ErrorCode:
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


@pytest.mark.parametrize(
    ("situation", "caller", "refused"),
    [
        pytest.param(ASKED, CHILD, None, id="the child"),
        pytest.param(ASKED, OPERATOR, None, id="an operator"),
        pytest.param(HELD, RUNNER, None, id="the runner that holds the run"),
        pytest.param(HELD, CHILD, None, id="the child, though a runner holds its run"),
        pytest.param(HELD.lost_by_runner(), RUNNER, ErrorCode.STALE_ATTEMPT, id="a runner that lost the run"),
        pytest.param(TAKEN_OVER, RUNNER, ErrorCode.STALE_ATTEMPT, id="and another has it"),
        pytest.param(TAKEN_OVER, "runner-2", None, id="the next holder"),
        pytest.param(ASKED, PARENT, ErrorCode.UNKNOWN_REQUEST, id="not the parent: it can decline"),
        pytest.param(ASKED, "stranger", ErrorCode.UNKNOWN_REQUEST, id="nor anyone else"),
    ],
)
@pytest.mark.parametrize("by_run", [False, True], ids=["by-id", "by-run"])
def test_who_may_cancel(situation: Situation, caller: str, refused: ErrorCode | None, by_run: bool) -> None:
    outcome = situation.cancel(run_id=RUN if by_run else None, caller=caller)
    assert isinstance(outcome, Decided) if refused is None else code(outcome) is refused


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, EndReason.CHILD.value), (" \n", EndReason.CHILD.value), (" Found it. ", " Found it. ")],
    ids=["none", "blank", "a text, word for word"],
)
def test_reason(given: str | None, kept: str) -> None:
    decided = ASKED.cancel(reason=given, at=NOW + 3)
    assert (decided.event, decided.record.reason, decided.record.updated_at) == ("cancelled", kept, NOW + 3)


def test_without_anything_open_the_run_has_nothing_to_cancel() -> None:
    for situation in (Situation(), ASKED.ended_as(QuestionStatus.ANSWERED)):
        assert code(situation.cancel(run_id=RUN)) is ErrorCode.UNKNOWN_REQUEST


@pytest.mark.parametrize("status", [s for s in QuestionStatus if s is not QuestionStatus.WAITING])
def test_an_ended_question_is_already_resolved(status: QuestionStatus) -> None:
    outcome = ASKED.ended_as(status).cancel()
    assert (code(outcome), outcome.details["status"]) == (ErrorCode.ALREADY_RESOLVED, status.value)


def test_a_runner_that_has_settled_hears_that_it_is_resolved() -> None:
    settled = HELD.ended_as(QuestionStatus.CANCELLED).settled()
    assert code(settled.cancel(caller=RUNNER)) is ErrorCode.ALREADY_RESOLVED


@pytest.mark.parametrize(
    ("situation", "at", "event"),
    [
        pytest.param(ASKED, NOW + MINUTE, "timed_out", id="at expires_at its time is over"),
        pytest.param(ASKED.settled(), NOW, "cancelled", id="its run has settled"),
        pytest.param(ASKED.with_parent(closed_at=1), NOW, "error", id="the parent has closed"),
    ],
)
def test_an_end_that_is_owed_comes_first(situation: Situation, at: int, event: str) -> None:
    outcome = situation.cancel(at=at, reason="changed my mind")
    assert isinstance(outcome, EndFirst)
    assert outcome.end.event == event
    assert code(situation.after(outcome.end).cancel(at=at)) is ErrorCode.ALREADY_RESOLVED


CANCELLED = HELD.after(HELD.cancel(caller=RUNNER, command_id="c"))


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(CANCELLED, id="at-once"),
        pytest.param(CANCELLED.settled(), id="settled"),
        pytest.param(CANCELLED.lost_by_runner(), id="lost"),
        pytest.param(CANCELLED.asked("Q2", "May I?", caller=RUNNER, attempt=2), id="another-is-open"),
    ],
)
def test_the_same_cancel_again_decides_nothing_new(later: Situation) -> None:
    """Above all it takes no later question of the run back."""
    assert later.cancel(caller=RUNNER, command_id="c", at=NOW + 9 * MINUTE) == Repeated("Q")
    reused = later.cancel(caller=RUNNER, command_id="c", reason="another body")
    assert code(reused) is ErrorCode.COMMAND_ID_REUSED


def test_the_same_cancel_by_run_again_takes_no_later_question_back() -> None:
    first = ASKED.after(ASKED.cancel(run_id=RUN, command_id="c")).asked("Q2", "May I?")
    assert first.cancel(run_id=RUN, command_id="c") == Repeated("Q")
    assert first.cancel(run_id=RUN, command_id="d").record.request_id == "Q2"
