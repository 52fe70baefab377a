"""Answering: who may, what is kept, what comes too late, and the answer that comes again."""

from dataclasses import replace
from typing import Any

import pytest

from tests.question_broker.situations import (
    CHILD,
    MINUTE,
    NOW,
    PARENT,
    RUNNER,
    Decided,
    EndFirst,
    Repeated,
    Situation,
    run_record,
)
from upcall_contracts import limits
from upcall_contracts.errors import ErrorCode, Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import (
    Action,
    AnsweredBy,
    AnswererKind,
    EndReason,
    Host,
    QuestionStatus,
    RunStatus,
)
from upcall_question_broker.decisions.answering import late_refusal

ASKED = Situation().asked("Q", options=["PostgreSQL", "SQLite"], timeout_ms=MINUTE, at=NOW)
ENDS = [s for s in QuestionStatus if s is not QuestionStatus.WAITING]


def code(outcome: Any) -> ErrorCode:
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


HELD_PARENT = ASKED.with_parent(host=Host.RUNNER, holder=RUNNER)
MAY_ANSWER = [
    pytest.param(ASKED, PARENT, True, id="the parent session"),
    pytest.param(ASKED, OPERATOR, True, id="an operator"),
    pytest.param(HELD_PARENT, RUNNER, True, id="the runner that holds the parent's run"),
    pytest.param(HELD_PARENT, PARENT, True, id="the parent session, though a runner holds it"),
    pytest.param(HELD_PARENT.with_parent(holder=None), RUNNER, False, id="a runner that holds it no more"),
    pytest.param(ASKED.with_parent(holder="G", ancestors=["G"]), "G", False, id="who spawned the parent"),
    pytest.param(ASKED, CHILD, False, id="the child itself"),
    pytest.param(ASKED.held_by_runner(), RUNNER, False, id="the child's runner"),
    pytest.param(ASKED, "stranger", False, id="anyone else"),
    pytest.param(
        replace(ASKED, parent=None), "stranger", False, id="anyone else, of a parent that is no more"
    ),
]


@pytest.mark.parametrize(("situation", "caller", "may"), MAY_ANSWER)
def test_who_may_answer(situation: Situation, caller: str, may: bool) -> None:
    outcome = situation.answer(caller=caller)
    assert isinstance(outcome, Decided) if may else code(outcome) is ErrorCode.UNKNOWN_REQUEST


def test_who_may_not_is_told_the_same_as_of_what_does_not_exist() -> None:
    foreign, absent = ASKED.answer(caller="stranger"), ASKED.answer("Q9", caller="stranger")
    assert foreign.message.replace("Q", "") == absent.message.replace("Q9", "")
    assert (foreign.code, foreign.details) == (absent.code, absent.details)


@pytest.mark.parametrize(
    ("caller", "kind"), [(PARENT, AnswererKind.AGENT), (OPERATOR, AnswererKind.HUMAN)], ids=["agent", "human"]
)
def test_answer_stands_in_the_record_word_for_word(caller: str, kind: AnswererKind) -> None:
    decided = ASKED.answer(
        answer="  `rm -rf /`\n", rationale="Because.", selected_option="SQLite", caller=caller, at=NOW + 5
    )
    record = decided.record
    assert (decided.event, record.status, record.action) == (
        "answered",
        QuestionStatus.ANSWERED,
        Action.ACCEPT,
    )
    assert (record.answer, record.rationale) == ("  `rm -rf /`\n", "Because.")
    assert (record.selected_option, record.reason) == ("SQLite", None)
    assert (record.answered_at, record.updated_at) == (NOW + 5, NOW + 5)
    assert record.answered_by == AnsweredBy(kind=kind, id=caller)
    assert (record.created_at, record.expires_at) == (NOW, NOW + MINUTE)
    assert decided.state.waiting() is None


def test_declined_is_an_answer_without_one() -> None:
    record = ASKED.answer(answer=None, action=Action.DECLINE, rationale="Ask billing.").record
    assert (record.status, record.action) == (QuestionStatus.ANSWERED, Action.DECLINE)
    assert (record.answer, record.rationale) == (None, "Ask billing.")


@pytest.mark.parametrize("option", ["sqlite", "SQLite ", "MySQL", ""])
def test_option_has_to_be_offered_to_the_letter(option: str) -> None:
    outcome = ASKED.answer(selected_option=option)
    assert (code(outcome), outcome.details) == (
        ErrorCode.UNKNOWN_OPTION,
        {"options": ["PostgreSQL", "SQLite"]},
    )


def test_option_where_none_is_offered() -> None:
    assert code(Situation().asked("Q").answer(selected_option="SQLite")) is ErrorCode.UNKNOWN_OPTION


@pytest.mark.parametrize(
    ("at", "in_time"),
    [(NOW, True), (NOW + MINUTE - 1, True), (NOW + MINUTE, False), (NOW + MINUTE + 1, False)],
    ids=["at once", "in the last millisecond", "at expires_at", "after it"],
)
def test_in_time_is_before_expires_at(at: int, in_time: bool) -> None:
    outcome = ASKED.answer(at=at)
    if in_time:
        assert isinstance(outcome, Decided)
    else:
        assert isinstance(outcome, EndFirst)
        assert outcome.end.event == "timed_out"
        assert code(late_refusal(outcome.end.record)) is ErrorCode.ALREADY_RESOLVED


