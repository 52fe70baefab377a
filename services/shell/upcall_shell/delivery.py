"""What a delivery comes to: done, again later, or parked. One place for ack, nak and dead letters."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats.errors
import structlog
from nats.aio.msg import Msg

from upcall_contracts import refusals, streams

from .dead_letters import DeadLetters
from .errors import Conflict, Unavailable
from .metrics import IN_HAND, REDELIVERIES

logger = structlog.get_logger()

MAX_FAILURES = 5
"""DESIGN.md section 7: a command that fails so often for a reason of ours is parked."""
_RETRY_S = (1.0, 5.0, 30.0)
_KEEP_S = streams.ACK_WAIT_MS / 1000 / 3


@dataclass(frozen=True, slots=True)
class Again:
    """Not now: deliver the message again after `delay_ms`. That counts as no failure."""

    delay_ms: int


Handle = Callable[[Msg], Awaitable[Again | None]]
Park = Callable[[Msg], Awaitable[None]]


class Deliveries:
    """Works on the messages of one consumer side by side; a slow one is not delivered again meanwhile."""

    def __init__(
        self, consumer: str, handle: Handle, dead: DeadLetters, on_parked: Park | None = None
    ) -> None:
        self.consumer = consumer
        self._handle = handle
        self._dead = dead
        self._on_parked = on_parked
        self._in_hand: dict[asyncio.Task[None], tuple[Msg, float]] = {}
        self._stopping = False
        self._keeper: asyncio.Task[None] | None = None

    async def accept(self, message: Msg) -> None:
        """Take a message in hand; returns at once."""
        if self._stopping:
            await message.nak()
            return
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        task = asyncio.create_task(self._work(message))
        self._in_hand[task] = (message, time.monotonic())
        IN_HAND.labels(self.consumer).inc()
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_hand.pop(task, None)
        IN_HAND.labels(self.consumer).dec()

    async def drain(self, grace_s: float) -> None:
        """Take nothing more, and wait for what is in hand."""
        self._stopping = True
        if self._in_hand:
            await asyncio.wait(list(self._in_hand), timeout=grace_s)
        if self._keeper is not None:
            self._keeper.cancel()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            oldest = time.monotonic() - _KEEP_S
            for message, since in list(self._in_hand.values()):
                if since <= oldest:
                    try:
                        await message.in_progress()
                    except nats.errors.Error:
                        continue

    async def _work(self, message: Msg) -> None:
        delivered = message.metadata.num_delivered
        if delivered > 1:
            REDELIVERIES.labels(self.consumer).inc()
        try:
            again = await self._handle(message)
            if again is None:
                await self._ack(message)
            else:
                await message.nak(delay=max(again.delay_ms, 1) / 1000)
        except (Unavailable, Conflict) as error:
            logger.warning("not now", subject=message.subject, delivered=delivered, error=str(error))
            await self._nak(message, delivered)
        except Exception as error:
            logger.exception("failed", subject=message.subject, delivered=delivered)
            await self._failed(message, delivered, error)

    async def _ack(self, message: Msg) -> None:
        if not message.is_acked:
            await message.ack()

    async def _nak(self, message: Msg, delivered: int) -> None:
        try:
            if not message.is_acked:
                await message.nak(delay=_RETRY_S[min(delivered, len(_RETRY_S)) - 1])
        except nats.errors.Error:
            return  # not connected: it comes again when the ack wait is over

    async def _failed(self, message: Msg, delivered: int, error: Exception) -> None:
        if delivered < MAX_FAILURES:
            await self._nak(message, delivered)
            return
        try:
            await self._dead.record(message, refusals.internal(), repr(error), delivered)
            if self._on_parked is not None:
                await self._on_parked(message)
            await self._ack(message)
        except (Unavailable, nats.errors.Error):
            await self._nak(message, delivered)
