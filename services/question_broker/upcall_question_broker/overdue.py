"""Questions whose deadline should have fired and did not: ended all the same.

JetStream fires a schedule whatever happens here; but one that came due while its store was full can stay
stuck until the server is started again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_shell.delivery import Again
from upcall_shell.errors import Unavailable

logger = structlog.get_logger()
_LOOK_S: Final = 2.0
_GRACE_MS: Final = 5_000  # a deadline in time is late by less; then nothing is left to do here

Deadline = Callable[[str, str, int], Awaitable[Again | None]]


class Overdue:
    """Remembers the deadlines of open questions, and carries out those that are overdue."""

    def __init__(self, clock: Callable[[], Awaitable[int]], grace_ms: int = _GRACE_MS) -> None:
        self._clock = clock
        self._grace_ms = grace_ms
        self._open: dict[str, tuple[int, str]] = {}

    def note(self, record: QuestionRecord) -> None:
        """Remember a question while it waits."""
        if record.status is QuestionStatus.WAITING:
            self._open[record.request_id] = (record.expires_at or 0, record.child_run_id or "")
        else:
            self._open.pop(record.request_id, None)

    async def run(self, deadline: Deadline) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look(deadline)

    async def look(self, deadline: Deadline) -> None:
        """Carry out what is overdue, by JetStream's clock."""
        here = time.time_ns() // 1_000_000 - self._grace_ms
        late = [(*place, request_id) for request_id, place in self._open.items() if place[0] <= here]
        if not late:
            return
        try:
            now = await self._clock()
            for expires_at, run_id, request_id in sorted(late):
                if now - expires_at >= self._grace_ms and await deadline(request_id, run_id, now) is None:
                    self._open.pop(request_id, None)
        except Unavailable as error:
            logger.warning("overdue deadlines wait", error=str(error))
