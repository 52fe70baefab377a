"""Busy periods: what keeps one open, what closes it, and what a report is held for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.session.world import World
from upcall_contracts.errors import Refusal
from upcall_contracts.records import HeldReason, Outcome
from upcall_contracts.states import ClosedPeriod, HeldPeriod, SessionState

SHELL = {"work_id": "sh", "kind": "shell", "label": "make test"}


def closed(w: World, session_id: str) -> list[ClosedPeriod]:
    return [period for session, period in w.closed if session == session_id]


def told(w: World, session_id: str) -> list[HeldPeriod]:
    """What was said of the session's held reports, in order."""
    states = [e.state for e in w.entries if e.state.session_id == session_id]
    return [state.held_period for state in states if state.held_period is not None]


def is_open(w: World, session_id: str) -> bool:
    return w.states[session_id].period is not None


def test_settling_closes_a_period_that_waits_for_nothing(w: World, child: str) -> None:
    """In one entry: the run's end is the period's."""
    w.settle(child, answer="Built.")
    entry = w.entries[-1]
    assert entry.type == "run_settled"
    assert entry.state.period is None
    period = entry.state.closed_period
    assert period is not None
    assert (period.outcome, period.wakes, period.notify, period.foreground) == (
        Outcome.COMPLETED,
        True,
        True,
        False,
    )
    assert (period.pending, period.work, period.held_since) == ([], [], None)
    assert told(w, child) == []


def leaves_work(w: World, child: str) -> None:
    w.settle(child, background=[SHELL])


def leaves_a_child(w: World, child: str) -> None:
    w.spawn(child, host="self")
    w.settle(child)


def leaves_a_waking_item(w: World, child: str) -> None:
    _, ids = w.spawn(child, host="self")
    w.settle(ids.session_id)
    w.report_all()
    w.settle(child)


def leaves_a_question(w: World, child: str) -> None:
    """Of a grandchild that an earlier period had let go of."""
    _, ids = w.spawn(child, host="self")
    w.settle(child)
    w.release(child)
    w.start(child)
    w.ask(ids.session_id)
    w.settle(child)


@pytest.mark.parametrize(
    ("leave", "reason", "why"),
    [
        (leaves_work, HeldReason.WORK_PENDING, "what its run left running"),
        (leaves_a_child, HeldReason.CHILDREN_PENDING, "a child whose report is not decided"),
        (leaves_a_waking_item, HeldReason.ITEMS_WAITING, "a report that it has not read"),
        (leaves_a_question, HeldReason.ITEMS_WAITING, "a question that it has not read"),
    ],
)
def test_what_holds_a_report(
    w: World, child: str, leave: Callable[[World, str], None], reason: HeldReason, why: str
) -> None:
    leave(w, child)
    assert is_open(w, child), why
    assert told(w, child)[-1].reason == reason.value
    assert w.states[child].status.value == "idle", "a held session is idle"


def test_active_run_in_a_held_period_is_what_it_waits_for(w: World, child: str) -> None:
    """Each time what it waits for changes, that is told; and only then."""
    w.settle(child, background=[SHELL, {**SHELL, "work_id": "two"}])
    w.append("P")
    w.continue_("P", child)
    w.append(child)
    w.finish(child, "sh")
    w.settle(child)
    w.finish(child, "two")
    assert [(h.reason, [p.id for p in h.pending], len(h.runs)) for h in told(w, child)] == [
        ("work_pending", ["sh", "two"], 1),
        ("run_active", ["sh", "two"], 1),
        ("run_active", ["two"], 1),
        ("work_pending", ["two"], 2),
    ]
    assert len({h.held_since for h in told(w, child)}) == 1


def test_child_of_a_held_session_is_told_of(w: World, child: str) -> None:
    """The spawn's own entry is none that the reporter reads; the next one says it."""
    w.settle(child, background=[SHELL])
    _, ids = w.spawn(child, host="self")
    assert [h.pending[-1].id for h in told(w, child)] == ["sh", ids.session_id]
    spawned = next(e for e in w.entries if e.subject.endswith(f"child.{ids.session_id}"))
    assert spawned.state.held_period is None


def test_work_that_is_left_again_is_left_once(w: World, child: str) -> None:
    """A run that finds an earlier run's job still running and names it: it is this run's to wait for."""
    w.settle(child, background=[SHELL])
    w.release(child)
    w.start(child)
    w.settle(child, background=[SHELL])
    assert [item.id for item in w.states[child].pending()] == ["sh"]
    w.finish(child, "sh")
    assert not is_open(w, child)


