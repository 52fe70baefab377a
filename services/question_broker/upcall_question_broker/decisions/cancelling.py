"""May this question be cancelled? By the child, by who holds its run, or by an operator."""

from upcall_contracts import refusals
from upcall_contracts.commands import QuestionCancel
from upcall_contracts.errors import Refusal
from upcall_contracts.fields import is_blank
from upcall_contracts.log import CommandMark
from upcall_contracts.records import EndReason, QuestionRecord, QuestionStatus
from upcall_contracts.states import QuestionsState, SessionState

from . import access, ending
from .outcomes import Decided, EndFirst, Repeated


def decide_cancel(
    questions: QuestionsState | None,
    record: QuestionRecord | None,
    child: SessionState | None,
    parent: SessionState | None,
    caller: str,
    body: QuestionCancel,
    mark: CommandMark,
    now: int,
) -> Decided | Repeated | EndFirst | Refusal:
    """Decide a cancel at epoch ms `now`. `record` is the question named, or by run the one that waits."""
    if questions is not None and child is not None and access.may_cancel(caller, child):
        for brief in questions.questions:
            if brief.end_key == mark.key:
                same = brief.end_fingerprint == mark.fingerprint
                return (
                    Repeated(brief.request_id) if same else refusals.command_id_reused(body.command_id or "")
                )
        if record is not None:
            return _cancel(questions, record, child, parent, body, mark, now)
    if body.request_id is not None:
        return refusals.unknown_request(body.request_id)
    return refusals.nothing_open(body.run_id or "")


def _cancel(
    questions: QuestionsState,
    record: QuestionRecord,
    child: SessionState,
    parent: SessionState | None,
    body: QuestionCancel,
    mark: CommandMark,
    now: int,
) -> Decided | EndFirst | Refusal:
    if record.status is not QuestionStatus.WAITING:
        return refusals.already_resolved(record.request_id, record.status.value)
    if record.expires_at is not None and now >= record.expires_at:
        return EndFirst(ending.timed_out(questions, record, now))
    owed = ending.owed(questions, record, child, parent, now)
    if owed is not None:
        return EndFirst(owed)
    reason = EndReason.CHILD.value if body.reason is None or is_blank(body.reason) else body.reason
    return ending.end(questions, record, QuestionStatus.CANCELLED, now, mark, reason=reason)
