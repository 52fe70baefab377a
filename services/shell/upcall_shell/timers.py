"""Deadlines, as scheduled messages of JetStream: they fire when whoever set them is dead."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from upcall_contracts import streams

from .jetstream import StreamClient

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timers:
    """Sets and clears deadlines. One that fires without its decision does no harm."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream

    async def set(self, timer: tuple[str, str], at_ms: int, body: dict[str, Any]) -> int:
        """Schedule a message for epoch ms `at_ms`, in place of an earlier one; return its sequence."""
        at = (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")
        schedule, target = timer
        headers = {"Nats-Schedule": "@at " + at.replace("+00:00", "Z"), "Nats-Schedule-Target": target}
        return await self._stream.put(schedule, json.dumps(body).encode(), headers)

    async def clear(self, timer: tuple[str, str]) -> None:
        """Take back what is scheduled; best effort, since firing late does no harm."""
        await self._stream.api(f"STREAM.PURGE.{streams.TIMERS}", {"filter": timer[0]})
