"""What a delivery comes to: done, again later, or parked. One place for ack, nak and dead letters."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import nats.errors
import structlog
from nats.aio.msg import Msg

from upcall_contracts import refusals, streams

from . import tracing
from .dead_letters import DeadLetters
from .errors import Conflict, Unavailable
from .metrics import IN_HAND, REDELIVERIES

logger = structlog.get_logger()

MAX_FAILURES = 5
"""DESIGN.md section 7: a command that fails so often for a reason of ours is parked."""
RETRY_S = (1.0, 5.0, 30.0)
"""How long a message waits that has failed once, twice, three times and more."""
_KEEP_S = streams.ACK_WAIT_MS / 1000 / 3
_COUNTED = 10_000
_AWAY = (Unavailable, Conflict, nats.errors.Error, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Again:
    """Not now: deliver the message again after `delay_ms`. That counts as no failure."""

    delay_ms: int


Handle = Callable[[Msg], Awaitable[Again | None]]
Park = Callable[[Msg], Awaitable[None]]
Count = Callable[[str, int], Awaitable[int]]
"""Counts that the message of a sequence has failed at a consumer, and says how often at all instances."""


class Deliveries:
    """Works on the messages of one consumer side by side; a slow one is not delivered again meanwhile.

    A message that fails MAX_FAILURES times is parked. Only failures of ours count: JetStream counts
    deliveries, among them those that found NATS away or came too early.
    """

    def __init__(
        self,
        consumer: str,
        handle: Handle,
        dead: DeadLetters,
        on_parked: Park | None = None,
        retry_s: Sequence[float] = RETRY_S,
        count: Count | None = None,
    ) -> None:
        self.consumer = consumer
        self._handle = handle
        self._dead = dead
        self._on_parked = on_parked
        self._retry_s = retry_s
        self._count_all = count
        self._failures: OrderedDict[int, int] = OrderedDict()
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
                    with suppress(nats.errors.Error, OSError):
                        await message.in_progress()

    async def _work(self, message: Msg) -> None:
        delivered = message.metadata.num_delivered
        if delivered > 1:
            REDELIVERIES.labels(self.consumer).inc()
        try:
            with tracing.processing(self.consumer, message):
                again = await self._handle(message)
            if again is None:
                await self._ack(message)
            else:
                await message.nak(delay=max(again.delay_ms, 1) / 1000)
            self._failures.pop(message.metadata.sequence.stream, None)
        except _AWAY as error:
            logger.warning("not now", subject=message.subject, delivered=delivered, error=str(error))
            # It will be back soon, and then nothing should linger.
            await self._nak(message, min(delivered, 2))
        except Exception as error:
            logger.exception("failed", subject=message.subject, delivered=delivered)
            await self._failed(message, delivered, error)

    async def _ack(self, message: Msg) -> None:
        if not message.is_acked:
            await message.ack()

    async def _nak(self, message: Msg, times: int) -> None:
        with suppress(nats.errors.Error, OSError):  # not connected: it comes again when the ack wait is over
            if not message.is_acked:
                await message.nak(delay=self._retry_s[min(times, len(self._retry_s)) - 1])

    async def _failed(self, message: Msg, delivered: int, error: Exception) -> None:
        failures = await self._count(message)
        if failures < MAX_FAILURES:
            await self._nak(message, failures)
            return
        try:
            reason = f"{type(error).__name__}: {error}"
            await self._dead.record(message, refusals.internal(), reason, delivered)
            if self._on_parked is not None:
                await self._on_parked(message)
            await self._ack(message)
        except Exception:
            logger.exception("not parked", subject=message.subject)
            await self._nak(message, failures)

    async def _count(self, message: Msg) -> int:
        """How often this message has failed."""
        seq = message.metadata.sequence.stream
        here = self._failures[seq] = self._failures.get(seq, 0) + 1
        self._failures.move_to_end(seq)
        if len(self._failures) > _COUNTED:
            self._failures.popitem(last=False)
        return max(here, await self._count_all(self.consumer, seq) if self._count_all is not None else 0)