def ends_work(w: World, child: str) -> None:
    w.finish(child, "sh")


def dies(w: World, child: str) -> None:
    w.open(child, agent="worker", lease_ms=1000)
    w.gone(child)


def is_released(w: World, child: str) -> None:
    w.release(child)


def is_cancelled(w: World, child: str) -> None:
    w.cancel(child)


def is_closed(w: World, child: str) -> None:
    w.close(child)


def waits_too_long(w: World, child: str) -> None:
    w.pass_time(50_000)


@pytest.mark.parametrize(
    ("end", "pending", "work", "wakes", "why"),
    [
        (ends_work, [], [("sh", "completed")], True, "the last of its work has ended"),
        (dies, [], [("sh", "lost")], True, "its shells die with it"),
        (is_released, ["sh"], [], True, "somebody wants it now"),
        (is_cancelled, ["sh"], [], False, "a cancel ends the hold, and wakes nobody"),
        (is_closed, ["sh"], [], False, "and so does a close"),
        (waits_too_long, ["sh"], [], True, "UPCALL_MAX_HOLD_MS has passed"),
    ],
)
def test_what_ends_a_hold(
    w: World,
    child: str,
    end: Callable[[World, str], None],
    pending: list[str],
    work: list[tuple[str, str]],
    wakes: bool,
    why: str,
) -> None:
    w.settle(child, answer="Started.", background=[SHELL])
    w.pass_time(10)
    end(w, child)
    assert len(closed(w, child)) == 1, why
    period = closed(w, child)[0]
    assert [item.id for item in period.pending] == pending
    assert [(item.id, item.outcome) for item in period.work] == work
    assert period.wakes is wakes
    assert period.outcome is Outcome.COMPLETED
    assert period.held_since is not None
    assert not is_open(w, child)


def test_handling_the_last_item_closes(w: World, child: str) -> None:
    leaves_a_waking_item(w, child)
    w.handle(child, *w.slots(child))
    assert [e.subject.rsplit(".", 1)[1] for e in w.entries[-1:]] == ["handled"]
    assert w.entries[-1].state.closed_period is not None


def test_end_of_the_last_question_closes(w: World, child: str) -> None:
    """It is no entry of the session's own; the session looks again."""
    leaves_a_question(w, child)
    w.end_question(child, next(iter(w.slots(child))))
    assert not is_open(w, child)


def test_foreground_run_closes_at_its_settling(w: World) -> None:
    """Whatever still runs; it belongs to no later period, and its end is told all the same."""
    _, ids = w.spawn("P", host="self", background=False)
    child = ids.session_id
    w.spawn(child, host="self", description="Deeper")
    w.settle(child, background=[SHELL])
    period = closed(w, child)[0]
    run = w.states["P"].run
    assert run is not None
    assert (period.foreground, period.for_run) == (True, run.run_id)
    assert [(item.kind.value, item.label) for item in period.pending] == [
        ("shell", "make test"),
        ("session", "Deeper"),
    ]
    w.continue_("P", child)
    assert w.states[child].pending() == []
    w.finish(child, "sh")
    assert w.works[child, "sh"].outcome == "completed"
    w.settle(child)
    assert (closed(w, child)[1].work, closed(w, child)[1].pending) == ([], [])


def test_work_that_wakes_holds_until_it_is_taken(w: World, child: str) -> None:
    w.settle(child, background=[{**SHELL, "wakes": True}])
    w.finish(child, "sh")
    assert is_open(w, child)
    w.start(child, causes=["sh"])
    w.settle(child, answer="All pass.")
    assert [len(p.runs) for p in closed(w, child)] == [2]


def test_work_that_finished_early_is_not_waited_for(w: World, child: str) -> None:
    """Its end is told with the settle; the report was never held."""
    w.finish(child, "sh", "failed")
    w.finish(child, "unnamed")
    w.settle(child, background=[SHELL])
    assert [(i.id, i.outcome) for i in closed(w, child)[0].work] == [("sh", "failed")]
    assert told(w, child) == []
    assert (child, "unnamed") not in w.works, "what a run leaves running is said in its settle"


