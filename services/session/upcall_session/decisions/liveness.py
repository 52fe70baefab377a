"""A lease has passed: the host of a session is gone. DESIGN.md section 4, "Liveness".

Whether it has passed is not decided here: that takes memory, Redis, and a whole lease of steady connections.
"""

from dataclasses import dataclass

from upcall_contracts.log import Note
from upcall_contracts.records import Heartbeat, Host, Outcome, RunStatus, WorkKind
from upcall_contracts.states import SessionState, WorkLink

from . import entries
from .ending import end_run, holder_after
from .results import Decided
from .rules import Rules

GONE = "The host of this run is gone: it stopped beating, and its lease has passed."
CANCELLED_AND_GONE = "The run was being cancelled when its host stopped beating."
FORMER_HOLDERS_MAX = 16
"""How many runners that lost a run here are remembered: what they still say is stale_attempt."""


def is_leased(state: SessionState) -> bool:
    """Whether somebody has to beat for this session.

    A self host that is live, and a runner as long as it has a run or background work there, or has not let go
    of a cancelled run.
    """
    if state.closed_at is not None or state.lease_ms == 0:
        return False
    if state.host is Host.SELF:
        return state.live
    running = state.run is not None and state.run.status is RunStatus.RUNNING
    return running or state.letting_go is not None or state.holder is not None


@dataclass(frozen=True, slots=True)
class Lease:
    """What a heartbeat is held against: how long it is good for, and the run and attempt that it may name."""

    length_ms: int
    carried_out: tuple[str, int] | None
    """The run that a runner holds now, and its attempt; None: whatever a beat names, it counts."""


def lease_of(state: SessionState) -> Lease:
    """What is to be known of a session for its heartbeats."""
    run = state.run
    held = state.host is Host.RUNNER and run is not None and run.status is RunStatus.RUNNING
    return Lease(state.lease_ms, (run.run_id, run.attempt) if held and run is not None else None)


def is_of_host(lease: Lease, beat: Heartbeat) -> bool:
    """Whether a heartbeat is of who has to beat. One that names nothing is.

    A runner that lost the run and does not know it yet beats on: it must not keep alive who holds it now.
    """
    if lease.carried_out is None or beat.run_id is None:
        return True
    run_id, attempt = lease.carried_out
    return beat.run_id == run_id and beat.attempt in (None, attempt)


def is_unfinished(state: SessionState) -> bool:
    """Whether a host that is gone has left something that is still to be told."""
    run = state.run
    lost_run = run is not None and (
        run.status is RunStatus.INTERRUPTED or (state.host is Host.SELF and not state.live)
    )
    return lost_run or any(link.lost or link.early for link in state.work)


def lease_passed(state: SessionState, now: int) -> Decided | None:
    """What comes of a lease that has passed at epoch ms `now`; None where nobody had to beat."""
    if not is_leased(state):
        return None
    if state.host is Host.SELF:
        gone = state.model_copy(update={"live": False, "letting_go": None, "work": shells_lost(state)})
        return entries.note(gone, Note.GONE, now)
    if state.run is not None and state.run.status is RunStatus.RUNNING:
        return _interrupt(state, now)
    freed = state.model_copy(update={"letting_go": None, "holder": None, "work": shells_lost(state)})
    return entries.note(freed, Note.LET_GO, now)


def shells_lost(state: SessionState) -> list[WorkLink]:
    """What was left running, with all shells marked as lost: each is still to be told.

    A session's heartbeat does not say whose it is, so nobody beats for any of them.
    """
    return [
        link.model_copy(update={"lost": True}) if link.kind is WorkKind.SHELL and not link.early else link
        for link in state.work
    ]


def after_gone(state: SessionState, now: int, rules: Rules) -> Decided | None:
    """What a host that is gone leaves to be decided about its run: lost, or queued again."""
    run = state.run
    if run is None:
        return None
    if state.host is Host.SELF:
        return None if state.live else _lost(state, now)
    if run.status is not RunStatus.INTERRUPTED:
        return None
    if state.cancelling or run.attempt >= rules.max_attempts:
        return _lost(state, now)
    again = run.model_copy(update={"status": RunStatus.QUEUED, "attempt": run.attempt + 1, "holder": None})
    queued = state.model_copy(update={"run": again, "queue_deadline": now + rules.queue_ms})
    return entries.lifecycle(queued, again, "queued", now)


def let_go(state: SessionState, now: int) -> Decided:
    """A cancelled host has let go: the session is idle."""
    freed = state.model_copy(update={"letting_go": None})
    freed = freed.model_copy(update={"holder": holder_after(freed)})
    return entries.note(freed, Note.LET_GO, now)


def _interrupt(state: SessionState, now: int) -> Decided:
    run = state.run
    if run is None:
        raise ValueError("no run is active")
    interrupted = run.model_copy(update={"status": RunStatus.INTERRUPTED})
    former = [h for h in state.former_holders if h != state.holder]
    after = state.model_copy(
        update={
            "run": interrupted,
            "holder": None,
            "former_holders": [*former, *([state.holder] if state.holder else [])][-FORMER_HOLDERS_MAX:],
            "work": shells_lost(state),
        }
    )
    return entries.lifecycle(after, interrupted, "interrupted", now)


def _lost(state: SessionState, now: int) -> Decided:
    if state.cancelling:
        error = state.cancel_reason or CANCELLED_AND_GONE
        return end_run(state, now, Outcome.CANCELLED, error=error)
    return end_run(state, now, Outcome.LOST, error=GONE)
