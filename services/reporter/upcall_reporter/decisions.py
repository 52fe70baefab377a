"""Is this period reported, and how? Pure: what is known goes in, and at most one decision comes out.

The states of a report; each arrow is one append under the guard of its period:

             ┌──▶ held ──┐ (again whenever what it waits for has changed)
    nothing ─┤     │  ▲  │
             │     │  └──┘
             │     ▼
             └──▶ delivered or suppressed: decided, for good

The session's entries that ask for a decision may come out of order, more than once, and to several
instances at a time. So an entry that is older than what was decided on says nothing new, and nothing follows
a decision.
"""

from dataclasses import dataclass

from upcall_contracts import texts
from upcall_contracts.events import EventType, Item
from upcall_contracts.ids import derive_id
from upcall_contracts.log import Entry, report_event
from upcall_contracts.records import (
    ItemKind,
    ReportRecord,
    ReportStatus,
    RunRecord,
    SuppressedReason,
    result_of,
)
from upcall_contracts.states import ClosedPeriod, HeldPeriod, ReportState, SessionState

_TYPES = {
    ReportStatus.HELD: EventType.REPORT_HELD,
    ReportStatus.DELIVERED: EventType.REPORT_DELIVERED,
    ReportStatus.SUPPRESSED: EventType.REPORT_SUPPRESSED,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report is decided from, besides the period itself."""

    session: SessionState
    """The session, as the entry left it."""
    entry_seq: int
    """That entry's place in the log."""
    run: RunRecord
    """The period's last run."""
    parent_closed: bool
    """Whether the parent session takes nothing any more."""
    awaited: bool = True
    """Whether the caller's run that the period is in the foreground of is still active."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One message for the log."""

    subject: str
    entry: Entry[ReportState]


def is_decided(report: ReportState | None) -> bool:
    """Whether a report has come to its end."""
    return report is not None and report.status is not ReportStatus.HELD


def decide(
    period: ClosedPeriod | HeldPeriod, facts: Facts, report: ReportState | None, now: int
) -> Decision | None:
    """What has to be stored about a period's report, given what is stored already; None for nothing."""
    if is_decided(report):
        return None
    if isinstance(period, ClosedPeriod):
        return _close(period, facts, report, max(now, period.closed_at))
    if report is not None and not _says_more(period, facts, report):
        return None
    return _hold(period, facts, report, max(now, period.held_since))


def suppressed_because(period: ClosedPeriod, facts: Facts) -> SuppressedReason | None:
    """Why nobody is told of a closed period; None where the parent is told."""
    if facts.session.parent_session_id is None:
        return SuppressedReason.NO_PARENT
    if facts.parent_closed:
        return SuppressedReason.PARENT_CLOSED
    if not period.notify:
        return SuppressedReason.SILENT
    return None


def _says_more(period: HeldPeriod, facts: Facts, report: ReportState) -> bool:
    """Whether a report that is held already is now held for something else."""
    if facts.entry_seq <= report.entry_seq:
        return False
    return (period.reason, period.pending) != (report.reason, report.pending)


def _hold(period: HeldPeriod, facts: Facts, report: ReportState | None, now: int) -> Decision:
    record = _record(period, facts).model_copy(
        update={
            "status": ReportStatus.HELD,
            "reason": period.reason,
            "held_ms": now - period.held_since,
            "created_at": report.created_at if report else period.held_since,
        }
    )
    return _decision(record, facts, now)


def _close(period: ClosedPeriod, facts: Facts, report: ReportState | None, now: int) -> Decision:
    reason = suppressed_because(period, facts)
    since = period.closed_at if period.held_since is None else period.held_since
    record = _record(period, facts).model_copy(
        update={
            "result": result_of(period.outcome),
            "work": period.work,
            "cancelled": period.cancelled,
            "status": ReportStatus.SUPPRESSED if reason else ReportStatus.DELIVERED,
            "reason": reason,
            "for_run": _for_run(period, facts),
            "held_ms": max(0, period.closed_at - since),
            "created_at": report.created_at if report else since,
            "delivered_at": None if reason else now,
        }
    )
    return _decision(record, facts, now, None if reason else _item(record, period))


def _item(record: ReportRecord, period: ClosedPeriod) -> Item:
    return Item(
        item_id=record.period_id,
        kind=ItemKind.REPORT,
        text=texts.report_item_text(record),
        wakes=period.wakes and record.for_run is None,
        for_run=record.for_run,
    )


def _for_run(period: ClosedPeriod, facts: Facts) -> str | None:
    """The run that takes the report as the result of its call; one that has settled takes nothing."""
    return period.for_run if facts.awaited else None


def _record(period: ClosedPeriod | HeldPeriod, facts: Facts) -> ReportRecord:
    """What a report says whether it is held or decided."""
    session, run = facts.session, facts.run
    return ReportRecord(
        period_id=period.period_id,
        session_id=session.session_id,
        parent_session_id=session.parent_session_id,
        parent_run_id=run.parent_run_id,
        root_session_id=session.root_session_id,
        agent=session.agent,
        description=run.description,
        task_id=run.task_id,
        outcome=period.outcome,
        answer=run.answer,
        error=run.error,
        runs=period.runs,
        pending=period.pending,
    )


def _decision(record: ReportRecord, facts: Facts, now: int, item: Item | None = None) -> Decision:
    state = ReportState(
        period_id=record.period_id,
        session_id=record.session_id,
        ancestors=facts.session.ancestors,
        status=record.status,
        reason=record.reason,
        pending=record.pending,
        created_at=record.created_at or now,
        entry_seq=facts.entry_seq,
    )
    entry = Entry[ReportState](
        event_id=derive_id("report-", record.period_id, str(facts.entry_seq), record.status),
        type=_TYPES[record.status],
        time=now,
        run_id=facts.run.run_id,
        session_id=record.session_id,
        parent_run_id=record.parent_run_id,
        parent_session_id=record.parent_session_id,
        root_session_id=record.root_session_id,
        agent=record.agent,
        task_id=record.task_id,
        data=record.to_wire(),
        item=item,
        state=state,
    )
    subject = report_event(
        record.period_id,
        record.status,
        facts.run.run_id,
        record.session_id,
        record.parent_run_id,
        record.parent_session_id,
    )
    return Decision(subject, entry)
