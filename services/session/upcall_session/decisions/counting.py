"""A child's report was decided: the child counts as done, and its report is in the inbox or is not."""

from upcall_contracts.log import Note
from upcall_contracts.records import ItemKind, ReportRecord, ReportStatus, WorkItem, WorkKind
from upcall_contracts.states import ChildLink, InboxEntry, SessionState

from . import entries
from .results import Decided


def count(
    state: SessionState, report: ReportRecord, now: int, *, may_wake: bool, handled: bool
) -> Decided | None:
    """Count a report on the parent's session. None: it has been counted, or nothing here depends on it.

    `may_wake` is false for a report that comes of a cancel or a close. `handled` says that the item has been
    handled already, as INBOX shows it.
    """
    if state.closed_at is not None:
        return None
    counted = [link for link in state.children if _lets_go(link, report)]
    entry = _entry(state, report, may_wake=may_wake)
    known = handled or report.period_id in {*state.taken, *(e.item_id for e in state.inbox)}
    added = [entry] if entry is not None and not known else []
    if not counted and not added:
        return None
    period = state.period
    if period is not None and counted:
        told = WorkItem(
            id=report.session_id, kind=WorkKind.SESSION, label=report.description, outcome=report.outcome
        )
        period = period.model_copy(update={"work": [*period.work, told]})
    after = state.model_copy(
        update={
            "children": [link for link in state.children if link not in counted],
            "inbox": [*state.inbox, *added],
            "period": period,
        }
    )
    return entries.note(after, Note.COUNTED, now)


def uncount(state: SessionState, child_session_id: str, run_id: str, now: int) -> Decided | None:
    """A spawn or continue that was decided here was refused by the child after all."""
    kept = [link for link in state.children if (link.session_id, link.run_id) != (child_session_id, run_id)]
    if len(kept) == len(state.children):
        return None
    return entries.note(state.model_copy(update={"children": kept}), Note.UNCOUNTED, now)


def _lets_go(link: ChildLink, report: ReportRecord) -> bool:
    return link.session_id == report.session_id and link.run_id in report.runs


def _entry(state: SessionState, report: ReportRecord, *, may_wake: bool) -> InboxEntry | None:
    """What the state has to know of the item; an item that neither wakes nor is waited for is INBOX's alone.

    The run that waited for it may have settled meanwhile: then it is an ordinary item, and written anew.
    """
    if report.status is not ReportStatus.DELIVERED:
        return None
    waiting = report.for_run is not None and state.run is not None and state.run.run_id == report.for_run
    if waiting:
        return InboxEntry(
            item_id=report.period_id, kind=ItemKind.REPORT, for_run=report.for_run, may_wake=may_wake
        )
    rewrite = report.for_run is not None
    if not may_wake and not rewrite:
        return None
    return InboxEntry(
        item_id=report.period_id, kind=ItemKind.REPORT, wakes=may_wake, may_wake=may_wake, rewrite=rewrite
    )
