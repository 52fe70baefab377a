"""Heartbeats: as long as a host has a run or background work in a session, it beats for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from upcall_contracts.limits import DEFAULT_LEASE_MS

from .wire import Wire

BEATS_PER_LEASE: Final = 4
"""The contract wants three at least; the fourth is for one that comes late."""


@asynccontextmanager
async def beating(
    wire: Wire, session_id: str, lease_ms: int, run_id: str | None = None, attempt: int | None = None
) -> AsyncGenerator[None]:
    """Beat while the block runs. A lease of 0 is never over: nothing beats."""
    if not lease_ms:
        yield
        return
    body = {"run_id": run_id, "attempt": attempt} if run_id else {}
    task = asyncio.create_task(_beat(wire, session_id, lease_ms / 1000 / BEATS_PER_LEASE, body))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def lease_of_runner(lease_ms: int) -> int:
    """The lease of a runner-hosted session; a record that gives none means the services' default."""
    return lease_ms or DEFAULT_LEASE_MS


async def _beat(wire: Wire, session_id: str, every: float, body: dict[str, Any]) -> None:
    while True:
        await wire.beat(session_id, body)
        with suppress(TimeoutError):  # a reconnect is told at once
            await asyncio.wait_for(wire.reconnected(), every)
