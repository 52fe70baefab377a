"""Deadlines that should have fired and did not: carried out all the same.

JetStream fires a schedule whatever happens here; but one that came due while its store was full can stay
stuck until the server is started again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from upcall_shell.errors import Conflict, Unavailable

from .clock import now_ms

logger = structlog.get_logger()
_LOOK_S: Final = 2.0
_GRACE_MS: Final = 5_000  # a deadline in time is late by less, and then nothing is left to do here

Fire = Callable[[str, str, int], Awaitable[None]]


class Overdue:
    """Remembers the deadlines that this process has set."""

    def __init__(self, clock: Callable[[], Awaitable[int]], grace_ms: int = _GRACE_MS) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self._set: dict[tuple[str, str], int] = {}

    def note(self, session_id: str, kind: str, at: int) -> None:
        """Remember a deadline; a later one of a kind replaces it."""
        self._set[session_id, kind] = at

    async def run(self, fire: Fire) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look(fire)

    async def look(self, fire: Fire) -> None:
        """Carry out what is overdue, by JetStream's clock; what has fired in time has nothing left to do."""
        here = now_ms() - self._grace_ms
        late = sorted((at, *key) for key, at in self._set.items() if at <= here)
        if not late:
            return
        try:
            now = await self._clock()
            for at, session_id, kind in late:
                if now - at >= self._grace_ms:
                    await fire(session_id, kind, now)
                    if self._set.get((session_id, kind)) == at:
                        del self._set[session_id, kind]
        except (Unavailable, Conflict) as error:
            logger.warning("overdue deadlines wait", error=str(error))
