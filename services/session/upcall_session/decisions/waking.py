"""Waking: an idle runner-hosted session starts a run for what waits in its inbox. DESIGN.md section 5."""

from collections.abc import Sequence
from dataclasses import dataclass

from upcall_contracts.ids import derive_id
from upcall_contracts.records import Host, Trigger
from upcall_contracts.states import SessionState

from . import inbox
from .results import Decided
from .rules import Rules
from .starting import Start, begin, parent_run


@dataclass(frozen=True, slots=True)
class WakingItem:
    """An item of INBOX that wakes and is not handled."""

    item_id: str
    text: str


def may_wake(state: SessionState, now: int) -> bool:
    """Whether an item would start a run now."""
    return (
        state.host is Host.RUNNER
        and state.closed_at is None
        and not state.closing
        and state.run is None
        and state.letting_go is None
        and not state.wake_blocked
        and (state.wake_not_before is None or state.wake_not_before <= now)
    )


def wake(
    state: SessionState,
    items: Sequence[WakingItem],
    emptied: Sequence[str],
    parent: SessionState | None,
    now: int,
    rules: Rules,
) -> Decided | None:
    """Start a run with the items as its task and its causes. None: there is nothing to wake for.

    Those that are too much for one task wake it when the run is over.
    """
    if not may_wake(state, now):
        return None
    fresh = set(inbox.untaken(state, (item.item_id for item in items)))
    causes = [item for item in items if item.item_id in fresh]
    causes = causes[: inbox.fitting(item.text for item in causes)]
    if not causes:
        return None
    wanted = Start(
        run_id=derive_id("r_", state.session_id, "wake", str(state.runs + 1)),
        trigger=Trigger.WAKE,
        task="\n\n".join(item.text for item in causes),
        causes=[item.item_id for item in causes],
        parent_run_id=parent_run(None, parent, state.last_parent_run_id),
    )
    ready = inbox.take(state, wanted.causes, emptied)
    return begin(ready, wanted, now, rules)
