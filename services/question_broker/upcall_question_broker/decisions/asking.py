"""May this question be asked? DESIGN.md section 3, "Asking": refused by the first rule that holds."""

from dataclasses import dataclass

from upcall_contracts import refusals
from upcall_contracts.commands import QuestionAsk
from upcall_contracts.errors import Refusal
from upcall_contracts.fields import is_blank
from upcall_contracts.log import CommandMark
from upcall_contracts.records import QuestionRecord, QuestionStatus, RunRecord, RunStatus
from upcall_contracts.states import QuestionBrief, QuestionsState, SessionState

from . import access, ending, sameness
from .outcomes import Decided, EndFirst, Repeated


@dataclass(frozen=True, slots=True)
class AskFacts:
    """What the log says at the moment of deciding."""

    child: SessionState | None
    """The session of the run that is named; None if there is no such run."""
    run: RunRecord | None
    """That run."""
    parent: SessionState | None
    """The child's parent session."""
    questions: QuestionsState | None
    """The run's questions so far."""
    open_question: QuestionRecord | None
    """The one that waits."""
    elsewhere: bool = False
    """The same command, by its id, asked for another run before."""


@dataclass(frozen=True, slots=True)
class AskRules:
    """What the operator set."""

    max_questions: int
    """UPCALL_MAX_QUESTIONS_PER_RUN."""


def refuse_early(body: QuestionAsk) -> Refusal | None:
    """The rules that need nothing but the command."""
    if body.can_continue_without_answer and is_blank(body.fallback):
        return refusals.fallback_required()
    if body.recommended_option is not None and body.recommended_option not in body.options:
        return refusals.invalid_recommendation(body.options)
    return None


def decide_ask(
    facts: AskFacts,
    caller: str,
    body: QuestionAsk,
    mark: CommandMark,
    request_id: str,
    now: int,
    rules: AskRules,
) -> Decided | Repeated | EndFirst | Refusal:
    """Decide an ask.

    `now` is the command's time in epoch ms, `request_id` the id that follows from the command. A repeated
    command decides nothing new, whatever has become of the run since.
    """
    invalid = _attempt_required(facts, caller, body)
    if invalid is not None:
        return invalid
    early = refuse_early(body)
    if early is not None:
        return early
    repeated = _repeated(facts, body, mark)
    if repeated is not None:
        return repeated
    standing = _standing(facts, caller, body)
    if isinstance(standing, Refusal):
        return standing
    crowded = _crowded(facts, body, now, rules)
    if crowded is not None:
        return crowded
    return _accept(standing, facts.questions, body, mark, request_id, now)


def _attempt_required(facts: AskFacts, caller: str, body: QuestionAsk) -> Refusal | None:
    """A runner that may hear of the run must say which attempt it means: without that the body is invalid."""
    child, run = facts.child, facts.run
    if body.attempt is not None or child is None or not access.is_runner(caller, child):
        return None
    return refusals.attempt_required() if access.spoke_for(caller, child, run) else None


def _repeated(facts: AskFacts, body: QuestionAsk, mark: CommandMark) -> Repeated | Refusal | None:
    """The same command again: the same question, or the same id with another body."""
    for brief in facts.questions.questions if facts.questions is not None else []:
        if brief.command_key == mark.key:
            same = brief.fingerprint == mark.fingerprint
            return Repeated(brief.request_id) if same else refusals.command_id_reused(body.command_id or "")
    return refusals.command_id_reused(body.command_id or "") if facts.elsewhere else None


@dataclass(frozen=True, slots=True)
class _Standing:
    """A run that may ask, and whom it asks."""

    child: SessionState
    run: RunRecord
    parent: SessionState


def _standing(facts: AskFacts, caller: str, body: QuestionAsk) -> _Standing | Refusal:
    """Whether the caller speaks for a run that is running and has somebody to ask."""
    child, run = facts.child, facts.run
    if child is None or run is None or not access.spoke_for(caller, child, run):
        return refusals.unknown_run(body.run_id)
    if body.attempt is not None and body.attempt != run.attempt:
        return refusals.stale_attempt(body.run_id, run.attempt)
    if not access.speaks_for(caller, child) and caller != run.holder:
        return refusals.stale_attempt(body.run_id, run.attempt)
    if not ending.can_wait(child, body.run_id):
        cancelling = run.status is RunStatus.RUNNING
        return refusals.run_not_active(body.run_id, "being cancelled" if cancelling else run.status.value)
    if child.parent_session_id is None:
        return refusals.no_parent(child.session_id)
    if facts.parent is None or not facts.parent.reachable:
        return refusals.parent_unavailable()
    return _Standing(child, run, facts.parent)


def _crowded(facts: AskFacts, body: QuestionAsk, now: int, rules: AskRules) -> EndFirst | Refusal | None:
    """Whether the run has a question open already, or has asked too many."""
    questions, open_question = facts.questions, facts.open_question
    waiting = questions.waiting() if questions is not None else None
    if questions is not None and waiting is not None and open_question is not None:
        if now >= waiting.expires_at:
            return EndFirst(ending.timed_out(questions, open_question, now))
        if sameness.same_question(open_question.question, body.question):
            return refusals.duplicate_question(waiting.request_id, waiting.expires_at)
        return refusals.question_already_open(waiting.request_id, waiting.expires_at)
    if questions is not None and len(questions.questions) >= rules.max_questions:
        return refusals.question_limit_reached(rules.max_questions)
    return None


def _accept(
    standing: _Standing,
    questions: QuestionsState | None,
    body: QuestionAsk,
    mark: CommandMark,
    request_id: str,
    now: int,
) -> Decided:
    child, run, parent_session_id = standing.child, standing.run, standing.parent.session_id
    record = QuestionRecord(
        request_id=request_id,
        status=QuestionStatus.WAITING,
        created_at=now,
        updated_at=now,
        expires_at=now + body.timeout_ms,
        parent_run_id=run.parent_run_id,
        parent_session_id=parent_session_id,
        child_run_id=run.run_id,
        child_session_id=child.session_id,
        root_session_id=child.root_session_id,
        task_id=body.task_id if body.task_id is not None else run.task_id,
        agent=child.agent,
        description=run.description,
        question=body.question,
        why_blocked=body.why_blocked,
        options=body.options,
        recommended_option=body.recommended_option,
        can_continue_without_answer=body.can_continue_without_answer,
        fallback=body.fallback,
        timeout_ms=body.timeout_ms,
        meta=body.meta,
    )
    brief = QuestionBrief(
        request_id=request_id,
        command_key=mark.key,
        fingerprint=mark.fingerprint,
        created_at=now,
        expires_at=now + body.timeout_ms,
    )
    before = questions or QuestionsState(
        run_id=run.run_id,
        session_id=child.session_id,
        parent_session_id=parent_session_id,
        parent_run_id=run.parent_run_id,
        parent_host=standing.parent.host,
    )
    state = before.model_copy(update={"questions": [*before.questions, brief]})
    return Decided("requested", record, state)
