"""Removes dispatches of runs that have ended, where whoever ended them could not.

A run is withdrawn when it ends in the queue (`Dispatcher.withdraw`). A crash, a dispatch that came after the
end, or a queue too long to be read for one run may leave one behind, which no runner may ever take.
"""

import asyncio
from typing import Final

import structlog

from upcall_contracts import subjects
from upcall_shell.errors import Unavailable
from upcall_shell.jetstream import Stored, StreamClient

from .decisions.dispatched import is_active
from .dispatching import named
from .log_store import SessionLog

logger = structlog.get_logger()

_EVERY_MIN_S: Final = 1.0
_EVERY_MAX_S: Final = 60.0


class DispatchSweep:
    """Looks at dispatches older than a run may be queued: a runner has taken the run, or it has ended.

    So a look costs next to nothing, however many wait for a runner. Several instances may look at once.
    """

    def __init__(self, stream: StreamClient, sessions: SessionLog, queue_ms: int) -> None:
        self._stream = stream
        self._sessions = sessions
        self._queue_ms = queue_ms

    async def run(self) -> None:
        """Look until cancelled."""
        every = min(max(self._queue_ms / 10_000, _EVERY_MIN_S), _EVERY_MAX_S)
        while True:
            try:
                await self.look()
            except Unavailable as error:
                logger.warning("dispatches not looked at", error=str(error))
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Look once. Raises Unavailable."""
        old_ms = await self._stream.now() - self._queue_ms
        stored = await self._stream.next(subjects.DISPATCH_ALL, 1)
        while stored is not None and stored.time_ms <= old_ms:
            if await self._is_over(stored):
                await self._stream.delete(stored.seq)
                logger.info("dispatch removed", subject=stored.subject, seq=stored.seq)
            stored = await self._stream.next(subjects.DISPATCH_ALL, stored.seq + 1)

    async def _is_over(self, stored: Stored) -> bool:
        ids = named(stored)
        if ids is None:
            return False
        session_id, run_id = ids
        loaded = await self._sessions.load(session_id)
        return not is_active(run_id, loaded.state if loaded is not None else None)
