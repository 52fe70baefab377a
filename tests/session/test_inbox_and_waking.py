"""Items: handled once, the cause of one run at most, and what wakes whom."""

from __future__ import annotations

from typing import Any

import pytest

from tests.session.world import World
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Trigger, WorkOutcome
from upcall_session.decisions import inbox, waking, work
from upcall_session.decisions.results import Decided, Repeated

SHELL = {"work_id": "sh", "kind": "shell", "label": "make test"}


def lead(w: World, **body: Any) -> str:
    """A runner-hosted child of P whose first run a runner has claimed."""
    _, ids = w.spawn("P", host="runner", **body)
    w.claim(ids.session_id, "runner-1")
    return ids.session_id


def reported(w: World, parent: str) -> str:
    """A child of a parent that has reported; its session."""
    _, ids = w.spawn(parent, host="self")
    w.settle(ids.session_id)
    w.report_all()
    return ids.session_id


# handling


def test_item_is_handled_once(w: World) -> None:
    reported(w, "P")
    item = next(iter(w.slots("P")))
    assert isinstance(w.handle("P", item, item, "no-such"), Decided)
    assert w.states["P"].taken == [item]
    assert w.handle("P", item) is None, "it shows still, and is taken"
    w.empty_taken()
    assert w.handle("P", item) is None


def test_report_counted_after_it_was_handled_does_not_come_back(w: World) -> None:
    """The parent saw the item before the service counted it, and handled it."""
    _, ids = w.spawn("P", host="self")
    w.settle(ids.session_id)
    record = w.report(*w.undecided[0])
    w.handle("P", record.period_id)
    w.count(record)
    assert (w.states["P"].inbox, w.states["P"].children) == ([], [])
    w.settle("P")
    assert w.states["P"].period is None


def test_taken_items_are_forgotten_once_they_show_no_more(w: World) -> None:
    for _ in range(inbox.TAKEN_KEPT):
        reported(w, "P")
        w.handle("P", *[i for i, s in w.slots("P").items() if not s.taken])
    assert len(w.states["P"].taken) == inbox.TAKEN_KEPT
    assert inbox.forget(w.states["P"], [], w.now) is None
    w.empty_taken()
    decided = inbox.forget(w.states["P"], w.emptied(w.states["P"]), w.now)
    assert decided is not None
    assert decided.state.taken == []


# work


def test_end_of_work_is_an_event_and_an_item(w: World, child: str) -> None:
    w.settle(child, background=[SHELL])
    run_id = next(iter(w.states[child].work)).run_id
    w.finish(child, "sh", "failed")
    entry = next(e for e in w.entries if e.type == "work_finished")
    parent_run = w.runs[run_id].parent_run_id
    assert entry.subject == f"log.session.{child}.{run_id}.work.sh.finished.{parent_run}.P"
    assert entry.item is not None
    assert (entry.item.item_id, entry.item.kind.value, entry.item.wakes) == ("sh", "work", False)
    assert entry.item.text == "[background shell make test] failed"


@pytest.mark.parametrize(
    ("left", "outcome", "cancelled", "wakes", "why"),
    [
        (False, "completed", False, False, "left without wakes"),
        (True, "completed", False, True, "left with wakes"),
        (True, "cancelled", False, True, "however it ended"),
        (True, "cancelled", True, False, "but the end that a cancel brought wakes nobody"),
        (True, "completed", True, True, "what ended by itself does"),
    ],
)
def test_which_work_wakes(
    w: World, child: str, left: bool, outcome: str, cancelled: bool, wakes: bool, why: str
) -> None:
    w.settle(child, background=[{**SHELL, "wakes": left}])
    if cancelled:
        w.cancel(child)
    w.finish(child, "sh", outcome)
    assert w.slots(child)["sh"].wakes is wakes, why


def test_work_finished_again(w: World, child: str) -> None:
    """Its end is told once; whoever says it again is told how it ended."""
    w.settle(child, background=[SHELL])
    w.finish(child, "sh")
    assert isinstance(w.finish(child, "sh", "failed"), Repeated)
    record = work.record(w.states[child], "sh", w.works[child, "sh"])
    assert record.outcome is WorkOutcome.COMPLETED
    assert len([e for e in w.entries if e.type == "work_finished"]) == 1


def test_unknown_work_of_an_idle_session(w: World, child: str) -> None:
    w.settle(child)
    decision = w.finish(child, "never-heard-of")
    assert isinstance(decision, Refusal)
    assert decision.details["fields"][0]["field"] == "work_id"


