"""Trees of three levels, lived through at random against real services; afterwards the log is read.

Silent and speaking children, background shells, foreground and background runs, self hosts and runners,
mixed and timed at random: every run is in exactly one report, none comes before its work is done, and every
ancestor is let go.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field

import pytest

from tests.blackbox.wire import OPERATOR, Json, Runner, Turn, Wire, eventually, uid

LONG = os.environ.get("UPCALL_FAULTS") == "long"
SCHEDULES = 500 if LONG else 24
AT_ONCE = 8


@dataclass
class Plan:
    """What one session does in its first run."""

    host: str
    background: bool
    notify: bool | None
    shells: int
    wakes: bool
    outcome: str
    children: list[Plan] = field(default_factory=list)

    @classmethod
    def draw(cls, rng: random.Random, depth: int) -> Plan:
        children = [cls.draw(rng, depth - 1) for _ in range(rng.randint(0, 2))] if depth else []
        return cls(
            host=rng.choice(["self", "self", "runner"]),
            background=rng.random() < 0.7,
            notify=rng.choice([None, None, True, False]),
            shells=rng.randint(0, 2),
            wakes=rng.random() < 0.3,
            outcome=rng.choice(["completed", "completed", "completed", "failed", "halted"]),
            children=children,
        )


class Life:
    """All hosts of one tree."""

    def __init__(self, w: Wire, rng: random.Random) -> None:
        self.w = w
        self.rng = rng
        self.agent = uid("agent")
        self.runner = Runner(w, self.agent)
        self.plans: dict[str, Plan] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.03)

    def go(self, work: object) -> None:
        self.tasks.append(asyncio.create_task(work))  # type: ignore[arg-type]

    async def tree(self, plan: Plan) -> str:
        """A root with a run, its whole life, and the life of all below it."""
        top = await self.w.start(await self.w.open())
        runners = asyncio.create_task(self.serve())
        try:
            await self.live(top, plan)
            await self.rest(top.session_id)
            while self.tasks:
                await self.tasks.pop(0)
            # What a foreground run left behind may still wake a session that has reported.
            await eventually(lambda: self.busy(top.session_id), lambda busy: not busy, within=60)
        finally:
            runners.cancel()
        return top.session_id

    async def busy(self, root: str) -> list[str]:
        """Sessions of the tree that are not at rest, seen twice in a row."""
        found: list[str] = []
        for _ in range(2):
            tree = await self.w.pages(root, "session.list", "sessions", session_id=root, scope="tree")
            found += [s["session_id"] for s in tree if s["run_id"] or s["period_id"]]
            await asyncio.sleep(0.1)
        return found

    async def live(self, turn: Turn, plan: Plan) -> None:
        """One run: children, some words, and what it leaves running."""
        for child in plan.children:
            await self.spawn(turn, child)
            await self.pause()
        await turn.append("Thinking.")
        jobs = [
            {"work_id": uid("W"), "kind": "shell", "label": "job", "wakes": plan.wakes}
            for _ in range(plan.shells)
        ]
        early = jobs[:1] if self.rng.random() < 0.3 else []
        for job in early:
            await turn.finish(str(job["work_id"]))
        await turn.settle(plan.outcome, background=jobs)
        for job in jobs[len(early) :]:
            self.go(self.finish(turn, str(job["work_id"])))

    async def finish(self, turn: Turn, work_id: str) -> None:
        await self.pause()
        await turn.finish(work_id)

    async def spawn(self, turn: Turn, plan: Plan) -> None:
        body: Json = {
            "host": plan.host,
            "background": plan.background,
            "notify": plan.notify,
            "agent": self.agent,
        }
        made = await self.w.do(turn.caller, "session.spawn", task="Do it.", run_id=turn.run_id, **body)
        session_id, run_id = made["session_id"], made["run_id"]
        self.plans[session_id] = plan
        if plan.host == "self":
            self.go(self.host(Turn(self.w, session_id, session_id, run_id, made["period_id"]), plan))
        if plan.background:
            return
        waited = await self.w.query(turn.caller, "run.wait", run_id=run_id, timeout_ms=50_000, within=60)
        assert waited["state"] == "settled", waited
        report = await self.w.until_report(made["period_id"], "delivered", "suppressed")
        if report["status"] == "delivered" and self.rng.random() < 0.8:
            body = {} if turn.attempt is None else {"session_id": turn.session_id}
            await self.w.until_item(turn.session_id, made["period_id"])
            await self.w.do(turn.caller, "inbox.handle", item_ids=[made["period_id"]], **body)

    async def host(self, turn: Turn, plan: Plan) -> None:
        """A self host: its first run, and whatever comes into its inbox after that."""
        await self.live(turn, plan)
        await self.rest(turn.session_id)

    async def rest(self, session_id: str) -> None:
        """Read the inbox until the session has come to rest."""
        while (await self.w.session(session_id))["period_id"] is not None:
            items = (await self.w.query(session_id, "inbox.list"))["items"]
            ids = [item["item"]["item_id"] for item in items]
            if ids and self.rng.random() < 0.5:
                await self.w.do(session_id, "inbox.handle", item_ids=ids)
            elif ids:
                again = await self.w.start(session_id, causes=ids)
                await self.pause()
                await again.settle()
            await asyncio.sleep(0.02)

    async def serve(self) -> None:
        """The runners of the tree's agent: first runs as planned, wakes with a word."""
        seen: set[str] = set()
        await self.runner.provision()
        while True:
            claim = await self.runner.take(within=120, beats=False)
            turn = claim.turn
            if turn.session_id in seen:
                await turn.settle()
            else:
                seen.add(turn.session_id)
                self.go(
                    self.live(turn, self.plans.get(turn.session_id) or await self.plan_of(turn.session_id))
                )

    async def plan_of(self, session_id: str) -> Plan:
        """The runner may be faster than the reply to the spawn."""

        async def look() -> Plan | None:
            return self.plans.get(session_id)

        found = await eventually(look, bool)
        assert found is not None
        return found


