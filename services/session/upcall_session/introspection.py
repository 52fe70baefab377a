"""log.introspect: the public events of a run, a session or a tree, in the order of their decisions."""

from typing import Any

from upcall_contracts import limits, refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.events import Event
from upcall_contracts.log import NOTE_TYPE
from upcall_contracts.queries import LogIntrospect
from upcall_shell.queries import Page, Query

from .log_store import SessionLog
from .reach import Reach


class Introspection:
    """Reads the log as its readers may see it: without the states beside the events."""

    def __init__(self, sessions: SessionLog, reach: Reach) -> None:
        self._sessions = sessions
        self._reach = reach

    async def introspect(self, query: Query[LogIntrospect]) -> dict[str, Any] | Refusal:
        """A page of events; the cursor is the place of its last one."""
        body = query.body
        if body.cursor is not None and not _is_cursor(body.cursor):
            return refusals.invalid_field("cursor", "is not a cursor that log.introspect gave")
        filters = await self._filters(query.caller, body)
        if isinstance(filters, Refusal):
            return filters
        after = int(body.cursor) if body.cursor is not None else 0
        page, last = Page(body.limit), after
        async for stored, entry in self._sessions.scan(filters, after + 1):
            if entry["type"] != NOTE_TYPE and not page.takes(_public(entry)):
                return {"events": page.records, "cursor": str(last)}
            last = stored.seq
        return {"events": page.records, "cursor": None}

    async def _filters(self, caller: str, body: LogIntrospect) -> list[str] | Refusal:
        if body.run_id is not None:
            found = await self._reach.visible_run(caller, body.run_id)
            return found if isinstance(found, Refusal) else _of_run(found.state.session_id, body.run_id)
        session_id = body.session_id or body.root_session_id or ""
        state = await self._reach.visible_session(caller, session_id)
        if isinstance(state, Refusal):
            return state
        ids = [session_id]
        if body.session_id is None:
            ids += [each.session_id for each in await self._reach.descendants(session_id)]
        return [each for session in ids for each in _of_session(session)]


def _is_cursor(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= limits.INTEGER_MAX


def _of_run(session_id: str, run_id: str) -> list[str]:
    reports = f"log.report.*.*.{run_id}.{session_id}"
    return [
        f"log.session.{session_id}.{run_id}.*.*.>",
        f"log.question.{run_id}.>",
        reports,
        f"{reports}.>",
    ]


def _of_session(session_id: str) -> list[str]:
    questions, reports = f"log.question.*.*.*.{session_id}", f"log.report.*.*.*.{session_id}"
    return [f"log.session.{session_id}.*.*.*.>", f"{questions}.>", reports, f"{reports}.>"]


def _public(entry: dict[str, Any]) -> dict[str, Any]:
    known = set(Event.model_fields) - {"item"}
    return {name: value for name, value in entry.items() if name in known}
