"""What ends a question: its one transition, and the ends that no command asks for.

A question that its run or its parent no longer stands behind is owed an end: whoever meets it (the consumer
of those events, an answer that comes in between, the ask itself when it looks again) decides the same.
"""

from typing import Any

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.log import CommandMark
from upcall_contracts.records import EndReason, QuestionRecord, QuestionStatus, RunStatus
from upcall_contracts.states import QuestionBrief, QuestionsState, SessionState
from upcall_contracts.transitions import QUESTION, allowed

from .outcomes import Decided, Repeated


def end(
    questions: QuestionsState,
    record: QuestionRecord,
    status: QuestionStatus,
    now: int,
    mark: CommandMark | None = None,
    **fields: Any,
) -> Decided:
    """The one transition from waiting to an end. `fields` are what the end adds to the record."""
    if record.status is status or not allowed(QUESTION, record.status, status):
        raise ValueError(f"{record.request_id} has ended as {record.status} already")
    ended: dict[str, Any] = {"status": status, "ended_at": now}
    if mark is not None:
        ended |= {"end_key": mark.key, "end_fingerprint": mark.fingerprint}
    return Decided(
        status.value,
        record.model_copy(update={"status": status, "updated_at": now, **fields}),
        with_brief(questions, record.request_id, ended),
    )


def with_brief(questions: QuestionsState, request_id: str, changes: dict[str, Any]) -> QuestionsState:
    """The state with one of its questions changed."""

    def changed(brief: QuestionBrief) -> QuestionBrief:
        return brief.model_copy(update=changes) if brief.request_id == request_id else brief

    return questions.model_copy(update={"questions": [changed(brief) for brief in questions.questions]})


def repeated(
    questions: QuestionsState, mark: CommandMark, command_id: str | None, *, elsewhere: bool = False
) -> Repeated | Refusal | None:
    """What a command that ended a question before comes to: it decides nothing new.

    `elsewhere`: one of this id has ended a question of another run.
    """
    for brief in questions.questions:
        if brief.end_key == mark.key:
            same = brief.end_fingerprint == mark.fingerprint
            return Repeated(brief.request_id) if same else refusals.command_id_reused(command_id or "")
    return refusals.command_id_reused(command_id or "") if elsewhere else None


def timed_out(questions: QuestionsState, record: QuestionRecord, now: int) -> Decided:
    """expires_at has passed. An answer that was stored before then must have been handled first."""
    return end(questions, record, QuestionStatus.TIMED_OUT, now)


def can_wait(child: SessionState, run_id: str) -> bool:
    """Whether a run may have an open question as far as its session goes: it is running, and not being
    cancelled."""
    run = child.run
    return (
        run is not None
        and run.run_id == run_id
        and run.status is RunStatus.RUNNING
        and child.cancel_deadline is None
    )


def owed(
    questions: QuestionsState,
    record: QuestionRecord,
    child: SessionState | None,
    parent: SessionState | None,
    now: int,
) -> Decided | None:
    """The end that an open question has come to without a command, at epoch ms `now`; None: it waits on."""
    status, reason = owed_status(questions.run_id, child, parent)
    if status is None:
        return None
    if record.expires_at is not None and now >= record.expires_at:
        return timed_out(questions, record, now)
    return end(questions, record, status, now, reason=reason)


def owed_status(
    run_id: str, child: SessionState | None, parent: SessionState | None
) -> tuple[QuestionStatus | None, str | None]:
    """The status and reason of the end that an open question is owed; (None, None) if it waits on."""
    if child is None or child.run is None or child.run.run_id != run_id:
        # A cancelled session says so until it is continued: whether its host has settled yet makes no odds.
        cancelled = child is not None and child.run is None and child.wake_blocked
        reason = EndReason.SESSION_CANCELLED if cancelled else EndReason.RUN_SETTLED
        return QuestionStatus.CANCELLED, reason.value
    if child.cancel_deadline is not None:
        return QuestionStatus.CANCELLED, EndReason.SESSION_CANCELLED.value
    if parent is None or not parent.reachable:
        return QuestionStatus.ERROR, EndReason.PARENT_UNAVAILABLE.value
    return None, None
