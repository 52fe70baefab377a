"""Busy periods: when a session is quiet, when its period closes, and what a report is held for.

DESIGN.md section 6. A session is quiet when no run is active, nothing that this period's runs left running is
pending, every child of the period has had its report decided, and no waking item is in its inbox.
"""

from dataclasses import replace

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import derive_id
from upcall_contracts.log import Note
from upcall_contracts.records import HeldReason, WorkKind
from upcall_contracts.states import ClosedPeriod, HeldPeriod, Period, SessionState

from . import entries
from .repeating import done, repeated
from .results import Asked, Decided, Repeated
from .rules import Rules

_PLACE_OF_NOTE = 3  # in log.session.<S>.<note>
_UNREAD = frozenset({"child", "history"})
"""Entries that the reporter does not read: they say nothing of a held report."""

UNWAKING_MAX = 8
"""How many periods that a cancel or a close closed a state remembers: until their reports are decided."""


def period_id(session_id: str, ordinal: int) -> str:
    """The id of a session's n-th period, from 1."""
    return derive_id("p_", session_id, str(ordinal))


def opened(state: SessionState, now: int) -> Period:
    """The open period, or a new one."""
    if state.period is not None:
        return state.period
    ordinal = state.periods + 1
    return Period(period_id=period_id(state.session_id, ordinal), ordinal=ordinal, opened_at=now)


def seems_quiet(state: SessionState) -> bool:
    """Whether only a child's open question can still keep the period open.

    Questions stand in the inbox alone, so whoever commits looks there once this holds.
    """
    return (
        state.period is not None
        and state.run is None
        and bool(state.period.settled)
        and not state.pending()
        and not any(entry.wakes for entry in state.inbox)
    )


def held_for(state: SessionState) -> HeldReason:
    """What an open period waits for; the first that holds."""
    if state.run is not None:
        return HeldReason.RUN_ACTIVE
    pending = state.pending()
    if any(item.kind is not WorkKind.SESSION for item in pending):
        return HeldReason.WORK_PENDING
    return HeldReason.CHILDREN_PENDING if pending else HeldReason.ITEMS_WAITING


def rest(decided: Decided, now: int, *, open_questions: bool) -> Decided:
    """What a decision means for the open period: closed if the session is quiet now, else perhaps held.

    `open_questions` says whether a child's question that nobody has handled stands in the session's inbox; it
    matters only where the session seems quiet.
    """
    state = decided.state
    if seems_quiet(state) and not open_questions:
        return replace(decided, state=close(state, now))
    if decided.subject.split(".")[_PLACE_OF_NOTE] in _UNREAD or not is_untold(state):
        return decided
    return replace(decided, state=_held(state, now))


def is_untold(state: SessionState) -> bool:
    """Whether a report is held for something else than was told last."""
    period = state.period
    if period is None or not period.settled:
        return False
    if any(link.early or link.lost for link in state.work):  # the next entry says more
        return False
    told = period.held_reason, period.held_pending
    return told != (held_for(state).value, [item.id for item in state.pending()])


def tell(state: SessionState, now: int) -> Decided | None:
    """Tell what a report is held for, where the entry that changed it could not."""
    return entries.note(state, Note.NOTED, now) if is_untold(state) else None


def close(state: SessionState, now: int, *, wakes: bool = True) -> SessionState:
    """The open period is over: its report can be decided. What still runs belongs to no later period.

    A run that is active (somebody had a held report released) goes on in a period of its own, so that it is
    reported as well.
    """
    period = state.period
    if period is None or not period.settled:
        raise ValueError("no period of a settled run is open")
    wakes = wakes and not state.closing
    last = period.settled[-1]
    cancelled = set(state.cancelled_children)
    closed = ClosedPeriod(
        period_id=period.period_id,
        run_id=last.run_id,
        runs=[run.run_id for run in period.settled],
        outcome=last.outcome,
        notify=state.notify,
        foreground=period.foreground,
        for_run=period.for_run,
        wakes=wakes,
        work=period.work,
        pending=[item for item in state.pending() if item.id not in cancelled],
        cancelled=state.cancelled_children,
        opened_at=period.opened_at,
        held_since=period.held_since,
        closed_at=now,
    )
    unwaking = state.unwaking if wakes else [*state.unwaking, period.period_id][-UNWAKING_MAX:]
    after = state.model_copy(
        update={
            "period": None,
            "children": [],
            "cancelled_children": [],
            "closed_period": closed,
            "held_period": None,
            "unwaking": unwaking,
        }
    )
    return _run_goes_on(after, now) if after.run is not None else after


def close_first(state: SessionState, now: int) -> Decided:
    """A run in the foreground on a session with an open period first closes that one."""
    return entries.note(close(state, now), Note.NOTED, now, more=True)


def release(state: SessionState, asked: Asked) -> Decided | Repeated | Refusal:
    """report.release: a held report is decided now, and names what still runs."""
    known = repeated(state, asked)
    if known is not None:
        return known
    period = state.period
    if period is None or period.held_since is None:
        return refusals.not_held(state.session_id)
    state = done(close(state, asked.now), asked, period_id=period.period_id)
    return entries.note(state, Note.RELEASED, asked.now, asked=asked)


def hold_deadline(state: SessionState, rules: Rules) -> int | None:
    """Epoch ms at which a hold ends by itself; None where nothing is held."""
    period = state.period
    return None if period is None or period.held_since is None else period.held_since + rules.max_hold_ms


def end_hold(state: SessionState, now: int, rules: Rules) -> Decided | None:
    """UPCALL_MAX_HOLD_MS has passed. While a run is active it is no hold: then the run's end ends it."""
    deadline = hold_deadline(state, rules)
    if deadline is None or now < deadline or state.run is not None:
        return None
    return entries.note(close(state, now), Note.RELEASED, now)


def look_again(state: SessionState, now: int) -> Decided:
    """Nothing but a child's question kept a quiet session's period open, and it is over."""
    return entries.note(state, Note.NOTED, now)


def _held(state: SessionState, now: int) -> SessionState:
    period = state.period
    if period is None:
        return state
    reason, pending = held_for(state), state.pending()
    since = period.held_since if period.held_since is not None else now
    last = period.settled[-1]
    held = HeldPeriod(
        period_id=period.period_id,
        run_id=last.run_id,
        runs=[run.run_id for run in period.settled],
        outcome=last.outcome,
        reason=reason.value,
        pending=pending,
        held_since=since,
    )
    told = {"held_since": since, "held_reason": reason.value, "held_pending": [item.id for item in pending]}
    return state.model_copy(update={"period": period.model_copy(update=told), "held_period": held})


def _run_goes_on(state: SessionState, now: int) -> SessionState:
    run = state.run
    if run is None:
        return state
    period = opened(state, now).model_copy(update={"runs": [run.run_id]})
    return state.model_copy(
        update={
            "period": period,
            "periods": period.ordinal,
            "run": run.model_copy(update={"period_id": period.period_id}),
        }
    )
