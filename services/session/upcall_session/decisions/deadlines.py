"""Which deadlines a state has: each is scheduled before the entry that needs it."""

from upcall_contracts.records import HeldReason, Outcome, RunStatus
from upcall_contracts.states import SessionState

from . import periods
from .ending import end_run
from .results import Decided
from .rules import Rules

QUEUE, GRACE, LIMIT, HOLD, WAKE = "queue", "grace", "limit", "hold", "wake"
"""The kinds of a session's deadlines (`streams.session_timer`)."""

LOOK_MS = 1_000
"""How often a deadline that stands still, or a hold that only a question keeps, is looked at again."""


def deadlines(state: SessionState, now: int, rules: Rules) -> dict[str, int]:
    """The epoch ms at which each kind is due."""
    due: dict[str, int | None] = {
        QUEUE: state.queue_deadline,
        GRACE: state.cancel_deadline,
        LIMIT: run_limit(state, 0),
        HOLD: _hold(state, now, rules),
        WAKE: state.wake_not_before,
    }
    return {kind: at for kind, at in due.items() if at is not None}


def run_limit(state: SessionState, paused_ms: int) -> int | None:
    """When the active run's time is up, if questions kept it waiting for so long in all."""
    run = state.run
    since = state.limit_from
    if run is None or run.status is not RunStatus.RUNNING or run.timeout_ms is None or since is None:
        return None
    return since + run.timeout_ms + paused_ms


def end_limit(state: SessionState, now: int, paused_ms: int) -> Decided | None:
    """The run's time is up: it is settled as timed_out. None: it is not yet."""
    limit = run_limit(state, paused_ms)
    run = state.run
    if run is None or limit is None or now < limit:
        return None
    error = f"The run's time limit of {run.timeout_ms} ms has passed."
    return end_run(state, now, Outcome.TIMED_OUT, error=error)


def _hold(state: SessionState, now: int, rules: Rules) -> int | None:
    at = periods.hold_deadline(state, rules)
    if at is None or not periods.seems_quiet(state):
        return at
    # Only a child's question holds it, and the end of a question is no entry of this session's.
    return min(at, now + LOOK_MS) if periods.held_for(state) is HeldReason.ITEMS_WAITING else at
