"""`python -m bench`: the durable round trip beside the floor, on a deployment of its own.

A round trip: a child asks, its parent reads the question in its inbox and answers, the child has the answer
on its run's topic. The floor: two JetStream publishes with their acknowledgements and deliveries, on the
same server, with the same client, in turns with ours. Settings: `settings.py`; JSON=1 adds one JSON line.
"""

import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import nats
from nats.aio.client import Client

from .deployment import Deployment, deployment
from .floor import Floor
from .measure import Block, block, middle
from .settings import Settings, from_environment
from .stage import ANSWER, OPTIONS, WHY, Run, Stage, question

_ASK = {
    "run_id": "run-" + "0" * 26,
    "question": question(1000),
    "why_blocked": WHY,
    "options": OPTIONS,
    "recommended_option": OPTIONS[0],
    "timeout_ms": 300_000,
    "command_id": "ask-1000",
}
_ANSWER = {"request_id": "question-" + "0" * 26, "answer": ANSWER, "selected_option": ANSWER}


@dataclass(slots=True)
class Pair:
    """Floor and ours, measured in turns."""

    floor: list[Block] = field(default_factory=list[Block])
    ours: list[Block] = field(default_factory=list[Block])

    def add(self, turn: tuple[Block, Block]) -> None:
        """Note a turn."""
        self.floor.append(turn[0])
        self.ours.append(turn[1])

    @property
    def ratio(self) -> float:
        """How many times the floor a round trip takes, at the median."""
        return median(b.p50 for b in self.ours) / median(b.p50 for b in self.floor)


