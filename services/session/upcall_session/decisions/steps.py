"""What a state still owes: one entry at a time, until nothing is left.

An obligation is read from the state alone, never from what the process meant to do, so whoever finds the
session next goes on where a crash has left it.
"""

from upcall_contracts.records import Outcome, RunStatus
from upcall_contracts.states import SessionState

from . import cancelling, liveness, periods, work
from .ending import end_run
from .results import Decided
from .rules import Rules


def next_step(state: SessionState, now: int, rules: Rules) -> Decided | None:
    """The next entry that the state owes at epoch ms `now`; None where it owes nothing.

    In this order: the run of a host that is gone; ends of work that are not told yet; the deadlines of a
    queued run, of a cancel, and of a hold; what a report is held for.
    """
    if state.closed_at is not None:
        return None
    return (
        liveness.after_gone(state, now, rules)
        or work.tell_next(state, now)
        or _end_queue(state, now, rules)
        or cancelling.end_grace(state, now)
        or periods.end_hold(state, now, rules)
        or periods.tell(state, now)
    )


def _end_queue(state: SessionState, now: int, rules: Rules) -> Decided | None:
    run = state.run
    if run is None or run.status is not RunStatus.QUEUED:
        return None
    if state.queue_deadline is None or now < state.queue_deadline:
        return None
    error = f"No runner serves the agent {state.agent}: nobody claimed the run within {rules.queue_ms} ms."
    return end_run(state, now, Outcome.FAILED, error=error)
