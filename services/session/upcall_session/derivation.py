"""Sees to it that topics and inboxes go on when the log's leader was lost.

They are streams that source the log. One whose source asked a leader that is no more may wait up to half a
minute for the answer before it asks the next one (docs/scaling.md); a new leader of its own asks at once.
"""

import asyncio
import time
from typing import Any, Final

import structlog

from upcall_contracts import keys, streams
from upcall_shell.errors import Unavailable
from upcall_shell.process import Service

from .decisions.derived import Seen, helped, is_replicated, look

logger = structlog.get_logger()

_EVERY_S: Final = 1.0
_ALONE_S: Final = 60.0  # a server that is alone has no other leader; it may become a cluster
_AGAIN_MS: Final = 10_000  # so long all instances together leave a stream that they have helped alone


class Derivation:
    """Has a stream whose source has stalled choose another leader."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._log = service.log
        self._derived = {name: service.stream(name) for name in (streams.TOPICS, streams.INBOX)}
        self._seen = Seen({})

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            pause = await self.once()
            await asyncio.sleep(pause)

    async def once(self) -> float:
        """Look once; in how many seconds to look again."""
        try:
            log = await self._log.info()
            if "error" not in log and not is_replicated(log):
                return _ALONE_S
            await self._look(log)
        except Unavailable as error:
            logger.debug("not looked at", error=str(error))
        return _EVERY_S

    async def _look(self, log: dict[str, Any]) -> None:
        found = await asyncio.gather(*(self._info(name) for name in self._derived))
        derived = {name: info for name, info in zip(self._derived, found, strict=True) if info is not None}
        self._seen = look(log, derived, self._seen, time.monotonic() * 1000)
        for name in self._seen.overdue:
            if await self.help(name):
                self._seen = helped(self._seen, name)

    async def _info(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._derived[name].info()
        except Unavailable:  # its own leader may be the lost one; the other streams need not wait
            return None

    async def help(self, name: str) -> bool:
        """Ask a stream for another leader, unless an instance has done so a moment ago: then False."""
        if not await self._is_our_turn(name):
            return False
        logger.warning("source stalled; another leader is chosen", stream=name)
        answer = await self._log.api(f"STREAM.LEADER.STEPDOWN.{name}", {})
        if "error" in answer:
            logger.warning("no other leader", stream=name, error=answer["error"])
        return True

    async def _is_our_turn(self, name: str) -> bool:
        """One instance does it, and no other for a while; each by itself while Redis is away."""
        taken = await self._service.redis.run(
            ("SET", keys.lock(f"derivation:{name}"), 1, "NX", "PX", _AGAIN_MS)
        )
        return taken is None or taken[0] is not None
