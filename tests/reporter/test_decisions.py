"""The reporter's decision, branch by branch."""

from typing import Any

import pytest

from upcall_contracts.events import Item
from upcall_contracts.ids import is_token
from upcall_contracts.limits import PAYLOAD_MAX_BYTES, TEXT_MAX_BYTES
from upcall_contracts.log import Entry
from upcall_contracts.records import Outcome, ReportRecord, ReportResult, ReportStatus, WorkItem
from upcall_contracts.states import ClosedPeriod, HeldPeriod, ReportState
from upcall_reporter.decisions import Decision, Facts, decide, is_decided

from .periods import FINISHED, GRANDCHILD, SHELL, T0, closed, facts, held, report, run, session, top

NOW = T0 + 9000


def decided(period: ClosedPeriod | HeldPeriod, known: Facts, so_far: ReportState | None = None) -> Decision:
    decision = decide(period, known, so_far, NOW)
    assert decision is not None
    return decision


def record(decision: Decision) -> ReportRecord:
    """The record, read as a reader reads it off the wire."""
    entry = Entry[ReportState].model_validate_json(decision.entry.model_dump_json())
    return ReportRecord.model_validate(entry.data)


def item(decision: Decision) -> Item:
    assert decision.entry.item is not None
    return decision.entry.item


# Of a closed period, which is delivered or suppressed


SUPPRESSED = [
    # what is known                                              the reason
    ({"session": top("C")}, {}, "no_parent"),
    ({"parent_closed": True}, {}, "parent_closed"),
    ({}, {"notify": False}, "silent"),
    # of several, the first of no_parent, parent_closed, silent
    ({"session": top("C")}, {"notify": False}, "no_parent"),
    ({"parent_closed": True}, {"notify": False}, "parent_closed"),
    # in the foreground and silent: the caller has the result of run.wait, and no item
    ({}, {"notify": False, "foreground": True, "for_run": "P-r1"}, "silent"),
]


@pytest.mark.parametrize(("known", "period", "reason"), SUPPRESSED)
def test_suppressed(known: dict[str, Any], period: dict[str, Any], reason: str) -> None:
    """Nobody is told, the first reason is named, and the report is decided all the same."""
    decision = decided(closed(**period), facts(**known))
    found = record(decision)
    assert (found.status, found.reason) == (ReportStatus.SUPPRESSED, reason)
    assert found.delivered_at is None
    assert found.answer == "They are in tests/."
    assert decision.entry.item is None
    assert decision.entry.type == "report_suppressed"
    assert is_decided(decision.entry.state)


def test_delivered_says_all_there_is_to_say() -> None:
    """Every field of the record has its value from the period, the session or the last run."""
    period = closed(
        runs=["C-r0", "C-r1"],
        held_since=T0 + 2000,
        work=[FINISHED],
        pending=[GRANDCHILD],
        cancelled=["G2"],
    )
    assert record(decided(period, facts())) == ReportRecord(
        period_id="C-p1",
        session_id="C",
        parent_session_id="P",
        parent_run_id="P-r1",
        root_session_id="P",
        agent="explorer",
        description="find the tests",
        task_id="T-1",
        result=ReportResult.COMPLETED,
        outcome=Outcome.COMPLETED,
        answer="They are in tests/.",
        error=None,
        runs=["C-r0", "C-r1"],
        work=[FINISHED],
        pending=[GRANDCHILD],
        cancelled=["G2"],
        status=ReportStatus.DELIVERED,
        reason=None,
        for_run=None,
        held_ms=3000,
        created_at=T0 + 2000,
        delivered_at=NOW,
    )


def test_delivered_event_and_state() -> None:
    """The event names the period's last run, and the state holds what queries and later entries need."""
    decision = decided(closed(), facts(seq=17))
    entry = decision.entry
    assert entry.type == "report_delivered"
    assert (entry.run_id, entry.session_id, entry.task_id, entry.time) == ("C-r1", "C", "T-1", NOW)
    assert (entry.parent_run_id, entry.parent_session_id, entry.root_session_id) == ("P-r1", "P", "P")
    assert is_token(entry.event_id)
    assert entry.state == ReportState(
        period_id="C-p1",
        session_id="C",
        ancestors=["P"],
        status=ReportStatus.DELIVERED,
        created_at=T0 + 5000,
        entry_seq=17,
    )


