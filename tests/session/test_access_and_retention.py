"""Who sees what, and what is forgotten when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.session.world import World
from upcall_contracts.states import SessionState
from upcall_session.decisions import access, retention
from upcall_session.decisions.rules import Rules

DAY = 86_400_000


def line(w: World, session_id: str) -> list[SessionState]:
    state = w.states[session_id]
    return [state, *(w.states[each] for each in state.ancestors)]


@pytest.mark.parametrize(
    ("caller", "sees", "why"),
    [
        ("operator", {"P", "hosted", "below", "child"}, "everything"),
        ("P", {"P", "hosted", "below", "child"}, "itself and its descendants"),
        ("hosted", {"hosted", "below"}, "and neither its parent nor its siblings"),
        ("below", {"below"}, "nor anything above"),
        ("runner-1", {"hosted", "below"}, "what it holds and what is below that"),
        ("runner-2", set[str](), "nothing that it does not hold"),
        ("stranger", set[str](), "nothing"),
    ],
)
def test_who_sees_what(w: World, hosted: str, child: str, caller: str, sees: set[str], why: str) -> None:
    _, ids = w.spawn(hosted, host="self")
    names = {"P": "P", "hosted": hosted, "below": ids.session_id, "child": child}
    who = names.get(caller, caller)
    seen = {name for name, session in names.items() if access.sees(who, line(w, session))}
    assert seen == sees, why


def test_runner_that_left_work_may_say_that_it_ended(w: World, hosted: str) -> None:
    """Also when another runner has taken up the session meanwhile."""
    w.settle(hosted, background=[{"work_id": "sh", "kind": "shell", "label": "x"}])
    w.continue_("P", hosted)
    w.claim(hosted, "runner-2")
    assert access.speaks_for("runner-1", w.states[hosted])
    w.finish(hosted, "sh")
    assert not access.speaks_for("runner-1", w.states[hosted])


RULES = Rules(retention_ms=7 * DAY, idle_retention_ms=30 * DAY)


def session(name: str, **changes: Any) -> SessionState:
    return SessionState(
        session_id=name, root_session_id="root", agent="a", created_at=0, updated_at=0, **changes
    )


@pytest.mark.parametrize(
    ("root", "child", "unread", "now", "purged", "why"),
    [
        ({"closed_at": 0}, {"closed_at": 0}, [], 7 * DAY, True, "closed for seven days"),
        ({"closed_at": 1}, {"closed_at": 0}, [], 7 * DAY, False, "the root closed a millisecond later"),
        ({"closed_at": 0}, {"closed_at": 0}, ["child"], 7 * DAY, True, "a closed session reads no more"),
        ({"closed_at": 0}, {}, [], 7 * DAY, True, "an open child at rest goes with its root"),
        ({"closed_at": 0}, {}, ["child"], 7 * DAY, False, "but not while it has something to read"),
        ({"closed_at": 0}, {"run": {"run_id": "r"}}, [], 99 * DAY, False, "nor while it runs"),
        ({}, {}, [], 30 * DAY, True, "nothing has happened for thirty days"),
        ({}, {}, [], 30 * DAY - 1, False, "nor for a millisecond less"),
        ({}, {"updated_at": 1}, [], 30 * DAY, False, "anywhere in the tree"),
        ({}, {}, ["root"], 99 * DAY, False, "an item waits for a reader that may come"),
    ],
)
def test_what_is_forgotten(
    root: dict[str, Any], child: dict[str, Any], unread: list[str], now: int, purged: bool, why: str
) -> None:
    tree = [session("root", **root), session("child").model_copy(update=child)]
    assert retention.may_purge(tree, unread, now, RULES) is purged, why


@pytest.mark.parametrize(
    ("root", "now", "due", "why"),
    [
        ({"closed_at": 0}, 7 * DAY, True, "closed for long"),
        ({"closed_at": 0}, 7 * DAY - 1, False, "not yet"),
        ({}, 30 * DAY, True, "idle for long"),
        ({}, 7 * DAY, False, "open"),
    ],
)
def test_when_a_tree_is_looked_at(root: dict[str, Any], now: int, due: bool, why: str) -> None:
    assert retention.is_due(session("root", **root), now, RULES) is due, why
