"""session.close: first everything below is kept from taking anything new, then it is closed, leaves first."""

from collections.abc import Sequence

from upcall_contracts.errors import Refusal
from upcall_contracts.log import Note
from upcall_contracts.records import Outcome
from upcall_contracts.states import SessionState

from . import entries, periods
from .ending import end_run
from .repeating import done, repeated
from .results import Asked, Decided, Repeated

CLOSED = "The session was closed."


def begin_close(
    state: SessionState, below: Sequence[str], now: int, *, cascade: bool, asked: Asked | None = None
) -> Decided | Repeated | Refusal | None:
    """Take nothing new from now on. `below` are descendants with something to cancel. None: it is so already.

    `asked` is the command, on the session that it names.
    """
    known = repeated(state, asked) if asked is not None else None
    if known is not None:
        return known
    if state.closed_at is not None or state.closing:
        return None
    after = state.model_copy(update={"closing": True, "cancelled_children": list(below), "cascade": cascade})
    return entries.note(done(after, asked) if asked else after, Note.NOTED, now, asked=asked)


def close(state: SessionState, now: int) -> Decided | None:
    """Close for good: the active run is cancelled, and a hold ends. None: it is closed already."""
    if state.closed_at is not None:
        return None
    if state.run is not None:
        return end_run(state, now, Outcome.CANCELLED, error=CLOSED, by_cancel=True, more=True)
    if state.period is not None:
        state = periods.close(state, now, wakes=False)
    after = state.model_copy(
        update={
            "closed_at": now,
            "letting_go": None,
            "holder": None,
            "work": [],
            "inbox": [],
            "children": [],
        }
    )
    return entries.note(after, Note.CLOSED, now)
