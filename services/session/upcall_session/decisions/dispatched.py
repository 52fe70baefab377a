"""Which dispatches nobody needs any more: those of runs that have ended."""

from upcall_contracts.records import Host, RunRecord, RunStatus
from upcall_contracts.states import SessionState


def ended_in_queue(before: SessionState | None, after: SessionState) -> RunRecord | None:
    """The run that an entry has ended before anybody claimed it; None where it has ended none."""
    run = before.run if before is not None else None
    if run is None or run.status is not RunStatus.QUEUED:
        return None
    return None if is_active(run.run_id, after) else run


def was_ended_in_queue(host: Host, run: RunRecord) -> bool:
    """Whether a run, as its last entry has it, ended before anybody claimed its last attempt."""
    return host is Host.RUNNER and run.status is RunStatus.SETTLED and run.holder is None


def is_active(run_id: str, state: SessionState | None) -> bool:
    """Whether a run that was dispatched can still be claimed, now or as a further attempt.

    It was stored before it was dispatched, and never begins again: one that is not active has ended. None:
    its session is forgotten.
    """
    return state is not None and state.run is not None and state.run.run_id == run_id
