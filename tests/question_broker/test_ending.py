"""Ends that no command asks for, and the one transition that every end goes through."""

import pytest

from tests.question_broker.situations import MINUTE, NOW, RUN, Situation, child_state, run_record
from upcall_contracts.records import QuestionStatus, RunStatus
from upcall_question_broker.decisions import ending

ASKED = Situation().asked("Q", timeout_ms=MINUTE, at=NOW)


def owed(situation: Situation, at: int = NOW) -> tuple[str, str | None] | None:
    assert situation.questions is not None
    record = situation.records["Q"]
    decided = ending.owed(situation.questions, record, situation.child, situation.parent, at)
    return None if decided is None else (decided.event, decided.record.reason)


@pytest.mark.parametrize(
    ("situation", "end"),
    [
        pytest.param(ASKED, None, id="nothing has happened"),
        pytest.param(ASKED.settled(), ("cancelled", "run_settled"), id="the run has settled"),
        pytest.param(
            ASKED.with_child(cancel_deadline=1), ("cancelled", "session_cancelled"), id="being cancelled"
        ),
        pytest.param(
            ASKED.settled().with_child(wake_blocked=True),
            ("cancelled", "session_cancelled"),
            id="cancelled, settled",
        ),
        pytest.param(
            ASKED.settled().with_child(run=run_record(run_id="R2"), wake_blocked=False),
            ("cancelled", "run_settled"),
            id="cancelled, and continued since",
        ),
        pytest.param(
            ASKED.with_active(status=RunStatus.QUEUED), None, id="queued again: the next holder gets it"
        ),
        pytest.param(ASKED.with_active(status=RunStatus.INTERRUPTED), None, id="between two holders"),
        pytest.param(
            ASKED.with_parent(closed_at=1), ("error", "parent_unavailable"), id="the parent has closed"
        ),
        pytest.param(ASKED.with_parent(live=False), ("error", "parent_unavailable"), id="the parent is gone"),
        pytest.param(ASKED.with_parent(run=None), None, id="the parent is idle, and can be woken"),
        pytest.param(
            ASKED.settled().with_parent(live=False),
            ("cancelled", "run_settled"),
            id="both: the child's comes first",
        ),
    ],
)
def test_what_an_open_question_is_owed(situation: Situation, end: tuple[str, str | None] | None) -> None:
    assert owed(situation) == end


@pytest.mark.parametrize(
    ("at", "event"),
    [(NOW + MINUTE - 1, "cancelled"), (NOW + MINUTE, "timed_out")],
    ids=["before", "at expires_at"],
)
def test_whichever_came_first_counts(at: int, event: str) -> None:
    """The run settled at `at`: a question whose time was over by then timed out."""
    found = owed(ASKED.settled(), at)
    assert found is not None
    assert found[0] == event


def test_time_alone_is_the_deadlines_business() -> None:
    """Nothing is owed to an overdue question of a run that goes on: its deadline or an answer ends it."""
    assert owed(ASKED, NOW + 9 * MINUTE) is None


@pytest.mark.parametrize("status", [s for s in QuestionStatus if s is not QuestionStatus.WAITING])
def test_there_is_one_end(status: QuestionStatus) -> None:
    ended = ASKED.ended_as(status)
    assert ended.questions is not None
    for other in QuestionStatus:
        with pytest.raises(ValueError, match="has ended"):
            ending.end(ended.questions, ended.records["Q"], other, NOW)


def test_brief_and_record_tell_the_same() -> None:
    ended = ASKED.ended_as(QuestionStatus.TIMED_OUT, at=NOW + 8)
    assert ended.questions is not None
    brief = ended.questions.questions[0]
    assert (brief.status, brief.ended_at) == (QuestionStatus.TIMED_OUT, NOW + 8)
    assert (brief.end_key, brief.end_fingerprint) == (None, None)
    assert ended.questions.paused_ms(NOW + 100) == 8


def test_can_wait_is_for_the_active_run_alone() -> None:
    assert ending.can_wait(child_state(), RUN)
    assert not ending.can_wait(child_state(), "R2")