def test_silent_chain_lets_go_of_its_ancestor(w: World) -> None:
    _, one = w.spawn("P", host="self")
    _, two = w.spawn(one.session_id, host="self", notify=False)
    _, three = w.spawn(two.session_id, host="self")
    w.settle(one.session_id, answer="Delegated.")
    w.settle(two.session_id)
    assert is_open(w, one.session_id)
    w.settle(three.session_id)
    w.report_all()
    assert [s for s, _ in w.closed] == [three.session_id, two.session_id, one.session_id]
    assert [(i.id, i.kind.value) for i in closed(w, one.session_id)[0].work] == [(two.session_id, "session")]


def test_release_while_a_run_is_active(w: World, child: str) -> None:
    """The held report has the runs that settled; the active run goes on in a period of its own."""
    w.settle(child, answer="First.", background=[SHELL])
    _, second = w.continue_("P", child)
    w.release(child)
    first = closed(w, child)[0]
    assert second not in first.runs
    assert first.wakes
    w.settle(child, answer="Second.")
    assert [p.runs for p in closed(w, child)] == [first.runs, [second]]
    assert w.runs[second].period_id == closed(w, child)[1].period_id != first.period_id


@pytest.mark.parametrize("prepare", ["busy", "idle", "released"])
def test_release_of_what_is_not_held(w: World, child: str, prepare: str) -> None:
    if prepare != "busy":
        w.settle(child, background=[SHELL] if prepare == "released" else [])
    if prepare == "released":
        w.release(child)
    decision = w.release(child)
    assert isinstance(decision, Refusal)
    assert decision.code == "not_held"


def test_hold_is_bounded_by_the_end_of_an_active_run(w: World, child: str) -> None:
    """While a run is active it is no hold: the deadline that has passed ends it with the run."""
    w.settle(child, background=[SHELL])
    w.continue_("P", child)
    w.pass_time(60_000)
    assert is_open(w, child)
    w.settle(child, answer="Newest.")
    assert [len(p.runs) for p in closed(w, child)] == [2]


def test_period_ids_are_never_used_again(w: World, child: str) -> None:
    for _ in range(3):
        w.settle(child)
        w.continue_("P", child)
    ids = [p.period_id for p in closed(w, child)]
    assert len(set(ids)) == 3


# Items that a run waits for


def foreground_result(w: World, *, cancelled: bool = False) -> str:
    """A foreground child of P that has reported; its item."""
    _, ids = w.spawn("P", host="self", background=False)
    if cancelled:
        w.cancel(ids.session_id)
    w.settle(ids.session_id, "cancelled" if cancelled else "completed")
    w.report_all()
    return next(iter(w.slots("P")))


def test_result_waits_for_the_run_that_called(w: World) -> None:
    item = foreground_result(w)
    run = w.states["P"].run
    assert run is not None
    assert (w.slots("P")[item].for_run, w.slots("P")[item].wakes) == (run.run_id, False)
    w.handle("P", item)
    w.settle("P")
    assert not is_open(w, "P"), "taken inline, it holds nothing"


@pytest.mark.parametrize(
    ("cancelled", "wakes", "why"),
    [(False, True, "an item like any other"), (True, False, "but one that comes of a cancel wakes nobody")],
)
def test_result_that_nobody_took_is_an_ordinary_item(
    w: World, cancelled: bool, wakes: bool, why: str
) -> None:
    item = foreground_result(w, cancelled=cancelled)
    w.settle("P", "failed")
    assert (w.slots("P")[item].for_run, w.slots("P")[item].wakes) == (None, wakes), why
    assert is_open(w, "P") is wakes


def test_result_after_its_caller_gave_up_is_an_ordinary_item(w: World) -> None:
    _, ids = w.spawn("P", host="self", background=False)
    w.settle("P", "failed")
    w.settle(ids.session_id)
    w.report_all()
    slot = next(iter(w.slots("P").values()))
    assert (slot.for_run, slot.wakes) == (None, True)
    assert is_open(w, "P")


def held_state(**changes: Any) -> SessionState:
    return SessionState(session_id="S", root_session_id="S", agent="a", created_at=0, updated_at=0, **changes)


def test_close_without_a_settled_run_is_a_bug() -> None:
    """No report without a run: whoever tries is wrong."""
    from upcall_session.decisions import periods

    with pytest.raises(ValueError, match="no period"):
        periods.close(held_state(), 0)
