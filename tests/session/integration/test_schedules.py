"""Trees of three levels, lived through at random against real services; afterwards the log is read.

Silent and speaking children, background shells, foreground and background runs, follow-ups, self hosts and
runners, mixed and timed at random: every closed period has exactly one report, none comes before its work is
done, none is lost, and every ancestor is let go. What that means is judged in `trees`.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field

import pytest

from tests.blackbox.wire import OPERATOR, Json, Runner, Turn, Wire, eventually, uid
from tests.session.integration.trees import REPORTED, Child, Judge, Ledger

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
    children: list[Plan] = field(default_factory=list["Plan"])

    @classmethod
    def draw(cls, rng: random.Random, depth: int) -> Plan:
        """A plan with at least one child below it at each of `depth` levels."""
        first = [cls.draw(rng, depth - 1)] if depth else []
        others = [cls.draw(rng, rng.randrange(depth)) for _ in range(rng.randint(0, 1))] if depth else []
        children = first + others
        rng.shuffle(children)
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
        self.ledger = Ledger()
        self.tasks: list[asyncio.Task[None]] = []

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.03)

    def go(self, work: object) -> None:
        self.tasks.append(asyncio.create_task(work))  # type: ignore[arg-type]

    async def tree(self, plan: Plan) -> None:
        """A root with a run, its whole life, and the life of all below it."""
        top = await self.w.start(await self.w.open())
        self.ledger.root = top.session_id
        runners = asyncio.create_task(self.serve())
        try:
            await self.live(top, plan)
            await self.rest(top.session_id)
            while self.tasks:
                await self.tasks.pop(0)
            # What a foreground run left behind may still wake a session that has reported.
            await eventually(self.busy, lambda busy: not busy, within=60)
        finally:
            runners.cancel()

    async def sessions(self) -> list[Json]:
        root = self.ledger.root
        return await self.w.pages(root, "session.list", "sessions", session_id=root, scope="tree")

    async def busy(self) -> list[str]:
        """Sessions of the tree that are not at rest, seen twice in a row."""
        found: list[str] = []
        for _ in range(2):
            found += [s["session_id"] for s in await self.sessions() if s["run_id"] or s["period_id"]]
            await asyncio.sleep(0.1)
        return found

    async def live(self, turn: Turn, plan: Plan) -> None:
        """One run: children, some words, and what it leaves running."""
        for child in plan.children:
            await self.spawn(turn, child)
            await self.pause()
        await turn.append("Thinking.")
        await self.settle(turn, plan.outcome, plan.shells, wakes=plan.wakes)

    async def settle(
        self, turn: Turn, outcome: str = "completed", shells: int = 0, *, wakes: bool = False
    ) -> None:
        """Settle a run with an answer of its own; its shells end at some time, one perhaps too early."""
        jobs = [uid("W") for _ in range(shells)]
        early = jobs[:1] if self.rng.random() < 0.3 else []
        for job in early:
            await turn.finish(job)
        answer = f"The answer of {turn.run_id}." if outcome == "completed" else None
        self.ledger.settled(turn.run_id, outcome, answer, jobs)
        left = [{"work_id": job, "kind": "shell", "label": "job", "wakes": wakes} for job in jobs]
        await turn.settle(outcome, background=left, answer=answer)
        for job in jobs[len(early) :]:
            self.go(self.finish(turn, job))

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
        child = Child(made["session_id"], made["run_id"], plan.background)
        self.ledger.spawned(turn.session_id, turn.run_id, child, plan.notify)
        self.plans[child.session_id] = plan
        if plan.host == "self":
            self.go(self.host(Turn(self.w, child.session_id, child.session_id, child.run_id, ""), plan))
        if not plan.background:
            await self.result(turn, child, made["period_id"])
            if self.rng.random() < 0.4:
                await self.follow_up(turn, child, plan.host)

    async def result(self, turn: Turn, child: Child, period_id: str) -> None:
        """Wait for a run in the foreground, and mostly take what it reports."""
        waited = await self.w.query(
            turn.caller, "run.wait", run_id=child.run_id, timeout_ms=50_000, within=60
        )
        assert waited["state"] == "settled", waited
        report = await self.w.until_report(period_id, "delivered", "suppressed")
        if report["status"] == "delivered" and self.rng.random() < 0.8:
            await self.w.until_item(turn.session_id, period_id)
            handled = {"session_id": turn.session_id, "item_ids": [period_id]}
            assert (await self.w.reply_to(f"cmd.{turn.caller}.inbox.handle", handled))["ok"]

    async def follow_up(self, turn: Turn, child: Child, host: str) -> None:
        """Continue a child; one that something has woken meanwhile is busy."""
        background = self.rng.random() < 0.5
        body: Json = {"session_id": child.session_id, "run_id": turn.run_id, "background": background}
        made = await self.unless_busy(turn.caller, "session.continue", {**body, "task": "And then?"})
        if made is None:
            return
        again = Child(child.session_id, made["run_id"], background)
        self.ledger.continued(turn.run_id, again)
        if host == "self":
            self.go(self.once_more(Turn(self.w, again.session_id, again.session_id, again.run_id, "")))
        if not background:
            await self.result(turn, again, made["period_id"])

    async def once_more(self, turn: Turn) -> None:
        await self.pause()
        await self.settle(turn, shells=self.rng.randint(0, 1))
        await self.rest(turn.session_id)

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
                await self.take_up(session_id, ids)
            await asyncio.sleep(0.02)

    async def take_up(self, session_id: str, ids: list[str]) -> None:
        """A run for what is in the inbox, unless a follow-up has come first."""
        made = await self.unless_busy(session_id, "run.start", {"causes": ids})
        if made is not None:
            await self.pause()
            run_id = made["run"]["run_id"]
            await self.settle(Turn(self.w, session_id, session_id, run_id, ""))

    async def unless_busy(self, caller: str, command: str, body: Json) -> Json | None:
        """What a command comes to that begins a run; None where another one was faster."""
        reply = await self.w.reply_to(f"cmd.{caller}.{command}", body)
        if reply["ok"]:
            return dict(reply["result"])
        assert reply["error"]["code"] == "session_busy", reply["error"]
        return None

    async def serve(self) -> None:
        """The runners of the tree's agent: first runs as planned, wakes and follow-ups with a word."""
        seen: set[str] = set()
        await self.runner.provision()
        while True:
            claim = await self.runner.take(within=120, beats=False)
            turn = claim.turn
            if turn.session_id in seen:
                self.go(self.settle(turn, shells=self.rng.choice([0, 0, 0, 1])))
            else:
                seen.add(turn.session_id)
                self.go(self.live_as_planned(turn))

    async def live_as_planned(self, turn: Turn) -> None:
        """The runner may be faster than the reply to the spawn."""

        async def look() -> Plan | None:
            return self.plans.get(turn.session_id)

        plan = await eventually(look, bool)
        assert plan is not None
        await self.live(turn, plan)