def check(events: list[Json]) -> None:
    """What the log of a tree that has come to rest must look like."""
    settled = {e["run_id"] for e in events if e["type"] == "run_settled"}
    started = {e["run_id"] for e in events if e["type"] in ("run_started", "run_queued")}
    assert started == settled
    reports = [e for e in events if e["type"] in ("report_delivered", "report_suppressed")]
    reported = [run for e in reports for run in e["data"]["runs"]]
    assert sorted(reported) == sorted(settled), "every run is in exactly one report"
    ids = [e["data"]["period_id"] for e in reports]
    assert len(ids) == len(set(ids))
    position = {e["event_id"]: n for n, e in enumerate(events)}
    ended = {e["data"]["work_id"]: position[e["event_id"]] for e in events if e["type"] == "work_finished"}
    by_run = {e["run_id"]: e["data"] for e in events if e["type"] == "run_settled"}
    for event in reports:
        report, at = event["data"], position[event["event_id"]]
        foreground = not by_run[report["runs"][-1]]["background"]
        assert foreground or report["pending"] == [], "not before its work is done"
        for item in report["work"]:
            assert item["kind"] == "session" or ended[item["id"]] < at
    causes = [c for e in events if e["type"] == "run_settled" for c in e["data"]["causes"]]
    assert len(causes) == len(set(causes)), "an item is the cause of one run at most"


@pytest.mark.timeout(1800 if LONG else 240)
async def test_trees_come_to_rest(w: Wire) -> None:
    """Whatever the schedule: every closed period exactly one report, none early, none lost."""
    seed = int(os.environ.get("UPCALL_SEED", "0")) or random.randrange(1_000_000)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        rng = random.Random(seed + number)
        async with limit:
            try:
                root = await asyncio.wait_for(Life(w, rng).tree(Plan.draw(rng, 2)), 100)
                tree = await w.pages(root, "session.list", "sessions", session_id=root, scope="tree")
                for session in tree:
                    await w.until_session(session["session_id"], period_id=None, run_id=None)

                async def events() -> list[Json]:
                    return await w.pages(OPERATOR, "log.introspect", "events", root_session_id=root)

                def settled_down(found: list[Json]) -> bool:
                    reported = {r for e in found if "report_" in e["type"] for r in e["data"]["runs"]}
                    return {e["run_id"] for e in found if e["type"] == "run_settled"} <= reported

                check(await eventually(events, settled_down))
            except BaseException as error:
                error.add_note(f"UPCALL_SEED={seed} schedule {number}")
                raise

    await asyncio.gather(*[one(number) for number in range(SCHEDULES)])
