"""session.continue: a further run on an earlier session, with all that it knew."""

from dataclasses import dataclass
from typing import Any

from upcall_contracts import refusals, texts
from upcall_contracts.commands import SessionContinue
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host, QuestionRecord, Trigger
from upcall_contracts.states import SessionState

from . import access, entries, periods, spawning
from .repeating import done, repeated
from .results import Asked, Decided, Repeated
from .rules import Rules
from .starting import Start, begin, parent_run


@dataclass(frozen=True, slots=True)
class ContinueFacts:
    """What the log says beside the session itself."""

    parent: SessionState | None
    """The session's parent."""
    open_question: QuestionRecord | None
    """What the session's active run waits for an answer to."""


def refuse(
    state: SessionState | None, facts: ContinueFacts, body: SessionContinue, caller: str
) -> Refusal | None:
    """The checks, in the order of the contract; nothing changes on a refusal."""
    if state is None or not access.may_continue(caller, state, facts.parent):
        return refusals.unknown_session(body.session_id)
    if body.agent is not None and body.agent != state.agent:
        return refusals.agent_mismatch(state.session_id, state.agent, body.agent)
    if state.closed_at is not None or state.closing:
        return refusals.session_closed(state.session_id)
    if facts.open_question is not None:
        return refusals.question_open(facts.open_question)
    if state.run is not None or state.letting_go is not None:
        return refusals.session_busy(state.run.run_id if state.run else state.letting_go)
    return None


def count_again(
    parent: SessionState, body: SessionContinue, run_id: str, asked: Asked
) -> Decided | Repeated | Refusal:
    """The parent waits for the child's next report, before the child has begun what it will report on."""
    known = repeated(parent, asked)
    if known is not None:
        return known
    if parent.closed_at is not None or parent.closing:
        return refusals.session_closed(parent.session_id)
    label = body.description if body.description is not None else texts.default_description(body.task)
    after = spawning.with_child(parent, body.session_id, run_id, label)
    return entries.child(done(after, asked, run_id=run_id), body.session_id, asked.now, asked=asked)


def admit(
    state: SessionState, facts: ContinueFacts, body: SessionContinue, asked: Asked, run_id: str, rules: Rules
) -> Decided | Repeated | Refusal:
    """Begin the run, or first close the open period where the run is a foreground one."""
    known = repeated(state, asked)
    if known is not None:
        return known
    refused = refuse(state, facts, body, asked.caller)
    if refused is not None:
        return refused
    if not body.background and state.period is not None:
        return periods.close_first(state, asked.now)
    run = parent_run(body.run_id, facts.parent, state.last_parent_run_id)
    by_parent = access.is_for_parent(asked.caller, state, facts.parent)
    wanted = Start(
        run_id=run_id,
        trigger=Trigger.CONTINUE,
        task=body.task,
        description=body.description,
        task_id=body.task_id,
        background=body.background,
        for_run=spawning.waiting_run(facts.parent, run) if by_parent and not body.background else None,
        parent_run_id=run,
        step_budget=body.step_budget,
        timeout_ms=body.timeout_ms,
    )
    ready = done(state.model_copy(update=_changes(state, body, asked)), asked, run_id=run_id)
    return begin(ready, wanted, asked.now, rules, asked)


def _changes(state: SessionState, body: SessionContinue, asked: Asked) -> dict[str, Any]:
    """A model, a variant or a notify given now stays. A gone self host is replaced by the caller."""
    changes: dict[str, Any] = {
        name: getattr(body, name)
        for name in ("model", "variant", "notify")
        if getattr(body, name) is not None
    }
    if state.host is Host.SELF and not state.live:
        changes |= {"live": True, "holder": asked.caller}
    return {**changes, "wake_failures": 0, "wake_not_before": None}
