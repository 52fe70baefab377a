"""Gauges that are read on a slow schedule, since nobody counts them on the way.

What can't be read is unknown (NaN, or no sample where there are labels), for a stale number is worse than
none; and nothing that happens here reaches the service.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
from prometheus_client import Gauge

from .errors import Unavailable
from .metrics import FIGURES_FAILED

logger = structlog.get_logger()
_WITHIN_S = 10.0

Read = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    read: Read
    gauges: Sequence[Gauge]

    def unknown(self) -> None:
        for gauge in self.gauges:
            gauge.clear()
            with suppress(ValueError):  # one that has labels has no value of its own
                gauge.set(math.nan)


def age_s(count: int, since: int | None) -> float:
    """The age in seconds of the oldest of `count`, which began at epoch ms `since`; 0 if there is none, and
    unknown while only leftovers of the index were found before it."""
    if since is None:
        return math.nan if count else 0.0
    return max(0.0, time.time() - since / 1000)


class Figures:
    """The gauges of one process that describe more than the process itself."""

    def __init__(self, every_ms: int) -> None:
        self._every_s = every_ms / 1000
        self._figures: list[_Figure] = []

    def add(self, name: str, read: Read, *gauges: Gauge) -> None:
        """Have `read` set these gauges again and again; unknown until it has, and whenever it raises."""
        figure = _Figure(name, read, gauges)
        figure.unknown()
        self._figures.append(figure)

    def add_oldest(
        self,
        name: str,
        look: Callable[[], Awaitable[tuple[int, int | None] | None]],
        count: Gauge,
        oldest: Gauge,
    ) -> None:
        """Have gauges of how many there are, and of the age of the oldest in seconds.

        `look` returns how many, and the epoch ms at which the oldest began (see age_s); None while the index
        is not whole or Redis is away.
        """

        async def read() -> None:
            found = await look()
            if found is None:
                raise Unavailable("the index is not whole")
            count.set(found[0])
            oldest.set(age_s(*found))

        self.add(name, read, count, oldest)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            for figure in self._figures:
                await self._read(figure)
            await asyncio.sleep(self._every_s)

    async def _read(self, figure: _Figure) -> None:
        try:
            async with asyncio.timeout(_WITHIN_S):
                await figure.read()
        except (Unavailable, TimeoutError) as error:
            logger.debug("not read", figure=figure.name, error=str(error))
        except Exception:
            logger.exception("not read", figure=figure.name)
        else:
            return
        FIGURES_FAILED.labels(figure.name).inc()
        figure.unknown()
