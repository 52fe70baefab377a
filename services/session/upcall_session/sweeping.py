"""Who is gone? Looked for all the time, and declared only when nobody can have been overheard.

A host is gone when its lease has passed in this process's memory and in Redis, while this process heard
everything: connected to NATS and to Redis, with a whole index, for a whole lease without a break.
"""

import asyncio
import time
from collections import deque
from typing import Final

import nats.errors
import structlog

from upcall_contracts.states import SessionState
from upcall_shell.errors import Unavailable
from upcall_shell.process import Service

from .clock import now_ms
from .decisions.liveness import is_leased, lease_passed
from .index import SERVICE
from .leases import Leases
from .metrics import GONE
from .sessions import Decision, Sessions

logger = structlog.get_logger()

_EVERY_S: Final = 0.5
_ROUND_TRIP_S: Final = 1.0
"""A round trip to NATS that takes longer is a break, whatever the lease."""
_SHARE: Final = 0.4
"""A delay is a break for leases of which it is more than this share: hosts beat three times a lease, and what
held us up may have held up a beat as well (0.4 + 1/3 < 1)."""
_DELAYS_KEPT: Final = 500


class Sweeper:
    """Declares hosts gone."""

    def __init__(self, service: Service, sessions: Sessions, leases: Leases) -> None:
        self._service = service
        self._sessions = sessions
        self._leases = leases
        self._broken_at = time.monotonic()
        self._delays: deque[tuple[float, float]] = deque(maxlen=_DELAYS_KEPT)
        """When something was late, and by how many seconds."""

    async def run(self) -> None:
        """Sweep until cancelled."""
        self._broken_at = time.monotonic()
        while True:
            planned = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            if not await self._hears():
                self._broken_at = time.monotonic()
                continue
            self._note_delay(time.monotonic() - planned)
            now = now_ms()
            for session_id in await self._leases.due(now) or []:
                try:
                    await self._look(session_id, now)
                except Unavailable as error:
                    logger.warning("sweep broken off", session_id=session_id, error=str(error))
                    break

    async def _hears(self) -> bool:
        """Whether this process hears NATS and Redis, with a whole index."""
        try:
            await self._service.connection().flush(timeout=_ROUND_TRIP_S)  # pyright: ignore[reportArgumentType]
        except (nats.errors.Error, TimeoutError, OSError, Unavailable):
            return False
        return await self._service.redis.is_ready(SERVICE)

    def _note_delay(self, seconds: float) -> None:
        """This process stood still, or NATS was slow to answer."""
        if seconds > _EVERY_S / 2:
            self._delays.append((time.monotonic(), seconds))

    def _steady_ms(self, lease_ms: int) -> float:
        """For how long nothing held beats up that would count for a lease of this length."""
        late = [at for at, seconds in self._delays if seconds * 1000 > lease_ms * _SHARE]
        connected = max(self._service.nats_steady_since, self._service.redis.steady_since)
        return (time.monotonic() - max(self._broken_at, connected, *late)) * 1000

    async def _look(self, session_id: str, due_at: int) -> None:
        loaded = await self._sessions.log.load(session_id)
        if loaded is None or not is_leased(loaded.state):
            # Whoever declared it gone may have died before all was told.
            await self._sessions.advance(session_id, now_ms(), again=True)
            await self._leases.drop(session_id, due_at)
            return
        lease = loaded.state.lease_ms
        silent = self._leases.silent_ms(session_id)
        if silent is not None and silent < lease:
            await self._leases.postpone(session_id, now_ms() + int(lease - silent))
            return
        if self._steady_ms(lease) < lease:
            return

        async def decide(state: SessionState | None) -> Decision:
            if state is None or (state != loaded.state and not _same_host(state, loaded.state)):
                return None
            return lease_passed(state, now_ms())

        outcome = await self._sessions.change(session_id, decide)
        if outcome.decision is not None:
            GONE.inc()
            logger.info("gone", session_id=session_id, lease_ms=lease)
        if outcome.loaded is None or not is_leased(outcome.loaded.state):
            await self._leases.drop(session_id, due_at)


def _same_host(now: SessionState, then: SessionState) -> bool:
    """Whether the lease that passed is the one of the present host."""
    attempts = [(s.run.run_id, s.run.attempt, s.run.status) if s.run else None for s in (now, then)]
    return now.holder == then.holder and now.live == then.live and attempts[0] == attempts[1]
