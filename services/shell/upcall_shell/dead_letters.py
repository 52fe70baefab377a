"""Dead letters: what could not be handled, why, and how often it was tried."""

import base64
import time

import structlog
from nats.aio.msg import Msg

from upcall_contracts import subjects
from upcall_contracts.errors import Refusal
from upcall_contracts.records import DeadLetter

from .jetstream import StreamClient
from .metrics import DEAD_LETTERS

logger = structlog.get_logger()


class DeadLetters:
    """Writes to DEAD for one service."""

    def __init__(self, stream: StreamClient, service: str) -> None:
        self._stream = stream
        self._subject = subjects.dead(service)

    async def record(self, message: Msg, refusal: Refusal, reason: str, attempts: int) -> None:
        """Keep a message that can't be handled. Raises Unavailable if it could not be kept."""
        letter = DeadLetter(
            subject=message.subject,
            code=refusal.code.value,
            reason=reason,
            attempts=attempts,
            time=time.time_ns() // 1_000_000,
            headers=dict(message.headers or {}),
            body=base64.b64encode(message.data).decode(),
        )
        await self._stream.put(self._subject, letter.model_dump_json().encode())
        DEAD_LETTERS.labels(refusal.code.value).inc()
        logger.error("dead letter", subject=message.subject, code=refusal.code.value, reason=reason)
