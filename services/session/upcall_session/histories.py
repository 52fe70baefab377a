"""A session's history, read from the entries of the log that hold it."""

from typing import Any, Final

from upcall_contracts import log
from upcall_contracts.events import Family
from upcall_contracts.states import SessionState

from .index import SessionIndex
from .log_store import SessionLog

_BYTES_MAX: Final = 3_000_000
"""A page ends here at the latest: the servers' max_payload is 4 MiB."""


class Histories:
    """Pages of histories."""

    def __init__(self, sessions: SessionLog, index: SessionIndex) -> None:
        self._sessions = sessions
        self._index = index

    async def read(self, state: SessionState, first: int, limit: int) -> list[dict[str, Any]]:
        """At most `limit` messages from index `first` on."""
        found: list[dict[str, Any]] = []
        if first > state.history_seq:
            return found
        size = 0
        since = await self._index.history_from(state.session_id, first)
        async for stored, entry in self._sessions.scan(_filters(state.session_id), since):
            for message in entry.get("history", ()):
                if message["index"] >= first and len(found) < limit:
                    found.append(message)
            size += len(stored.body)
            if len(found) >= limit or (found and size > _BYTES_MAX):
                break
        return found


def _filters(session_id: str) -> list[str]:
    """Appends, and the beginnings of runs, whose tasks are messages."""
    begins = [f"log.session.{session_id}.*.{Family.LIFECYCLE}.*.{event}" for event in ("queued", "started")]
    return [log.session_histories(session_id), *begins, *(f"{begin}.*.*" for begin in begins)]
