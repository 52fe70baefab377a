"""Queries on sessions, runs and inboxes. They change nothing."""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.queries import InboxList, RunGet, SessionGet, SessionHistory, SessionList
from upcall_contracts.records import ItemKind
from upcall_contracts.states import SessionState
from upcall_shell.queries import Query, QueryHandler, as_many_as_fit

from .histories import Histories
from .introspection import Introspection
from .reach import Reach
from .sessions import Sessions
from .waiting import Waiting


class SessionQueries:
    """Answers from the log."""

    def __init__(
        self,
        sessions: Sessions,
        reach: Reach,
        histories: Histories,
        introspection: Introspection,
        waiting: Waiting,
    ) -> None:
        self._sessions = sessions
        self._reach = reach
        self._histories = histories
        self._introspection = introspection
        self._waiting = waiting

    def handlers(self) -> Mapping[tuple[str, str], QueryHandler]:
        """By noun and verb."""
        return {
            ("session", "get"): self.get,
            ("session", "list"): self.list,
            ("session", "history"): self.history,
            ("run", "get"): self.run,
            ("run", "wait"): self._waiting.wait,
            ("inbox", "list"): self.inbox,
            ("log", "introspect"): self._introspection.introspect,
        }

    async def get(self, query: Query[SessionGet]) -> dict[str, Any] | Refusal:
        """session.get"""
        state = await self._reach.visible_session(query.caller, query.body.session_id)
        return state if isinstance(state, Refusal) else {"session": state.record().to_wire()}

    async def list(self, query: Query[SessionList]) -> dict[str, Any] | Refusal:
        """session.list: oldest first, page by page."""
        body = query.body
        after = _read_cursor(body.cursor) if body.cursor is not None else ("", "")
        if after is None:
            return refusals.invalid_field("cursor", "is not a cursor that session.list gave")
        found = await self._listed(query.caller, body)
        if isinstance(found, Refusal):
            return found
        wanted = sorted([s for s in found if body.status in (None, s.status)], key=_place)
        rest = [s for s in wanted if _place(s) > after]
        page = as_many_as_fit([s.record().to_wire() for s in rest[: body.limit]])
        cursor = _write_cursor(_place(rest[len(page) - 1])) if len(rest) > len(page) else None
        return {"sessions": page, "cursor": cursor}

    async def history(self, query: Query[SessionHistory]) -> dict[str, Any] | Refusal:
        """session.history: messages from an index on, and where to go on."""
        body = query.body
        state = await self._reach.visible_session(query.caller, body.session_id)
        if isinstance(state, Refusal):
            return state
        messages = await self._histories.read(state, body.from_, body.limit)
        last = messages[-1]["index"] if messages else body.from_ - 1
        return {"messages": messages, "next": last + 1 if last < state.history_seq else None}

    async def run(self, query: Query[RunGet]) -> dict[str, Any] | Refusal:
        """run.get"""
        found = await self._reach.visible_run(query.caller, query.body.run_id)
        return found if isinstance(found, Refusal) else {"run": found.run.to_wire()}

    async def inbox(self, query: Query[InboxList]) -> dict[str, Any] | Refusal:
        """inbox.list: what is not handled, oldest first, without what is over; as much as a message holds."""
        state = await self._reach.visible_session(query.caller, query.body.session_id or query.caller)
        if isinstance(state, Refusal):
            return state
        items = await self._sessions.items.items(state.session_id)
        waiting = {item.item_id for item in await self._sessions.open_questions(state.session_id)}
        taken = set(state.taken)
        shown = [
            item.body
            for item in items
            if item.item_id not in taken and (item.kind != ItemKind.QUESTION or item.item_id in waiting)
        ]
        return {"items": as_many_as_fit(shown)}

    async def _listed(self, caller: str, body: SessionList) -> "list[SessionState] | Refusal":
        if body.session_id is None and caller == OPERATOR:
            ids = await self._sessions.index.all_sessions()
            states = await asyncio.gather(*[self._reach.session(each) for each in ids])
            return [s for s in states if s is not None and (body.scope == "tree" or s.depth == 0)]
        state = await self._reach.visible_session(caller, body.session_id or caller)
        if isinstance(state, Refusal):
            return state
        if body.scope == "tree":
            return [state, *await self._reach.descendants(state.session_id)]
        ids = await self._sessions.log.child_ids(state.session_id)
        children = await asyncio.gather(*[self._reach.session(each) for each in ids])
        return [child for child in children if child is not None]


def _place(state: SessionState) -> tuple[str, str]:
    return f"{state.created_at:015d}", state.session_id


def _write_cursor(place: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(".".join(place).encode()).decode()


def _read_cursor(text: str) -> tuple[str, str] | None:
    try:
        created, _, session_id = base64.urlsafe_b64decode(text.encode()).decode().partition(".")
    except (ValueError, binascii.Error):
        return None
    return (created, session_id) if session_id else None
