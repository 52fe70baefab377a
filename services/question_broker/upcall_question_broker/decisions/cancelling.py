"""May this question be cancelled? By the child, by who holds its run, or by an operator."""

from upcall_contracts import refusals
from upcall_contracts.commands import QuestionCancel
from upcall_contracts.errors import Refusal
from upcall_contracts.fields import is_blank
from upcall_contracts.log import CommandMark
from upcall_contracts.records import EndReason, QuestionRecord, QuestionStatus, RunRecord
from upcall_contracts.states import QuestionsState, SessionState

from . import access, ending
from .outcomes import Decided, EndFirst, Repeated


def decide_cancel(
    questions: QuestionsState | None,
    record: QuestionRecord | None,
    child: SessionState | None,
    run: RunRecord | None,
    parent: SessionState | None,
    caller: str,
    body: QuestionCancel,
    mark: CommandMark,
    now: int,
    *,
    elsewhere: bool = False,
) -> Decided | Repeated | EndFirst | Refusal:
    """Decide a cancel at epoch ms `now`. `record` is the question named, or by run the one that waits; `run`
    is the run that asked. `elsewhere`: a cancel of the same command_id has ended a question of another run.

    The cancel that ended a question decides nothing new when it comes again, whatever its sender may do by
    then.
    """
    if questions is not None:
        repeated = ending.repeated(questions, mark, body.command_id, elsewhere=elsewhere)
        if repeated is not None:
            return repeated
    heard = child is not None and (access.may_cancel(caller, child) or access.spoke_for(caller, child, run))
    if questions is None or record is None or child is None or not heard:
        if body.request_id is not None:
            return refusals.unknown_request(body.request_id)
        return refusals.nothing_open(body.run_id or "")
    if record.status is not QuestionStatus.WAITING:
        return refusals.already_resolved(record.request_id, record.status.value)
    if record.expires_at is not None and now >= record.expires_at:
        return EndFirst(ending.timed_out(questions, record, now))
    owed = ending.owed(questions, record, child, parent, now)
    if owed is not None:
        return EndFirst(owed)
    if not access.may_cancel(caller, child):
        return refusals.stale_attempt(questions.run_id, run.attempt if run is not None else 1)
    reason = EndReason.CHILD.value if body.reason is None or is_blank(body.reason) else body.reason
    return ending.end(questions, record, QuestionStatus.CANCELLED, now, mark, reason=reason)
