"""Sees to it that topics and inboxes go on when the log's leader was lost.

They are streams that source the log. One whose source asked a leader that is no more may wait up to half a
minute for the answer before it asks the next one (docs/scaling.md); a new leader of its own asks at once.
"""

import asyncio
import time
from typing import Final

import structlog

from upcall_contracts import keys, streams
from upcall_shell.errors import Unavailable
from upcall_shell.jetstream import StreamClient
from upcall_shell.process import Service

from .decisions.derived import STALLED_MS, has_stalled, is_replicated

logger = structlog.get_logger()

_EVERY_S: Final = 1.0
_ALONE_S: Final = 60.0  # a server that is alone has no other leader; it may become a cluster
_AGAIN_MS: Final = 10_000  # so long all instances together leave a stream that they have helped alone


class Derivation:
    """Has a stream whose source has stalled choose another leader."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._log = service.log
        self._derived = [service.stream(name) for name in (streams.TOPICS, streams.INBOX)]
        self._stalled_since: dict[str, float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            replicated = True
            try:
                log = await self._log.info()
                replicated = "error" in log or is_replicated(log)
                if replicated and log.get("cluster", {}).get("leader"):
                    for stream in self._derived:
                        await self._look(stream)
            except Unavailable as error:
                logger.debug("not looked at", error=str(error))
            await asyncio.sleep(_EVERY_S if replicated else _ALONE_S)

    async def _look(self, stream: StreamClient) -> None:
        info = await stream.info()
        if "error" in info or not has_stalled(info):
            self._stalled_since.pop(stream.stream, None)
            return
        since = self._stalled_since.setdefault(stream.stream, time.monotonic())
        # Who was made leader a moment ago has not heard of the log yet.
        if (time.monotonic() - since) * 1000 < STALLED_MS or not await self._is_our_turn(stream.stream):
            return
        logger.warning("source stalled; another leader is chosen", stream=stream.stream)
        self._stalled_since.pop(stream.stream)
        await stream.api(f"STREAM.LEADER.STEPDOWN.{stream.stream}", {})

    async def _is_our_turn(self, name: str) -> bool:
        """One instance does it, and no other for a while; each by itself while Redis is away."""
        taken = await self._service.redis.run(
            ("SET", keys.lock(f"derivation:{name}"), 1, "NX", "PX", _AGAIN_MS)
        )
        return taken is None or taken[0] is not None
