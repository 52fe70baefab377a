"""May this question be answered? DESIGN.md section 3: from waiting to one end, whoever comes first."""

from upcall_contracts import limits, refusals
from upcall_contracts.commands import QuestionAnswer
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.log import CommandMark
from upcall_contracts.records import AnsweredBy, AnswererKind, LateAnswer, QuestionRecord, QuestionStatus
from upcall_contracts.states import QuestionsState, SessionState

from . import access, ending
from .outcomes import Decided, EndFirst, Repeated


def decide_answer(
    questions: QuestionsState | None,
    record: QuestionRecord | None,
    child: SessionState | None,
    parent: SessionState | None,
    caller: str,
    body: QuestionAnswer,
    mark: CommandMark,
    now: int,
    *,
    elsewhere: bool = False,
) -> Decided | Repeated | EndFirst | Refusal:
    """Decide an answer that JetStream stored at epoch ms `now`.

    To an ended question it comes late: Decided is then the event that keeps its text, and the caller is
    refused all the same (`late_refusal`). `elsewhere`: an answer of the same command_id has ended a question
    of another run. The answer that ended a question decides nothing new when it comes
    again, whatever its sender may do by then.
    """
    if questions is None or record is None:
        return refusals.unknown_request(body.request_id)
    repeated = ending.repeated(questions, mark, body.command_id, elsewhere=elsewhere)
    if repeated is not None:
        return repeated
    if not access.may_answer(caller, questions.parent_session_id, parent):
        return refusals.unknown_request(body.request_id)
    brief = next(b for b in questions.questions if b.request_id == body.request_id)
    if record.status is not QuestionStatus.WAITING:
        return _late(questions, record, brief.late_keys, caller, body, mark, now)
    if now >= brief.expires_at:
        return EndFirst(ending.timed_out(questions, record, now))
    owed = ending.owed(questions, record, child, parent, now)
    if owed is not None:
        return EndFirst(owed)
    if body.selected_option is not None and body.selected_option not in record.options:
        return refusals.unknown_option(record.options)
    return ending.end(
        questions,
        record,
        QuestionStatus.ANSWERED,
        now,
        mark,
        answer=body.answer,
        rationale=body.rationale,
        selected_option=body.selected_option,
        action=body.action,
        answered_at=now,
        answered_by=_answerer(caller),
    )


def late_refusal(record: QuestionRecord) -> Refusal:
    """What the sender of a late answer is told."""
    return refusals.already_resolved(record.request_id, record.status.value)


def _late(
    questions: QuestionsState,
    record: QuestionRecord,
    kept: list[str],
    caller: str,
    body: QuestionAnswer,
    mark: CommandMark,
    now: int,
) -> Decided | Refusal:
    if mark.key in kept or len(kept) >= limits.LATE_ANSWERS_MAX:
        return late_refusal(record)
    late = LateAnswer(
        answer=body.answer,
        rationale=body.rationale,
        selected_option=body.selected_option,
        answered_by=_answerer(caller),
        stored_at=now,
    )
    state = ending.with_brief(questions, record.request_id, {"late_keys": [*kept, mark.key]})
    return Decided("late", record, state, late)


def _answerer(caller: str) -> AnsweredBy:
    kind = AnswererKind.HUMAN if caller == OPERATOR else AnswererKind.AGENT
    return AnsweredBy(kind=kind, id=caller)