CANCELLED, ERROR = QuestionStatus.CANCELLED, QuestionStatus.ERROR
NO_LONGER = [
    pytest.param(ASKED.settled(), CANCELLED, EndReason.RUN_SETTLED, id="its run has settled"),
    pytest.param(
        ASKED.settled().with_child(run=run_record(run_id="R2")),
        CANCELLED,
        EndReason.RUN_SETTLED,
        id="another run is active",
    ),
    pytest.param(
        ASKED.with_child(cancel_deadline=5),
        CANCELLED,
        EndReason.SESSION_CANCELLED,
        id="its run is being cancelled",
    ),
    pytest.param(
        ASKED.settled().with_child(wake_blocked=True),
        CANCELLED,
        EndReason.SESSION_CANCELLED,
        id="was cancelled",
    ),
    pytest.param(replace(ASKED, child=None), CANCELLED, EndReason.RUN_SETTLED, id="its session is no more"),
    pytest.param(ASKED.with_parent(live=False), ERROR, EndReason.PARENT_UNAVAILABLE, id="the parent is gone"),
    pytest.param(
        ASKED.with_parent(closed_at=5), ERROR, EndReason.PARENT_UNAVAILABLE, id="the parent has closed"
    ),
    pytest.param(
        ASKED.settled().with_parent(closed_at=5),
        CANCELLED,
        EndReason.RUN_SETTLED,
        id="both: the child's comes first",
    ),
]


@pytest.mark.parametrize(("situation", "status", "reason"), NO_LONGER)
@pytest.mark.parametrize("caller", [PARENT, OPERATOR])
def test_answer_that_comes_between_an_end_and_its_event(
    situation: Situation, status: QuestionStatus, reason: EndReason, caller: str
) -> None:
    """What the question rests on has ended: that end counts, also where nobody has carried it out."""
    outcome = situation.answer(caller=caller)
    assert isinstance(outcome, EndFirst)
    assert (outcome.end.record.status, outcome.end.record.reason) == (status, reason.value)
    late = situation.after(outcome.end).answer(caller=caller)
    assert (late.event, late.record.answer) == ("late", None)


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.INTERRUPTED])
def test_a_run_between_two_holders_still_waits(status: RunStatus) -> None:
    waiting = ASKED.with_active(status=status, holder=None)
    assert isinstance(waiting.answer(), Decided)


# Late


@pytest.mark.parametrize("status", ENDS)
def test_late_answer_is_kept_and_changes_nothing(status: QuestionStatus) -> None:
    ended = ASKED.ended_as(status)
    late = ended.answer(answer="Use files.", rationale="r", selected_option="MySQL", at=NOW + 7)
    assert (late.event, late.record) == ("late", ended.records["Q"])
    assert late.late.model_dump() == {
        "answer": "Use files.",
        "rationale": "r",
        "selected_option": "MySQL",
        "answered_by": {"kind": AnswererKind.AGENT, "id": PARENT},
        "stored_at": NOW + 7,
    }
    refused = late_refusal(late.record)
    assert refused.details == {"request_id": "Q", "status": status.value}
    assert status.value in refused.message


def test_ten_late_answers_are_kept_and_each_command_once() -> None:
    situation = ASKED.ended_as(QuestionStatus.TIMED_OUT)
    for number in range(limits.LATE_ANSWERS_MAX):
        situation = situation.after(situation.answer(command_id=f"late-{number}"))
        assert code(situation.answer(command_id=f"late-{number}")) is ErrorCode.ALREADY_RESOLVED
    assert code(situation.answer(command_id="one-too-many")) is ErrorCode.ALREADY_RESOLVED


def test_late_answer_to_an_older_question_leaves_the_open_one_alone() -> None:
    situation = ASKED.ended_as(QuestionStatus.TIMED_OUT).asked("Q2", "May I drop it?")
    late = situation.after(situation.answer("Q"))
    assert late.questions is not None
    waiting = late.questions.waiting()
    assert waiting is not None
    assert waiting.request_id == "Q2"
    assert isinstance(late.answer("Q2", command_id="other"), Decided)


@pytest.mark.parametrize("caller", [CHILD, "stranger"])
def test_who_may_not_answer_is_not_told_that_it_is_over(caller: str) -> None:
    assert code(ASKED.ended_as(QuestionStatus.ANSWERED).answer(caller=caller)) is ErrorCode.UNKNOWN_REQUEST


# The same command again


ANSWERED = HELD_PARENT.after(HELD_PARENT.answer(caller=RUNNER, command_id="c"))
AGAIN_LATER = {
    "at-once": ANSWERED,
    "child-settled": ANSWERED.settled(),
    "asked-another": ANSWERED.asked("Q2", "May I drop it?"),
    "parent-let-go": ANSWERED.with_parent(holder=None),
    "parent-held-by-another": ANSWERED.with_parent(holder="runner-2"),
    "parent-closed": ANSWERED.with_parent(closed_at=1, holder=None),
    "sessions-purged": replace(ANSWERED, child=None, parent=None),
}


@pytest.mark.parametrize("later", AGAIN_LATER)
def test_the_same_answer_again_is_no_error(later: str) -> None:
    """Its sender may have lost the reply, and since then the right to answer."""
    again = AGAIN_LATER[later].answer(caller=RUNNER, command_id="c", at=NOW + 10 * MINUTE)
    assert again == Repeated("Q")


@pytest.mark.parametrize("later", AGAIN_LATER)
def test_the_same_command_id_with_another_answer(later: str) -> None:
    outcome = AGAIN_LATER[later].answer(answer="PostgreSQL.", caller=RUNNER, command_id="c")
    assert code(outcome) is ErrorCode.COMMAND_ID_REUSED


def test_the_same_command_id_for_the_runs_next_question() -> None:
    outcome = ANSWERED.asked("Q2", "May I drop it?").answer("Q2", caller=RUNNER, command_id="c")
    assert code(outcome) is ErrorCode.COMMAND_ID_REUSED


def test_the_same_command_id_of_somebody_else_is_late() -> None:
    assert ANSWERED.answer(caller=OPERATOR, command_id="c").event == "late"
