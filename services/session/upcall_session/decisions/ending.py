"""How every run ends, whoever ends it: the one transition to settled."""

from collections.abc import Sequence
from typing import Any

from upcall_contracts.records import Host, Outcome, RunRecord, RunStatus, Trigger
from upcall_contracts.states import InboxEntry, Period, RunBrief, SessionState, WorkLink

from . import entries, periods
from .results import Asked, Decided

FAILED = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT, Outcome.HALTED})
"""Outcomes after which the next wake waits."""

WAKE_BACKOFF_MS = (1_000, 5_000, 30_000, 60_000, 300_000)
"""How long the next wake waits after so many failed ones in a row (DESIGN.md section 5: 1, 5, 30 s …)."""


def end_run(
    state: SessionState,
    now: int,
    outcome: Outcome,
    *,
    answer: str | None = None,
    error: str | None = None,
    left: Sequence[WorkLink] = (),
    by_cancel: bool = False,
    host_stays: bool = False,
    asked: Asked | None = None,
    more: bool = False,
) -> Decided:
    """Settle the active run.

    `left` is what it leaves running; what an earlier run had left already is its own now. `by_cancel` says
    that a cancel or a close ended it, which closes the period and wakes nobody. `host_stays`: its host has
    not let go yet, and keeps the session busy.
    """
    run, period = state.run, state.period
    if run is None or period is None:
        raise ValueError("no run is active")
    by_cancel = by_cancel or state.cancelling
    settled = run.model_copy(
        update={
            "status": RunStatus.SETTLED,
            "outcome": outcome,
            "answer": answer,
            "error": error,
            "settled_at": now,
        }
    )
    named = {link.work_id for link in left}
    work = [*(link for link in state.work if link.work_id not in named), *left]
    changed: dict[str, Any] = {
        "run": None,
        "period": _with_settled(period, RunBrief(run_id=run.run_id, outcome=outcome)),
        "work": work,
        "inbox": ordinary(state.inbox, run.run_id),
        "early_work": {},
        "queue_deadline": None,
        "cancel_deadline": None,
        "cancel_reason": None,
        "letting_go": run.run_id if host_stays else None,
        **_waking(state, run, outcome, now, by_cancel=by_cancel),
    }
    after = state.model_copy(update=changed)
    after = after.model_copy(update={"holder": holder_after(after)})
    if by_cancel or period.foreground:
        after = periods.close(after, now, wakes=not by_cancel)
    if by_cancel and not state.closing:
        after = after.model_copy(update={"cascade": False})
    return entries.lifecycle(after, settled, "settled", now, asked=asked, more=more)


def ordinary(inbox: Sequence[InboxEntry], run_id: str) -> list[InboxEntry]:
    """The items that a run did not take as the result of its call, as ordinary ones."""
    return [
        entry.model_copy(update={"for_run": None, "wakes": entry.may_wake, "rewrite": True})
        if entry.for_run == run_id
        else entry
        for entry in inbox
    ]


def holder_after(state: SessionState) -> str | None:
    """Who hosts an idle session: a self host goes on to, a runner while work that it left there runs."""
    if state.host is Host.SELF or state.run is not None or state.letting_go is not None:
        return state.holder
    holders = [link.holder for link in state.work if link.holder is not None]
    return state.holder if state.holder in holders else next(iter(holders[-1:]), None)


def _with_settled(period: Period, brief: RunBrief) -> Period:
    return period.model_copy(update={"settled": [*period.settled, brief]})


def _waking(
    state: SessionState, run: RunRecord, outcome: Outcome, now: int, *, by_cancel: bool
) -> dict[str, Any]:
    if by_cancel:
        return {"wake_blocked": True}
    if run.trigger is Trigger.WAKE and outcome in FAILED:
        pause = WAKE_BACKOFF_MS[min(state.wake_failures, len(WAKE_BACKOFF_MS) - 1)]
        return {"wake_failures": state.wake_failures + 1, "wake_not_before": now + pause}
    if outcome is Outcome.COMPLETED:
        return {"wake_failures": 0, "wake_not_before": None}
    return {}
