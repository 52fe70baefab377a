"""Background work: its end as its host says it, as it came too early, or as lost with its host."""

import json

from upcall_contracts import limits, refusals, texts
from upcall_contracts.commands import WorkFinish
from upcall_contracts.errors import Refusal
from upcall_contracts.events import Item
from upcall_contracts.log import Note
from upcall_contracts.records import ItemKind, Outcome, WorkItem, WorkOutcome, WorkRecord
from upcall_contracts.states import EarlyWork, InboxEntry, SessionState, WorkLink

from . import entries
from .ending import holder_after
from .repeating import done, repeated
from .results import Asked, Decided, NotYet, Repeated


def finish(
    state: SessionState, body: WorkFinish, finished: WorkRecord | None, asked: Asked
) -> Decided | Repeated | NotYet | Refusal:
    """work.finish. `finished` is the record of work of this id that has ended here before.

    While a run is active, unknown work is taken for work that the run's settle will name. What is said of it
    until then is kept; when that becomes too much, the command waits for the settle.
    """
    known = repeated(state, asked)
    if known is not None:
        return known
    if state.closed_at is not None or state.closing:
        return refusals.session_closed(state.session_id)
    link = next((link for link in state.work if link.work_id == body.work_id), None)
    if link is not None and not link.lost and link.early is None:
        outcome = WorkOutcome(body.outcome.value)
        return end_work(done(state, asked), link, outcome, body.summary, asked.now, asked)
    if link is None and state.run is not None and body.work_id not in state.early_work:
        return _early(state, body, asked)
    if link is None and state.run is None and finished is None:
        return _unknown()
    return Repeated({})


def _unknown() -> Refusal:
    return refusals.invalid_field(
        "work_id", "is not work that runs here: a run's settle names what it leaves running"
    )


def record(state: SessionState, work_id: str, finished: WorkRecord | None) -> WorkRecord:
    """Work as it stands now: what is still to be told, what came early, else what was told."""
    link = next((link for link in state.work if link.work_id == work_id), None)
    early = link.early if link is not None else state.early_work.get(work_id)
    if link is not None:
        outcome = early.outcome if early is not None else WorkOutcome.LOST if link.lost else None
        return _record(
            state, link, outcome, early.summary if early else None, early.finished_at if early else None
        )
    if early is not None:
        return WorkRecord(
            work_id=work_id,
            session_id=state.session_id,
            run_id=state.run.run_id if state.run else None,
            outcome=early.outcome,
            summary=early.summary,
            finished_at=early.finished_at,
        )
    return finished or WorkRecord(work_id=work_id, session_id=state.session_id)


def tell_next(state: SessionState, now: int) -> Decided | None:
    """The next end that is still to be told: of work that had finished early, or was lost with its host."""
    for link in state.work:
        if link.early is not None:
            return end_work(state, link, link.early.outcome, link.early.summary, link.early.finished_at)
        if link.lost:
            return end_work(state, link, WorkOutcome.LOST, None, now)
    return None


def end_work(
    state: SessionState,
    link: WorkLink,
    outcome: WorkOutcome,
    summary: str | None,
    now: int,
    asked: Asked | None = None,
) -> Decided:
    """The one transition of work to its end: an event, and an item of the session's own inbox.

    What ends as cancelled in a session that was cancelled comes of that cancel, and wakes nobody.
    """
    ended = _record(state, link, outcome, summary, now)
    wakes = link.wakes and not (state.wake_blocked and outcome is WorkOutcome.CANCELLED)
    item = Item(item_id=link.work_id, kind=ItemKind.WORK, text=texts.work_item_text(ended), wakes=wakes)
    period = state.period
    if period is not None and period.period_id == link.period_id:
        told = WorkItem(id=link.work_id, kind=link.kind, label=link.label, outcome=Outcome(outcome.value))
        period = period.model_copy(update={"work": [*period.work, told]})
    entry = InboxEntry(item_id=link.work_id, kind=ItemKind.WORK, wakes=True)
    others = [entry for entry in state.inbox if entry.item_id != link.work_id]
    after = state.model_copy(
        update={
            "work": [other for other in state.work if other.work_id != link.work_id],
            "period": period,
            "inbox": [*others, entry] if wakes else others,
            "taken": [item for item in state.taken if item != link.work_id],
        }
    )
    after = after.model_copy(update={"holder": holder_after(after)})
    return entries.work_finished(after, link, ended, item, now, asked=asked)


def _early(state: SessionState, body: WorkFinish, asked: Asked) -> Decided | NotYet:
    early = EarlyWork(outcome=WorkOutcome(body.outcome.value), summary=body.summary, finished_at=asked.now)
    kept = {**state.early_work, body.work_id: early}
    if state.early_work and sum(map(_size, kept.values())) > limits.EARLY_WORK_MAX_BYTES:
        return NotYet(_unknown())
    after = state.model_copy(update={"early_work": kept})
    return entries.note(done(after, asked), Note.NOTED, asked.now, asked=asked)


def _size(early: EarlyWork) -> int:
    return 200 + len(json.dumps(early.summary))  # with what else stands there


def _record(
    state: SessionState, link: WorkLink, outcome: WorkOutcome | None, summary: str | None, at: int | None
) -> WorkRecord:
    return WorkRecord(
        work_id=link.work_id,
        session_id=state.session_id,
        run_id=link.run_id,
        kind=link.kind,
        label=link.label,
        wakes=link.wakes,
        outcome=outcome,
        summary=summary,
        finished_at=at,
    )
