"""Blocks of round trips, and what they come to."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median

from .deployment import Deployment


@dataclass(frozen=True, slots=True)
class Block:
    """What one block came to; times in ms, rate in round trips a second."""

    p50: float
    p99: float
    rate: float
    cpu: dict[str, float]
    """ms of processor time a round trip, by process."""


Round = Callable[[int], Awaitable[None]]


async def block(deployment: Deployment, rounds: int, concurrency: int, one: Round) -> Block:
    """Do so many round trips, so many at a time; `one` gets the number of the slot that it runs in."""
    times: list[float] = []
    left = rounds

    async def slot(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            await one(number)
            times.append((time.perf_counter() - begun) * 1000)

    before, begun = deployment.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(slot(number) for number in range(concurrency)))
    took, after = time.perf_counter() - begun, deployment.cpu_seconds()
    times.sort()
    cpu = {part: (after[part] - before[part]) * 1000 / rounds for part in after}
    return Block(at(times, 0.50), at(times, 0.99), rounds / took, cpu)


def at(times: list[float], share: float) -> float:
    """The time that this share of the sorted times does not exceed."""
    return times[min(len(times) - 1, int(share * len(times)))]


def middle(blocks: list[Block]) -> Block:
    """The median of each number."""
    return Block(
        median(b.p50 for b in blocks),
        median(b.p99 for b in blocks),
        median(b.rate for b in blocks),
        {part: sum(b.cpu[part] for b in blocks) / len(blocks) for part in blocks[0].cpu},
    )
