"""Dead letters: what could not be handled, why, and how often it was tried."""

import base64
import time

import structlog
from nats.aio.msg import Msg

from upcall_contracts import limits, subjects
from upcall_contracts.errors import Refusal
from upcall_contracts.records import DeadLetter

from .jetstream import StreamClient
from .metrics import DEAD_LETTERS

logger = structlog.get_logger()
_HEADERS_KEPT = 16 * 1024
_BESIDE_BYTES = (
    128 * 1024
)  # headers, of which JSON may make six times the bytes, and all else that is no body
_BODY_KEPT = (limits.PAYLOAD_MAX_BYTES - _BESIDE_BYTES) // 4 * 3  # in base64 it is a third larger


class DeadLetters:
    """Writes to DEAD for one service."""

    def __init__(self, stream: StreamClient, service: str) -> None:
        self._stream = stream
        self._subject = subjects.dead(service)

    async def record(self, message: Msg, refusal: Refusal, reason: str, attempts: int) -> None:
        """Keep a message that can't be handled. Raises Unavailable if it could not be kept."""
        body, headers = message.data, dict(message.headers or {})
        if len(body) > _BODY_KEPT:  # in base64 it might not fit into a message any more
            reason = f"{reason} (Kept are the first {_BODY_KEPT} bytes of {len(body)}.)"
            body = body[:_BODY_KEPT]
        if sum(len(name) + len(value) for name, value in headers.items()) > _HEADERS_KEPT:
            reason, headers = f"{reason} (The headers were too large to keep.)", {}
        letter = DeadLetter(
            subject=message.subject,
            code=refusal.code.value,
            reason=reason,
            attempts=attempts,
            time=time.time_ns() // 1_000_000,
            headers=headers,
            body=base64.b64encode(body).decode(),
        )
        await self._stream.put(self._subject, letter.model_dump_json().encode())
        DEAD_LETTERS.labels(refusal.code.value).inc()
        logger.error("dead letter", subject=message.subject, code=refusal.code.value, reason=reason)