RESULTS = [
    (Outcome.COMPLETED, "completed"),
    (Outcome.CANCELLED, "cancelled"),
    (Outcome.FAILED, "error"),
    (Outcome.HALTED, "error"),
    (Outcome.TIMED_OUT, "error"),
    (Outcome.LOST, "error"),  # also of one that never started
]


@pytest.mark.parametrize(("outcome", "result"), RESULTS)
def test_result_of_each_outcome(outcome: Outcome, result: str) -> None:
    """Only a completed run is a success, and the parent reads the state in the frame."""
    said = run(outcome=outcome, answer=None, error=None)
    decision = decided(closed(outcome=outcome), facts(run=said))
    assert (record(decision).outcome, record(decision).result) == (outcome, result)
    assert f'state="{result}"' in item(decision).text.splitlines()[0]


BODIES = [
    # outcome, answer, error -> what the parent reads
    (Outcome.COMPLETED, None, None, "completed without a text response"),
    (Outcome.COMPLETED, " \n", None, "completed without a text response"),
    (Outcome.TIMED_OUT, None, None, "timed_out without a text response"),
    (Outcome.LOST, None, "The host is gone.", "The host is gone."),
    (Outcome.COMPLETED, "Done.", None, "Done."),
]


@pytest.mark.parametrize(("outcome", "answer", "error", "text"), BODIES)
def test_a_run_that_produced_nothing_is_reported_and_says_so(
    outcome: Outcome, answer: str | None, error: str | None, text: str
) -> None:
    """No outcome is passed over in silence, and an empty one is not filled with an older text."""
    decision = decided(closed(outcome=outcome), facts(run=run(outcome=outcome, answer=answer, error=error)))
    assert item(decision).text.splitlines()[1] == text
    assert (record(decision).answer, record(decision).error) == (answer, error)


WAKES = [
    ({}, True, None),  # a report that nobody waits for
    ({"wakes": False}, False, None),  # it comes of a cancel or a close
    ({"foreground": True, "for_run": "P-r1"}, False, "P-r1"),  # the caller takes it as its call's result
    ({"foreground": True}, True, None),  # the caller had no active run: an ordinary item
    ({"foreground": True, "for_run": "P-r1", "wakes": False}, False, "P-r1"),
]


@pytest.mark.parametrize(("period", "wakes", "for_run"), WAKES)
def test_item_wakes(period: dict[str, Any], wakes: bool, for_run: str | None) -> None:
    """An item wakes unless a run waits for it, or it comes of a cancel or a close."""
    decision = decided(closed(**period), facts())
    assert (item(decision).item_id, item(decision).kind) == ("C-p1", "report")
    assert (item(decision).wakes, item(decision).for_run) == (wakes, for_run)
    assert record(decision).for_run == for_run


def test_a_caller_that_has_settled_takes_nothing_any_more() -> None:
    """The report of a foreground child whose caller gave up is an ordinary item from the start."""
    decision = decided(closed(foreground=True, for_run="P-r1"), facts(awaited=False))
    assert (item(decision).wakes, item(decision).for_run) == (True, None)
    assert record(decision).for_run is None


def test_the_report_names_what_still_runs() -> None:
    """A period that closed before its work was done says so in the record and in the text."""
    decision = decided(closed(pending=[SHELL, GRANDCHILD]), facts())
    assert record(decision).pending == [SHELL, GRANDCHILD]
    assert "Still running:" in item(decision).text


TIMES = [
    # held_since, now -> created_at, held_ms, delivered_at
    (None, 5000, 5000, 0, 5000),  # never held: created when it closed
    (2000, 5000, 2000, 3000, 5000),
    (2000, 60_000, 2000, 3000, 60_000),  # decided late, after an outage: it was held until it closed
    (None, 4000, 5000, 0, 5000),  # our clock is behind JetStream's: no time runs backwards
]


@pytest.mark.parametrize(("held_since", "now", "created", "held_ms", "delivered"), TIMES)
def test_times(held_since: int | None, now: int, created: int, held_ms: int, delivered: int) -> None:
    """Held from the settling of its first run until it closed, also where no held event was stored."""
    period = closed(held_since=None if held_since is None else T0 + held_since)
    decision = decide(period, facts(), None, T0 + now)
    assert decision is not None
    found = record(decision)
    assert (found.created_at, found.held_ms, found.delivered_at) == (T0 + created, held_ms, T0 + delivered)


