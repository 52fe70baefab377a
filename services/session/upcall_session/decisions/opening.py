"""session.open: a new session under the caller's id, or a new process for an old one."""

from typing import Any

from upcall_contracts import refusals
from upcall_contracts.commands import SessionOpen
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.log import Note
from upcall_contracts.records import Host, Outcome
from upcall_contracts.states import SessionState

from . import entries
from .ending import end_run
from .liveness import shells_lost
from .repeating import done, repeated
from .results import Asked, Decided, Repeated
from .rules import Rules

NEW_PROCESS = "A new process opened the session, so nobody carries out what the old one had begun."


def open_session(
    state: SessionState | None, body: SessionOpen, asked: Asked, rules: Rules
) -> Decided | Repeated | Refusal:
    """Open a session, or open it again.

    Opened again by a new process it is live again; a run that was active settles as lost, since nobody
    carries it out, and the old process's shells end. A runner-hosted session's runs are its runners'.
    """
    if asked.caller == OPERATOR:
        return refusals.operator_cannot_open()
    if state is None:
        return _first(body, asked, rules)
    known = repeated(state, asked)
    if known is not None:
        return known
    if state.agent != body.agent:
        return refusals.agent_mismatch(state.session_id, state.agent, body.agent)
    if state.closed_at is not None or state.closing:
        return refusals.session_closed(state.session_id)
    if state.host is Host.SELF and state.run is not None:
        return end_run(state, asked.now, Outcome.LOST, error=NEW_PROCESS, more=True)
    return _again(state, body, asked)


def _first(body: SessionOpen, asked: Asked, rules: Rules) -> Decided:
    lease = body.lease_ms
    if body.host is Host.RUNNER and "lease_ms" not in body.model_fields_set:
        lease = rules.lease_ms
    state = SessionState(
        session_id=asked.caller,
        root_session_id=asked.caller,
        agent=body.agent,
        host=body.host,
        holder=asked.caller if body.host is Host.SELF else None,
        title=body.title,
        lease_ms=lease,
        meta=body.meta,
        created_at=asked.now,
        updated_at=asked.now,
    )
    return entries.note(done(state, asked), Note.OPENED, asked.now, asked=asked)


def _again(state: SessionState, body: SessionOpen, asked: Asked) -> Decided:
    given: dict[str, Any] = {
        name: getattr(body, name) for name in ("title", "meta", "lease_ms") if name in body.model_fields_set
    }
    given = {name: value for name, value in given.items() if value is not None}
    if state.host is Host.SELF:
        given |= {"live": True, "holder": asked.caller, "letting_go": None, "work": shells_lost(state)}
    state = done(state.model_copy(update=given), asked)
    return entries.note(state, Note.OPENED, asked.now, asked=asked)
