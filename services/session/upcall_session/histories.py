"""A session's history, read from the entries of the log that hold it."""

from typing import Any

from upcall_contracts import log
from upcall_contracts.events import Family
from upcall_contracts.states import SessionState
from upcall_shell.queries import Page

from .index import SessionIndex
from .log_store import SessionLog


class Histories:
    """Pages of histories."""

    def __init__(self, sessions: SessionLog, index: SessionIndex) -> None:
        self._sessions = sessions
        self._index = index

    async def read(self, state: SessionState, first: int, limit: int) -> list[dict[str, Any]]:
        """At most `limit` messages from index `first` on, and no more than a reply can hold."""
        page = Page(limit)
        if first > state.history_seq:
            return page.records
        since = await self._index.history_from(state.session_id, first)
        async for _, entry in self._sessions.scan(_filters(state.session_id), since):
            for message in entry.get("history", ()):
                if message["index"] >= first and not page.takes(message):
                    return page.records
        return page.records


def _filters(session_id: str) -> list[str]:
    """Appends, and the beginnings of runs, whose tasks are messages."""
    begins = [f"log.session.{session_id}.*.{Family.LIFECYCLE}.*.{event}" for event in ("queued", "started")]
    return [log.session_histories(session_id), *begins, *(f"{begin}.*.*" for begin in begins)]