def test_early_end_is_readable_before_its_settle(w: World, child: str) -> None:
    w.finish(child, "sh", "failed")
    record = work.record(w.states[child], "sh", None)
    assert (record.outcome, record.run_id) == (
        WorkOutcome.FAILED,
        w.active(child).run_id,
    )


# waking


def test_report_wakes_an_idle_runner_hosted_session(w: World) -> None:
    session = lead(w)
    _, ids = w.spawn(session, host="self")
    w.settle(session)
    w.settle(ids.session_id)
    w.report_all()
    run = w.states[session].run
    assert run is not None
    assert (run.trigger, run.task, run.causes) == (Trigger.WAKE, "report", list(w.slots(session)))
    assert w.states[session].inbox == []


def test_all_that_waits_is_one_wake(w: World) -> None:
    """Items that found it busy, of any kind, oldest first."""
    session = lead(w)
    reported(w, session)
    _, ids = w.spawn(session, host="self")
    question = w.ask(ids.session_id)
    w.settle(session, background=[{**SHELL, "wakes": True}])
    run = w.states[session].run
    assert run is not None
    assert run.causes == list(w.slots(session))
    assert question in run.causes
    assert run.task == "report\n\nquestion"


@pytest.mark.parametrize(
    ("prepare", "wakes", "why"),
    [
        ({}, True, "idle"),
        ({"closed_at": 1}, False, "closed"),
        ({"closing": True}, False, "being closed"),
        ({"letting_go": "r"}, False, "its last host has not let go"),
        ({"wake_blocked": True}, False, "cancelled, and not continued since"),
        ({"wake_not_before": 11}, False, "the last wake failed, and its pause is not over"),
        ({"wake_not_before": 10}, True, "and now it is"),
    ],
)
def test_when_an_item_wakes(w: World, prepare: dict[str, Any], wakes: bool, why: str) -> None:
    session = lead(w)
    w.settle(session)
    state = w.states[session].model_copy(update=prepare)
    assert waking.may_wake(state, 10) is wakes, why


def test_self_host_is_only_told(w: World) -> None:
    reported(w, "P")
    w.settle("P")
    assert w.states["P"].run is None
    assert not waking.may_wake(w.states["P"], w.now)


def test_failed_wakes_wait_longer_and_longer(w: World) -> None:
    """1, 5, 30 s … until one completes."""
    session = lead(w)
    kids = [w.spawn(session, host="self")[1].session_id for _ in range(7)]
    w.settle(session)
    pauses = []
    for n, kid in enumerate(kids[:6]):
        w.settle(kid)
        w.report_all()
        w.claim(session, "runner-1")
        run = w.states[session].run
        assert run is not None, f"wake {n}"
        w.settle(session, "failed")
        pauses.append((w.states[session].wake_not_before or 0) - w.now)
        w.pass_time(pauses[-1])
    assert pauses == [1_000, 5_000, 30_000, 60_000, 300_000, 300_000]
    w.settle(kids[6])
    w.report_all()
    w.claim(session, "runner-1")
    w.settle(session, "completed")
    assert (w.states[session].wake_failures, w.states[session].wake_not_before) == (0, None)


def test_next_wake_takes_what_came_meanwhile_after_the_pause(w: World) -> None:
    session = lead(w)
    one, two = (w.spawn(session, host="self")[1].session_id for _ in range(2))
    w.settle(session)
    w.settle(one)
    w.report_all()
    w.claim(session, "runner-1")
    w.settle(two)
    w.report_all()
    w.settle(session, "failed")
    w.pass_time(999)
    assert w.states[session].run is None
    w.pass_time(1)
    run = w.states[session].run
    assert run is not None
    assert run.causes == [list(w.slots(session))[1]]


def test_cancelled_session_wakes_when_it_was_continued(w: World) -> None:
    session = lead(w)
    _, ids = w.spawn(session, host="self")
    w.cancel(session, cascade=False)
    w.settle(session, "cancelled")
    w.settle(ids.session_id)
    w.report_all()
    assert w.states[session].run is None
    w.continue_("P", session)
    w.claim(session, "runner-1")
    w.settle(session)
    run = w.states[session].run
    assert run is not None
    assert run.trigger is Trigger.WAKE


def test_reports_of_a_cascade_wake_nobody(w: World) -> None:
    """A runner-hosted parent whose children were cancelled one by one stays asleep."""
    session = lead(w)
    _, ids = w.spawn(session, host="self")
    w.settle(session)
    w.cancel(ids.session_id)
    w.settle(ids.session_id, "cancelled")
    w.report_all()
    assert w.states[session].run is None
    assert w.states[session].period is None, "nor is it held for what wakes nobody"
