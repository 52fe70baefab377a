"""Entries of a session's log: which subject, which event, which state. Nothing is decided here."""

from collections.abc import Sequence
from typing import Any

from upcall_contracts import log
from upcall_contracts.events import EVENT_TYPES, Family, Item
from upcall_contracts.log import NOTE_TYPE, Note
from upcall_contracts.records import RunRecord, WorkRecord
from upcall_contracts.states import SessionState, WorkLink

from .results import Asked, Decided


def lifecycle(
    state: SessionState,
    run: RunRecord,
    event: str,
    now: int,
    *,
    history: Sequence[dict[str, Any]] = (),
    asked: Asked | None = None,
    more: bool = False,
) -> Decided:
    """A run was queued, started, interrupted, backgrounded or settled, or its cancel was asked for."""
    subject = log.session_event(
        state.session_id,
        run.run_id,
        Family.LIFECYCLE,
        str(run.attempt),
        event,
        run.parent_run_id,
        run.parent_session_id,
    )
    return Decided(
        subject=subject,
        type=EVENT_TYPES[Family.LIFECYCLE, event].value,
        state=_touched(state, now),
        run_id=run.run_id,
        parent_run_id=run.parent_run_id,
        task_id=run.task_id,
        data=run,
        history=history,
        mark=asked.mark if asked is not None else None,
        more=more,
    )


def work_finished(
    state: SessionState,
    link: WorkLink,
    record: WorkRecord,
    item: Item,
    now: int,
    *,
    asked: Asked | None = None,
) -> Decided:
    """Background work has ended."""
    subject = log.session_event(
        state.session_id,
        link.run_id,
        Family.WORK,
        link.work_id,
        "finished",
        link.parent_run_id,
        state.parent_session_id,
    )
    return Decided(
        subject=subject,
        type=EVENT_TYPES[Family.WORK, "finished"].value,
        state=_touched(state, now),
        run_id=link.run_id,
        parent_run_id=link.parent_run_id,
        task_id=link.task_id,
        data=record,
        item=item,
        mark=asked.mark if asked is not None else None,
    )


def note(
    state: SessionState, kind: Note, now: int, *, asked: Asked | None = None, more: bool = False
) -> Decided:
    """A decision that concerns no run."""
    return _quiet(log.session_note(state.session_id, kind), state, now, asked, (), more)


def child(state: SessionState, child_session_id: str, now: int, *, asked: Asked | None = None) -> Decided:
    """A spawn or continue of a child, decided on its parent."""
    return _quiet(log.session_child(state.session_id, child_session_id), state, now, asked)


def history(
    state: SessionState, messages: Sequence[dict[str, Any]], now: int, *, asked: Asked | None = None
) -> Decided:
    """An append; the messages carry their indices."""
    subject = log.session_history(state.session_id, int(messages[0]["index"]))
    return _quiet(subject, state, now, asked, messages)


def _quiet(
    subject: str,
    state: SessionState,
    now: int,
    asked: Asked | None,
    messages: Sequence[dict[str, Any]] = (),
    more: bool = False,
) -> Decided:
    mark = asked.mark if asked is not None else None
    return Decided(subject, NOTE_TYPE, _touched(state, now), history=messages, mark=mark, more=more)


def _touched(state: SessionState, now: int) -> SessionState:
    return state.model_copy(update={"updated_at": max(now, state.updated_at)})
