"""When a dispatch is over: its run has ended, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.session.world import World
from upcall_contracts.records import Host
from upcall_session.decisions.dispatched import ended_in_queue, is_active, was_ended_in_queue


def claim(w: World, session_id: str) -> None:
    w.claim(session_id, "runner-1")


def wait_for_nobody(w: World, session_id: str) -> None:
    w.pass_time(w.rules.queue_ms)


def lose(w: World, session_id: str) -> None:
    """A runner takes it and dies: it is queued again with the next attempt."""
    w.claim(session_id, "runner-1")
    w.gone(session_id)


def lose_and_wait(w: World, session_id: str) -> None:
    lose(w, session_id)
    w.pass_time(w.rules.queue_ms)


def claim_and_cancel(w: World, session_id: str) -> None:
    w.claim(session_id, "runner-1")
    w.cancel(session_id)
    w.settle(session_id, "cancelled", caller="runner-1", attempt=1)


def claim_and_settle(w: World, session_id: str) -> None:
    w.claim(session_id, "runner-1")
    w.settle(session_id, caller="runner-1", attempt=1)


CASES: list[tuple[Callable[[World, str], object], bool, bool, str]] = [
    (lambda w, s: None, False, True, "it waits for a runner"),
    (wait_for_nobody, True, False, "no runner came in time"),
    (World.cancel, True, False, "cancelled in the queue"),
    (World.close, True, False, "its session was closed"),
    (claim, False, True, "a runner has it, and acknowledges what it took"),
    (lose, False, True, "the next attempt waits for a runner"),
    (lose_and_wait, True, False, "no runner came for the next attempt"),
    (claim_and_cancel, False, False, "cancelled while it ran"),
    (claim_and_settle, False, False, "it ran to its end"),
]


@pytest.mark.parametrize(("act", "ends_in_queue", "active", "why"), CASES, ids=[case[3] for case in CASES])
def test_what_becomes_of_a_queued_run(
    w: World, act: Callable[[World, str], object], ends_in_queue: bool, active: bool, why: str
) -> None:
    """Seen from entry to entry, and from the last one alone, after a crash."""
    _, ids = w.spawn("P", host="runner")
    before, ended = w.states[ids.session_id], list[str]()

    def look(_: object) -> None:
        nonlocal before
        after = w.states[ids.session_id]
        run = ended_in_queue(before, after)
        ended.extend([run.run_id] if run is not None else [])
        before = after

    w.on_entry = look
    act(w, ids.session_id)
    assert ended == ([ids.run_id] if ends_in_queue else []), why
    assert was_ended_in_queue(Host.RUNNER, w.runs[ids.run_id]) is ends_in_queue, why
    assert is_active(ids.run_id, w.states[ids.session_id]) is active, why


def test_run_after_it_is_another_one(w: World) -> None:
    """Continued, the session waits for a runner again: for that run, and for no earlier one."""
    _, ids = w.spawn("P", host="runner")
    w.cancel(ids.session_id)
    _, run_id = w.continue_("P", ids.session_id)
    state = w.states[ids.session_id]
    assert is_active(run_id, state)
    assert not is_active(ids.run_id, state)
    assert ended_in_queue(state, state) is None


def test_what_was_never_there_or_is_forgotten(w: World) -> None:
    assert ended_in_queue(None, w.states["P"]) is None
    assert not is_active("r", None)


def test_run_of_a_self_host_is_dispatched_nowhere(w: World) -> None:
    w.settle("P")
    run = next(iter(w.runs.values())).model_copy(update={"holder": None})
    assert not was_ended_in_queue(Host.SELF, run)