def test_decided_after_held_keeps_its_beginning() -> None:
    """The place of a report in a list never changes."""
    decision = decided(closed(held_since=T0 + 2000), facts(), report(created_at=T0 + 1999))
    assert record(decision).created_at == T0 + 1999
    assert record(decision).reason is None


# Held


def test_held_for_the_first_time() -> None:
    """The report says what it waits for, what was said so far, and shows no state yet."""
    decision = decided(held(), facts(seq=5))
    found = record(decision)
    assert (found.status, found.reason, found.pending) == ("held", "work_pending", [SHELL])
    assert (found.outcome, found.answer, found.result) == ("completed", "They are in tests/.", None)
    assert (found.created_at, found.held_ms, found.delivered_at) == (T0 + 2000, 7000, None)
    assert decision.entry.item is None
    assert decision.entry.type == "report_held"
    assert not is_decided(decision.entry.state)
    assert decision.entry.state == report(entry_seq=5)


HELD_AGAIN = [
    # the entry's place and what it says, after one at 5 that said: work_pending, the shell
    (6, {}, False),  # the same
    (6, {"reason": "children_pending"}, True),
    (6, {"pending": [SHELL, GRANDCHILD]}, True),
    (6, {"pending": []}, True),
    (6, {"runs": ["C-r1", "C-r2"], "outcome": Outcome.FAILED}, False),  # it waits for the same as before
    (5, {"reason": "children_pending"}, False),  # the very entry, once more
    (4, {"reason": "children_pending"}, False),  # an older one that comes late
]


@pytest.mark.parametrize(("seq", "period", "more"), HELD_AGAIN)
def test_held_again(seq: int, period: dict[str, Any], more: bool) -> None:
    """A held report is told again when what it waits for has changed, and never goes back."""
    decision = decide(held(**period), facts(seq), report(), NOW)
    assert (decision is not None) is more
    if decision is not None:
        assert record(decision).created_at == T0 + 2000
        assert record(decision).status == "held"


@pytest.mark.parametrize("alone", [top("C"), session()])
def test_held_without_anybody_to_tell(alone: Any) -> None:
    """A top-level session's period is held, too: its topic says what it waits for."""
    assert record(decided(held(), facts(session=alone, parent_closed=True))).status == "held"


# Decided


@pytest.mark.parametrize("status", ["delivered", "suppressed"])
@pytest.mark.parametrize("period", [closed(), closed(notify=False), held(), held(reason="children_pending")])
@pytest.mark.parametrize("seq", [1, 5, 99])
def test_nothing_follows_a_decision(status: str, period: ClosedPeriod | HeldPeriod, seq: int) -> None:
    """A decided report ends it: whatever comes again, or late, changes nothing."""
    assert decide(period, facts(seq), report(status, reason=None, pending=[]), NOW) is None


def test_a_repeated_entry_has_the_same_event_id() -> None:
    """Two instances that decide from one entry write one event, and each takes it for its own."""
    first, second = (decide(closed(), facts(), None, NOW + late) for late in (0, 700))
    assert first
    assert second
    assert first.entry.event_id == second.entry.event_id
    assert first.entry.event_id != decided(closed(notify=False), facts()).entry.event_id
    assert first.entry.event_id != decided(held(), facts()).entry.event_id


# The subject, and what JetStream makes of it


SUBJECTS = [
    (session(), run(), "log.report.C-p1.delivered.C-r1.C.P-r1.P"),
    (session(), run(parent_run_id=None), "log.report.C-p1.delivered.C-r1.C.P"),
    (top("C"), run(parent_run_id=None), "log.report.C-p1.suppressed.C-r1.C"),
]


@pytest.mark.parametrize(("of", "last", "subject"), SUBJECTS)
def test_subject(of: Any, last: Any, subject: str) -> None:
    """It carries what the names on the topics and in the inbox are made of."""
    assert decided(closed(), facts(session=of, run=last)).subject == subject


def test_the_largest_report_fits() -> None:
    """A run's longest answer stands in the entry twice, as data and in the item's text, and still fits."""
    work = [WorkItem(id=f"W{n}", label="x" * 200) for n in range(100)]
    decision = decided(closed(work=work), facts(run=run(answer="\x01" * (TEXT_MAX_BYTES // 3))))
    assert len(decision.entry.model_dump_json()) < PAYLOAD_MAX_BYTES
