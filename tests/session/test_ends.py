"""Cancel, close, and hosts that are gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.session.world import Decision, World
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Outcome, RunStatus
from upcall_session.decisions import liveness
from upcall_session.decisions.results import Decided, Repeated

SHELL = {"work_id": "sh", "kind": "shell", "label": "make test"}
OTHER = {"work_id": "ci", "kind": "other", "label": "the build"}


def code(decision: Decision) -> str | None:
    return decision.code.value if isinstance(decision, Refusal) else None


def events(w: World, session_id: str) -> list[str]:
    return [e.type for e in w.entries if e.state.session_id == session_id and e.type != "note"]


# cancel


def test_cancel_asks_and_the_host_settles(w: World, child: str) -> None:
    w.cancel(child)
    assert w.states[child].cancelling
    assert w.states[child].run is not None
    w.cancel(child)
    w.settle(child, "cancelled", answer="Half.")
    assert events(w, child) == ["run_started", "run_cancel_requested", "run_settled"]
    period = w.closed[-1][1]
    assert (period.outcome, period.wakes) == (Outcome.CANCELLED, False)


def test_host_may_still_say_how_it_ended(w: World, child: str) -> None:
    """It was done in the moment of the cancel: its outcome stands, and wakes nobody."""
    w.cancel(child)
    w.settle(child, "completed", answer="Done after all.")
    assert (w.closed[-1][1].outcome, w.closed[-1][1].wakes) == (Outcome.COMPLETED, False)


@pytest.mark.parametrize(
    ("lease", "status", "why"),
    [
        (0, "idle", "a host without a lease lets go with the settling"),
        (60_000, "busy", "one with a lease may be at work: until it settles, or its lease passes"),
    ],
)
def test_grace_ends_a_host_that_does_not_listen(w: World, lease: int, status: str, why: str) -> None:
    _, ids = w.spawn("P", host="self", lease_ms=lease)
    w.cancel(ids.session_id)
    w.pass_time(999)
    assert w.states[ids.session_id].run is not None
    w.pass_time(1)
    assert w.runs[ids.run_id].outcome is Outcome.CANCELLED
    assert w.runs[ids.run_id].error == "enough"
    assert w.states[ids.session_id].status.value == status, why
    refused, _ = w.continue_("P", ids.session_id)
    assert code(refused) == ("session_busy" if lease else None)


def test_lease_of_a_cancelled_runner_lets_go(w: World, hosted: str) -> None:
    w.cancel(hosted)
    w.pass_time(1_000)
    assert (w.states[hosted].status.value, w.states[hosted].holder) == ("busy", "runner-1")
    w.gone(hosted)
    assert (w.states[hosted].status.value, w.states[hosted].holder) == ("idle", None)


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.INTERRUPTED])
def test_run_that_nobody_carries_out_is_cancelled_at_once(w: World, status: RunStatus) -> None:
    _, ids = w.spawn("P", host="runner")
    if status is RunStatus.INTERRUPTED:
        w.claim(ids.session_id, "runner-1")
        state = w.states[ids.session_id]
        decided = liveness.lease_passed(state, w.now)
        assert decided is not None
        w.commit(state, decided)
    run = w.states[ids.session_id].run
    assert run is not None
    assert run.status is status
    w.cancel(ids.session_id)
    assert w.runs[ids.run_id].outcome is Outcome.CANCELLED
    assert w.closed[-1][1].wakes is False


def test_cancel_cascades_and_names_what_it_took_along(w: World, child: str) -> None:
    """What is cancelled with it is named, and not as something that still runs."""
    _, deeper = w.spawn(child, host="self")
    _, idle = w.spawn(child, host="self")
    w.settle(idle.session_id)
    w.settle(child)
    w.cancel(child)
    period = next(p for s, p in w.closed if s == child)
    assert period.cancelled == [deeper.session_id]
    assert [item.id for item in period.pending] == [idle.session_id], "whose report is on its way"
    assert w.states[deeper.session_id].cancelling
    assert not w.states["P"].cancelling


def test_cancel_need_not_cascade(w: World, child: str) -> None:
    _, deeper = w.spawn(child, host="self")
    w.cancel(child, cascade=False)
    assert not w.states[deeper.session_id].cancelling


def test_cancelled_command_again_ends_nothing_that_began_after_it(w: World, child: str) -> None:
    """It is remembered on the session that it names, also where there was nothing to do."""
    from upcall_session.decisions import cancelling

    w.settle(child)
    asked = w.asked("P", "c")
    order = cancelling.Cancel(None, [], cascade=True)
    first = w.change(
        child, lambda s: cancelling.cancel_named(s or w.states[child], order, [], asked, w.rules)
    )
    assert isinstance(first, Decided)
    w.continue_("P", child)
    again = cancelling.cancel_named(w.states[child], order, [], asked, w.rules)
    assert isinstance(again, Repeated)
    assert w.states[child].run is not None


@pytest.mark.parametrize(
    ("run_at", "cancel_at", "after", "why"),
    [
        (10, 20, False, "it was there"),
        (20, 20, False, "in the same millisecond"),
        (21, 20, True, "it was not"),
    ],
)
def test_what_began_after_a_cancel(w: World, run_at: int, cancel_at: int, after: bool, why: str) -> None:
    from upcall_session.decisions import cancelling

    state = w.states["P"]
    assert state.run is not None
    state = state.model_copy(update={"run": state.run.model_copy(update={"queued_at": run_at})})
    assert cancelling.began_after(state, cancel_at) is after, why


# close


def test_close_ends_everything(w: World, hosted: str) -> None:
    """The run as cancelled, the period, the hold of its host; and it takes nothing any more."""
    _, deeper = w.spawn(hosted, host="self")
    w.settle(hosted, background=[SHELL])
    w.continue_("P", hosted)
    w.close(hosted)
    state = w.states[hosted]
    assert (state.status.value, state.run, state.period, state.holder) == ("closed", None, None, None)
    assert w.states[deeper.session_id].closed_at is not None
    assert [p.wakes for s, p in w.closed if s == hosted] == [False]
    assert w.closed[-1][1].cancelled == [deeper.session_id]
    order = [e.state.session_id for e in w.entries if e.subject.endswith(".closed")]
    assert order == [deeper.session_id, hosted], "leaves first"
    assert code(w.continue_("P", hosted)[0]) == "session_closed"
    assert code(w.finish(hosted, "sh")) == "session_closed"
    assert code(w.spawn(hosted)[0]) == "session_closed"


def test_close_without_cascade_leaves_children_alone(w: World, child: str) -> None:
    _, deeper = w.spawn(child, host="self")
    w.close(child, cascade=False)
    assert w.states[deeper.session_id].run is not None
    w.settle(deeper.session_id)
    w.report_all()
    assert w.slots(child) == {}


def test_close_again_changes_nothing(w: World, child: str) -> None:
    w.close(child)
    before = len(w.entries)
    w.close(child)
    assert len(w.entries) == before


def test_reports_counted_amid_a_close_wake_nobody(w: World, child: str) -> None:
    """A session that is being closed may become quiet because its children close first."""
    _, deeper = w.spawn(child, host="self")
    w.settle(child)
    w.close(child, racing=True)
    assert [(s, p.wakes) for s, p in w.closed] == [(deeper.session_id, False), (child, False)]


def test_nothing_is_spawned_below_a_close_that_is_under_way(w: World, child: str) -> None:
    from upcall_session.decisions import closing

    w.change(child, lambda s: closing.begin_close(s or w.states[child], [], w.now, cascade=True))
    assert w.states[child].status.value == "busy"
    assert code(w.spawn(child)[0]) == "session_closed"


# gone


@pytest.mark.parametrize(
    ("state", "leased", "why"),
    [
        ({"lease_ms": 0}, False, "a lease of 0 never passes"),
        ({"lease_ms": 1000}, True, "a self host that is live, busy or not"),
        ({"lease_ms": 1000, "live": False}, False, "one that is gone"),
        ({"lease_ms": 1000, "closed_at": 1}, False, "a closed session"),
    ],
)
def test_who_has_to_beat(w: World, state: dict[str, Any], leased: bool, why: str) -> None:
    assert liveness.is_leased(w.states["P"].model_copy(update=state)) is leased, why


def test_which_runner_has_to_beat(w: World) -> None:
    _, ids = w.spawn("P", host="runner")
    assert not liveness.is_leased(w.states[ids.session_id]), "nobody holds a queued run"
    w.claim(ids.session_id, "runner-1")
    assert liveness.is_leased(w.states[ids.session_id])
    w.settle(ids.session_id, background=[SHELL])
    assert liveness.is_leased(w.states[ids.session_id]), "it left work there"
    assert w.states[ids.session_id].holder == "runner-1"
    w.finish(ids.session_id, "sh")
    assert not liveness.is_leased(w.states[ids.session_id])
    assert w.states[ids.session_id].holder is None


def test_gone_self_host(w: World) -> None:
    """Run and shells are lost, other work and children go on, and what waits for them waits."""
    _, ids = w.spawn("P", host="self", lease_ms=1000)
    child = ids.session_id
    w.settle(child, background=[SHELL, OTHER])
    _, second = w.continue_("P", child)
    _, deeper = w.spawn(child, host="self")
    w.gone(child)
    state = w.states[child]
    assert (state.live, state.run, state.reachable) == (False, None, False)
    assert w.runs[second].outcome is Outcome.LOST
    assert "stopped beating" in (w.runs[second].error or "")
    assert w.works[child, "sh"].outcome == "lost"
    assert [item.id for item in state.pending()] == ["ci", deeper.session_id]
    assert w.states[deeper.session_id].run is not None
    assert w.gone(child) is None, "it is declared once"


def test_lost_shells_are_told_one_by_one_after_a_crash_too(w: World) -> None:
    """Between two entries the state says what is still owed."""
    _, ids = w.spawn("P", host="self", lease_ms=1000)
    w.settle(ids.session_id, background=[SHELL, {**SHELL, "work_id": "two"}])
    state = w.states[ids.session_id]
    decided = liveness.lease_passed(state, w.now)
    assert decided is not None
    w.commit(state, decided)
    assert liveness.is_unfinished(w.states[ids.session_id])
    w.advance(ids.session_id)
    assert not liveness.is_unfinished(w.states[ids.session_id])
    assert [w.works[ids.session_id, each].outcome for each in ("sh", "two")] == ["lost", "lost"]


def test_runner_that_is_gone_loses_the_run(w: World, hosted: str) -> None:
    """Interrupted, then queued as the next attempt; after the third it is lost."""
    run_id = w.active(hosted).run_id
    for attempt in (2, 3):
        w.gone(hosted)
        run = w.states[hosted].run
        assert run is not None
        assert (run.status, run.attempt, run.holder) == (RunStatus.QUEUED, attempt, None)
        assert w.states[hosted].reachable
        w.claim(hosted, "runner-2")
    w.gone(hosted)
    assert (w.runs[run_id].outcome, w.runs[run_id].attempt) == (Outcome.LOST, 3)
    subjects = [".".join(e.subject.split(".")[5:7]) for e in w.entries if e.run_id == run_id]
    assert subjects == [
        *("1.queued", "1.started", "1.interrupted", "2.queued", "2.started", "2.interrupted"),
        *("3.queued", "3.started", "3.interrupted", "3.settled"),
    ]


def test_runner_that_is_gone_after_its_run(w: World, hosted: str) -> None:
    """It held the session for its work: the shells are lost, and the session can be run again."""
    w.settle(hosted, background=[SHELL])
    w.gone(hosted)
    assert w.works[hosted, "sh"].outcome == "lost"
    assert (w.states[hosted].holder, w.states[hosted].live, w.states[hosted].reachable) == (None, True, True)


def test_cancelled_and_gone_is_cancelled(w: World, hosted: str) -> None:
    """Nobody takes over what somebody wanted ended."""
    run_id = w.active(hosted).run_id
    w.cancel(hosted)
    w.gone(hosted)
    assert w.runs[run_id].outcome is Outcome.CANCELLED
    assert w.closed[-1][1].wakes is False
