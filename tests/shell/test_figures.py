"""Gauges that are read on schedule: what fails is unknown, and takes nothing else with it."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from tests.question_broker.world import eventually
from upcall_shell.errors import Unavailable
from upcall_shell.figures import Figures, age_s


@asynccontextmanager
async def _running(figures: Figures) -> AsyncIterator[None]:
    task = asyncio.create_task(figures.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _failures(name: str) -> float:
    return REGISTRY.get_sample_value("upcall_figures_failed_total", {"figure": name}) or 0.0


def test_the_age_of_the_oldest() -> None:
    """None: 0. Not found yet among what the index has left over: unknown, and not 0."""
    assert age_s(0, None) == 0
    assert math.isnan(age_s(5, None))
    assert age_s(5, 0) > 1e9
    assert age_s(1, 10**15) == 0  # JetStream's clock is ahead of ours


async def test_what_fails_is_unknown_and_the_next_is_read_all_the_same() -> None:
    """With or without labels, whatever is raised; and when it can be read again it is there again."""
    registry = CollectorRegistry()
    plain, labelled = Gauge("p", "", registry=registry), Gauge("l", "", ["x"], registry=registry)
    reached = 0
    trouble: list[Exception | None] = [None]

    async def read() -> None:
        labelled.labels("a").set(1)
        if trouble[0] is not None:
            raise trouble[0]
        plain.set(1)

    async def read_next() -> None:
        nonlocal reached
        reached += 1

    async def look_next() -> int:
        return reached

    async def look() -> tuple[float | None, float | None]:
        return registry.get_sample_value("p"), registry.get_sample_value("l", {"x": "a"})

    figures = Figures(every_ms=1)
    figures.add("shaky", read, plain, labelled)
    figures.add("next", read_next)
    assert math.isnan(registry.get_sample_value("p") or 0)  # nothing was read yet
    async with _running(figures):
        for error in (Unavailable("away"), TimeoutError(), KeyError("a bug of ours")):
            trouble[0] = None
            await eventually(look, lambda seen: seen == (1, 1))
            trouble[0], failed = error, _failures("shaky")
            await eventually(look, lambda seen: math.isnan(seen[0] or 0) and seen[1] is None)
            assert _failures("shaky") > failed
            before = reached
            await eventually(look_next, lambda seen, before=before: seen > before)