async def is_at_rest(life: Life) -> None:
    """Every session is let go: idle, with nothing that it waits for."""
    for session in await life.sessions():
        await life.w.until_session(
            session["session_id"], period_id=None, run_id=None, status="idle", pending=[]
        )


async def has_arrived(life: Life, reports: list[Json]) -> None:
    """What was delivered is in the parent's inbox, read or not; what was suppressed is in none."""
    slots = {s: await life.w.inbox_slots(s) for s in {life.ledger.root, *life.ledger.parents.values()}}
    for report in reports:
        holders = [session for session, items in slots.items() if report["period_id"] in items]
        delivered = report["status"] == "delivered"
        assert holders == ([life.ledger.parents[report["session_id"]]] if delivered else [])


@pytest.mark.timeout(1800 if LONG else 240)
async def test_trees_come_to_rest(w: Wire) -> None:
    """Whatever the schedule: every closed period exactly one report, none early, none lost."""
    seed = int(os.environ.get("UPCALL_SEED", "0")) or random.randrange(1_000_000)
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        rng = random.Random(seed + number)
        async with limit:
            try:
                life = Life(w, rng)
                await asyncio.wait_for(life.tree(Plan.draw(rng, 2)), 100)
                await is_at_rest(life)

                async def events() -> list[Json]:
                    root = life.ledger.root
                    return await w.pages(OPERATOR, "log.introspect", "events", root_session_id=root)

                def all_told(found: list[Json]) -> bool:
                    reported = {r for e in found if e["type"] in REPORTED for r in e["data"]["runs"]}
                    return {e["run_id"] for e in found if e["type"] == "run_settled"} <= reported

                judge = Judge(life.ledger, await eventually(events, all_told))
                judge.judge()
                await has_arrived(life, [report for _, report in judge.reports])
            except BaseException as error:
                error.add_note(f"UPCALL_SEED={seed} schedule {number}")
                raise

    await asyncio.gather(*[one(number) for number in range(SCHEDULES)])
