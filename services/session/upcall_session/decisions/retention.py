"""When a tree is forgotten. DESIGN.md section 8, "Retention"."""

from collections.abc import Collection, Sequence

from upcall_contracts.states import SessionState

from .rules import Rules


def is_due(root: SessionState, now: int, rules: Rules) -> bool:
    """Whether it is worth to look at the whole tree of a root at epoch ms `now`."""
    if root.closed_at is not None and root.closed_at + rules.retention_ms <= now:
        return True
    return root.updated_at + rules.idle_retention_ms <= now


def may_purge(tree: Sequence[SessionState], unread: Collection[str], now: int, rules: Rules) -> bool:
    """Whether a tree, its root first, is purged: nothing in it is open, and it has been kept long enough.

    `unread` are the sessions whose inbox holds items that are not handled: as long as such a session is not
    closed, somebody may still read them.
    """
    if any(state.run is not None or state.period is not None for state in tree):
        return False
    if any(state.closed_at is None and state.session_id in unread for state in tree):
        return False
    closed = tree[0].closed_at
    if closed is not None and closed + rules.retention_ms <= now:
        return True
    return all(state.updated_at + rules.idle_retention_ms <= now for state in tree)
