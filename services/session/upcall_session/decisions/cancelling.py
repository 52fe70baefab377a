"""session.cancel, as it meets each session of the tree. DESIGN.md section 4, "Cancel"."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from upcall_contracts.errors import Refusal
from upcall_contracts.log import Note
from upcall_contracts.records import Host, Outcome, RunStatus
from upcall_contracts.states import SessionState

from . import entries, periods
from .ending import end_run
from .repeating import done, repeated
from .results import Asked, Decided, Repeated
from .rules import Rules

CANCELLED = "The run was cancelled."


def is_busy(state: SessionState) -> bool:
    """Whether there is something to cancel: an active run, or a period that is held open."""
    return state.run is not None or state.period is not None


def began_after(state: SessionState, at: int) -> bool:
    """Whether what there is to cancel began after epoch ms `at`.

    A cancel that is delivered again ends nothing that began after it.
    """
    if state.run is not None:
        return (state.run.queued_at or 0) > at
    return state.period is not None and state.period.opened_at > at


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel, as it meets one session of the tree."""

    reason: str | None
    below: Sequence[str]
    """Session ids of its descendants that are cancelled with it."""
    cascade: bool


def cancel(state: SessionState, order: Cancel, now: int, rules: Rules) -> Decided | None:
    """Cancel what a session is doing.

    A running run is asked to end, and has UPCALL_CANCEL_GRACE_MS for it; one that nobody carries out ends at
    once, and so does a hold. None: nothing changes.
    """
    run = state.run
    if state.closed_at is not None or state.cancelling:
        return None
    if run is None and state.period is None and (state.wake_blocked or state.host is Host.SELF):
        return None
    state = state.model_copy(
        update={"wake_blocked": True, "cancelled_children": list(order.below), "cascade": order.cascade}
    )
    if run is None:
        held = state.period is not None
        after = periods.close(state, now, wakes=False) if held else state
        after = after.model_copy(update={"cancelled_children": [], "cascade": False})
        return entries.note(after, Note.NOTED, now)
    if run.status is not RunStatus.RUNNING:
        return end_run(state, now, Outcome.CANCELLED, error=order.reason or CANCELLED, by_cancel=True)
    asked_to = state.model_copy(
        update={"cancel_deadline": now + rules.cancel_grace_ms, "cancel_reason": order.reason}
    )
    return entries.lifecycle(asked_to, run, "cancel_requested", now)


def cancel_named(
    state: SessionState, order: Cancel, run_ids: Sequence[str], asked: Asked, rules: Rules
) -> Decided | Repeated | Refusal:
    """Cancel the session that the command names. `run_ids` are those of the whole tree.

    What had begun below it when this is decided is cancelled with it, also if its command was stored after
    this one.

    It remembers the command whatever there is to do, so that it ends nothing that began after it when it is
    sent again. A closed session does nothing that could be cancelled.
    """
    known = repeated(state, asked)
    if known is not None:
        return known
    if state.closed_at is not None:
        return Repeated({"at": asked.from_now, "runs": ""})
    state = done(state, asked, at=asked.from_now, runs=",".join(run_ids))
    decided = cancel(state, order, asked.from_now, rules) or entries.note(state, Note.NOTED, asked.now)
    return replace(decided, mark=asked.mark)


def end_grace(state: SessionState, now: int) -> Decided | None:
    """UPCALL_CANCEL_GRACE_MS has passed: the run is settled for its host.

    A host with a lease may still be at work, and keeps the session busy until it settles or its lease passes.
    """
    if state.cancel_deadline is None or now < state.cancel_deadline:
        return None
    error = state.cancel_reason or CANCELLED
    leased = state.lease_ms > 0 and state.live
    return end_run(state, now, Outcome.CANCELLED, error=error, host_stays=leased)
