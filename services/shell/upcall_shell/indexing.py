"""Keeps a service's index in Redis whole: rebuilt at the start, after a flush, after a write that failed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from redis.asyncio import Redis

from .redis_gate import RedisCommand, RedisGate

logger = structlog.get_logger()
_LOOK_S = 0.5


class IndexKeeper:
    """One service's index. `rebuild` writes all of it from the log; it may run beside other instances'."""

    def __init__(self, gate: RedisGate, service: str, rebuild: Callable[[], Awaitable[None]]) -> None:
        self._gate = gate
        self._service = service
        self._rebuild = rebuild
        self._doubtful = False

    @property
    def doubtful(self) -> bool:
        """Whether a write of this process is known to be missing, and the others don't know it yet."""
        return self._doubtful

    async def write(self, use: Callable[[Redis], Awaitable[Any]]) -> None:
        """Write to the index. If Redis is away nothing is lost: the index is rebuilt when it is back."""
        if await self._gate.attempt(use) is None:
            self._doubtful = True

    async def note(self, *commands: RedisCommand) -> None:
        """Write a few commands to the index, as `write` does, together with what others write just now."""
        if await self._gate.run(*commands) is None:
            self._doubtful = True

    async def run(self) -> None:
        """Rebuild once, and then whenever the index is not whole."""
        if not await self._rebuild_once():
            self._doubtful = True
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._doubtful:
                self._doubtful = False  # before it is told: a write that fails meanwhile raises it anew
                if not await self._gate.doubt(self._service):
                    self._doubtful = True
            if not self._gate.away and not await self._gate.is_ready(self._service):
                await self._rebuild_once()

    async def _rebuild_once(self) -> bool:
        """Whether it was read at all; not while Redis is away."""
        failures = self._gate.failures
        token = await self._gate.begin_rebuild(self._service)
        if token is None:
            return False
        await self._rebuild()
        # A write that failed on the way has left a hole.
        whole = self._gate.failures == failures and await self._gate.finish_rebuild(self._service, token)
        logger.info("index rebuilt", service=self._service, whole=whole)
        return True
