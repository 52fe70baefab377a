"""Handling items: an item is handled once, and is the cause of one run at most.

The state knows of an item only as far as something depends on it; INBOX knows all of them. Handling takes an
item out of the state first and empties it in INBOX after that. In between it is in `taken`, so that nobody
who still sees it there takes it again.
"""

import json
from collections.abc import Iterable, Sequence

from upcall_contracts import limits
from upcall_contracts.errors import Refusal
from upcall_contracts.log import Note
from upcall_contracts.states import SessionState

from . import entries
from .repeating import done, repeated
from .results import Asked, Decided, Repeated

TAKEN_KEPT = 16
"""Over so many taken items that INBOX shows no more, an entry is spent on forgetting them."""


def untaken(state: SessionState, item_ids: Iterable[str]) -> list[str]:
    """Those of the items that nobody has taken."""
    taken = set(state.taken)
    return [item for item in item_ids if item not in taken]


def take(state: SessionState, item_ids: Sequence[str], emptied: Sequence[str]) -> SessionState:
    """The state without the items; `emptied` are taken ones that INBOX shows no more."""
    gone, over = set(item_ids), set(emptied)
    return state.model_copy(
        update={
            "inbox": [entry for entry in state.inbox if entry.item_id not in gone],
            "taken": [*(item for item in state.taken if item not in over), *item_ids],
        }
    )


def fitting(texts: Iterable[str]) -> int:
    """How many of the texts, from the first one on, a run can have for its task; at least one."""
    count = size = 0
    for text in texts:
        size += len(json.dumps(text))
        if count and size > limits.ITEMS_TASK_MAX_BYTES:
            break
        count += 1
    return count


def handle(
    state: SessionState, present: Sequence[str], emptied: Sequence[str], asked: Asked
) -> Decided | Repeated | Refusal | None:
    """inbox.handle: of the items named, `present` stand in the inbox unhandled. None: nothing is to do."""
    known = repeated(state, asked)
    if known is not None:
        return known
    handled = untaken(state, dict.fromkeys(present))
    if not handled:
        return None
    after = done(take(state, handled, emptied), asked)
    return entries.note(after, Note.HANDLED, asked.now, asked=asked)


def forget(state: SessionState, emptied: Sequence[str], now: int) -> Decided | None:
    """Forget taken items that INBOX shows no more, once they are many."""
    if len(emptied) < TAKEN_KEPT:
        return None
    return entries.note(take(state, [], emptied), Note.NOTED, now)