class Bench:
    """One deployment, and what is measured on it."""

    def __init__(self, settings: Settings, up: Deployment, child: Client, parent: Client) -> None:
        self.version = str(child.connected_server_version)
        self._settings = settings
        self._up = up
        self._stage = Stage(child, parent, with_replies=settings.with_replies)
        self._floor = Floor(child, parent, json.dumps(_ASK).encode(), json.dumps(_ANSWER).encode())
        self._fresh: list[Run] = []

    async def start(self) -> None:
        """Open the stage."""
        await self._floor.start()
        await self._stage.start()

    @asynccontextmanager
    async def turns(self, concurrency: int) -> AsyncIterator[Callable[[], Awaitable[tuple[Block, Block]]]]:
        """What measures a block of the floor and one of ours; a parent and runs of its own, warmed up."""
        parent_id = await self._stage.open_parent()
        self._fresh = []
        runs = [await self._a_run(parent_id) for _ in range(concurrency)]

        async def turn() -> tuple[Block, Block]:
            await self._stock(parent_id, runs, concurrency)
            return await self._turn(concurrency, runs)

        async with self._stage.answering(parent_id):
            await turn()
            yield turn

    async def _turn(self, concurrency: int, runs: list[Run]) -> tuple[Block, Block]:
        rounds = self._settings.rounds_at(concurrency)
        floor = await block(self._up, rounds, concurrency, self._floor.round)
        await asyncio.sleep(0.3)

        async def one(slot: int) -> None:
            if runs[slot].left == 0:
                runs[slot] = self._fresh.pop()
            await self._stage.round(runs[slot])

        ours = await block(self._up, rounds, concurrency, one)
        await asyncio.sleep(0.3)
        return floor, ours

    async def open_many(self, count: int) -> float:
        """Open so many questions, each of a run of its own; how many seconds that took."""
        begun = time.perf_counter()
        waiting = asyncio.Semaphore(self._settings.spawners)

        async def family(children: int) -> None:
            async with waiting:
                parent_id = await self._stage.open_parent()
                for _ in range(children):
                    await self._stage.ask_and_leave(await self._stage.spawn(parent_id, 1))

        size = self._settings.children_per_parent
        sizes = [min(size, count - at) for at in range(0, count, size)]
        await asyncio.gather(*(family(children) for children in sizes))
        return time.perf_counter() - begun

    async def _a_run(self, parent_id: str) -> Run:
        run = await self._stage.spawn(parent_id, self._settings.questions_per_run)
        await self._stage.watch(run)
        return run

    async def _stock(self, parent_id: str, runs: list[Run], concurrency: int) -> None:
        """Have enough fresh runs for the next block, whichever slot will need them."""
        left = sum(run.left for run in runs) - concurrency
        needed = self._settings.rounds_at(concurrency) - left
        wanted = concurrency + max(0, -(-needed // self._settings.questions_per_run))
        while len(self._fresh) < wanted:
            self._fresh.append(await self._a_run(parent_id))


@asynccontextmanager
async def _bench(settings: Settings) -> AsyncIterator[Bench]:
    """On a deployment of its own, in a directory that is removed again."""
    with tempfile.TemporaryDirectory(prefix="upcall-bench-", ignore_cleanup_errors=True) as directory:
        async with deployment(Path(directory)) as up:
            child = await nats.connect(up.nats_url, name="bench-child")
            parent = await nats.connect(up.nats_url, name="bench-parent")
            try:
                bench = Bench(settings, up, child, parent)
                await bench.start()
                yield bench
            finally:
                await child.close()
                await parent.close()


async def run(settings: Settings) -> dict[str, Any]:
    """Everything."""
    found: dict[str, Any] = {"concurrency": {}}
    async with _bench(settings) as bench:
        _show_head(bench)
        for concurrency in settings.concurrencies:
            pair = Pair()
            async with bench.turns(concurrency) as turn:
                for _ in range(settings.blocks):
                    pair.add(await turn())
            found["concurrency"][str(concurrency)] = _show(str(concurrency), pair)
        if settings.open_questions:
            found["open"] = await _measure_open(bench, settings)
    return found


async def _measure_open(none: Bench, settings: Settings) -> dict[str, Any]:
    """One round trip at a time, in turns on a deployment with none open and on one with many."""
    empty, full = Pair(), Pair()
    async with _bench(settings) as many:
        took = await many.open_many(settings.open_questions)
        print(f"\n{settings.open_questions} questions opened in {took:.0f} s", flush=True)
        async with none.turns(1) as turn_empty, many.turns(1) as turn_full:
            for _ in range(settings.blocks):
                empty.add(await turn_empty())
                full.add(await turn_full())
    shown = {"none": _show("none open", empty), "many": _show("many open", full)}
    ratio = shown["many"]["ours"]["p50_ms"] / shown["none"]["ours"]["p50_ms"]
    print(f"\none round trip with {settings.open_questions} others open: {ratio:.2f} times that with none")
    return {"questions": settings.open_questions, **shown, "ratio": round(ratio, 3)}


def _show_head(bench: Bench) -> None:
    cores = len(os.sched_getaffinity(0))
    sync = os.environ.get("UPCALL_SYNC_INTERVAL") or "always"
    load = os.getloadavg()[0]
    print(f"nats-server {bench.version}, sync_interval {sync}, Python {platform.python_version()}")
    print(f"{cores} cores, load average at the start {load:.1f}")
    print("ms; rate in round trips a second; medians of blocks\n")
    print(f"{'in flight':>9}  {'':6}{'p50':>8}{'p99':>8}{'rate':>8}   processor ms a round trip", flush=True)


def _show(title: str, pair: Pair) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, blocks in (("floor", pair.floor), ("ours", pair.ours)):
        m = middle(blocks)
        cpu = "  ".join(f"{part} {ms:.2f}" for part, ms in m.cpu.items() if ms >= 0.005)
        label = title if name == "floor" else ""
        print(f"{label:>9}  {name:6}{m.p50:8.2f}{m.p99:8.2f}{m.rate:8.0f}   {cpu}", flush=True)
        numbers[name] = {
            "p50_ms": round(m.p50, 3),
            "p99_ms": round(m.p99, 3),
            "rate": round(m.rate, 1),
            "cpu_ms": {part: round(ms, 3) for part, ms in m.cpu.items()},
        }
    print(f"{'':9}  ratio {pair.ratio:8.2f}", flush=True)
    return {**numbers, "ratio": round(pair.ratio, 3)}


def main() -> int:
    """Measure, and print."""
    found = asyncio.run(run(from_environment()))
    if os.environ.get("JSON", "") not in ("", "0"):
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
