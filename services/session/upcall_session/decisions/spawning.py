"""session.spawn: decided on the parent first, so that the child counts before the parent can become quiet."""

from dataclasses import dataclass

from upcall_contracts import refusals, texts
from upcall_contracts.commands import SessionSpawn
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host, RunRecord, Trigger
from upcall_contracts.states import ChildLink, SessionState

from . import access, entries, periods
from .repeating import done, repeated
from .results import Asked, Decided, Repeated
from .rules import Rules
from .starting import Start, begin, parent_run


@dataclass(frozen=True, slots=True)
class NewIds:
    """The ids that follow from the command."""

    session_id: str
    run_id: str


def count_child(
    parent: SessionState, named: RunRecord | None, body: SessionSpawn, asked: Asked, ids: NewIds, rules: Rules
) -> Decided | Repeated | Refusal:
    """May the parent have this child? Then it counts it. `named` is the run that the command names."""
    known = repeated(parent, asked)
    if known is not None:
        return known
    if parent.closed_at is not None or parent.closing:
        return refusals.session_closed(parent.session_id)
    if named is not None and not access.carries_out(asked.caller, parent, named):
        return refusals.unknown_run(named.run_id)
    refused = _refuse_run(parent, named)
    if refused is not None:
        return refused
    if parent.depth + 1 > rules.max_depth:
        return refusals.too_deep(rules.max_depth)
    result = {
        "session_id": ids.session_id,
        "run_id": ids.run_id,
        "period_id": periods.period_id(ids.session_id, 1),
    }
    after = with_child(parent, ids.session_id, ids.run_id, _label(body))
    return entries.child(done(after, asked, **result), ids.session_id, asked.now, asked=asked)


def with_child(parent: SessionState, session_id: str, run_id: str, label: str | None) -> SessionState:
    """The parent that waits for a child's report, if it is in a busy period; it hears of it in any case."""
    if parent.period is None:
        return parent.model_copy(update={"has_children": True})
    link = ChildLink(session_id=session_id, run_id=run_id, label=label)
    return parent.model_copy(update={"has_children": True, "children": [*parent.children, link]})


def make_child(
    parent: SessionState, named: RunRecord | None, body: SessionSpawn, asked: Asked, ids: NewIds, rules: Rules
) -> Decided:
    """The child: a fresh session and its first run, in one entry."""
    runner = body.host is Host.RUNNER
    fresh = SessionState(
        session_id=ids.session_id,
        parent_session_id=parent.session_id,
        root_session_id=parent.root_session_id,
        ancestors=[*parent.ancestors, parent.session_id],
        depth=parent.depth + 1,
        agent=body.agent,
        host=body.host,
        holder=None if runner else asked.caller,
        model=body.model,
        variant=body.variant,
        notify=body.notify if body.notify is not None else parent.notify,
        lease_ms=body.lease_ms if body.lease_ms is not None else rules.lease_ms if runner else 0,
        meta=body.meta,
        created_at=asked.now,
        updated_at=asked.now,
    )
    run = parent_run(named.run_id if named else None, parent, None)
    wanted = Start(
        run_id=ids.run_id,
        trigger=Trigger.SPAWN,
        task=body.task,
        description=body.description,
        task_id=body.task_id,
        background=body.background,
        for_run=None if body.background else waiting_run(parent, run),
        parent_run_id=run,
        step_budget=body.step_budget,
        timeout_ms=body.timeout_ms,
    )
    return begin(done(fresh, asked, run_id=ids.run_id), wanted, asked.now, rules, asked)


def waiting_run(caller: SessionState | None, run_id: str | None) -> str | None:
    """The caller's run that waits in the foreground: only an active one can."""
    active = caller.run if caller is not None else None
    return run_id if active is not None and active.run_id == run_id else None


def _refuse_run(parent: SessionState, named: RunRecord | None) -> Refusal | None:
    """A run that is settled or being cancelled gets no more children, named or meant."""
    active = parent.run
    if named is not None and (active is None or active.run_id != named.run_id):
        return refusals.run_not_active(named.run_id, "settled")
    if active is not None and parent.cancelling:
        return refusals.run_not_active(active.run_id, "being cancelled")
    return None


def _label(body: SessionSpawn) -> str:
    return body.description if body.description is not None else texts.default_description(body.task)
