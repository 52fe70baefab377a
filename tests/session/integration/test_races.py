"""What two callers do in the same instant, and what a process does that dies between two steps."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from functools import partial

import pytest

from tests.blackbox.deployment import Deployment
from tests.blackbox.wire import OPERATOR, Json, Runner, Turn, Wire, eventually, uid

LONG = os.environ.get("UPCALL_FAULTS") == "long"


async def contents(w: Wire, session_id: str) -> list[str]:
    rows: list[Json] = []
    first: int | None = 1
    while first:
        page = await w.query(OPERATOR, "session.history", session_id=session_id, **{"from": first})
        rows += page["messages"]
        first = page["next"]
    assert [row["index"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["content"] for row in rows]


@pytest.mark.timeout(240)
async def test_follow_up_in_the_instant_of_the_settle(w: Wire) -> None:
    """Two hundred times: a new run that is reported, or a refusal; none is swallowed."""
    parent = await w.start(await w.open())
    admitted = Counter[bool]()

    async def one(number: int) -> None:
        child = await parent.spawn(task=f"Part {number}.")
        body: Json = {"session_id": child.session_id, "task": "And then?", "run_id": parent.run_id}

        async def follow() -> Json:
            await asyncio.sleep(random.random() * 0.01)
            return await w.reply_to(f"cmd.{parent.caller}.session.continue", body)

        reply, _ = await asyncio.gather(follow(), child.settle(answer="First."))
        session = await w.session(child.session_id)
        admitted[reply["ok"]] += 1
        first = await w.until_report(child.period_id, "delivered")
        assert first["runs"][0] == child.run_id
        if not reply["ok"]:
            assert reply["error"]["code"] == "session_busy"
            assert session["runs"] == 1
            return
        run_id, period_id = reply["result"]["run_id"], reply["result"]["period_id"]
        assert (session["runs"], session["run_id"]) == (2, run_id)
        await Turn(w, child.caller, child.session_id, run_id, period_id).settle(answer="Second.")
        report = await w.until_report(period_id, "delivered")
        assert (report["runs"][-1], report["answer"]) == (run_id, "Second.")

    for number in range(0, 200, 10):
        await asyncio.gather(*[one(n) for n in range(number, number + 10)])
    assert sum(admitted.values()) == 200


async def test_pipelined_appends_end_up_in_order(w: Wire) -> None:
    """A hundred appends in flight, handled by two instances: the order is the one that they name."""
    turn = await w.start(await w.open(), task="0")
    numbers = list(range(1, 101))
    random.shuffle(numbers)

    async def append(n: int) -> None:
        body: Json = {"run_id": turn.run_id, "messages": [{"role": "assistant", "content": f"{n}"}]}
        await w.do(turn.caller, "run.append", **body, **{"from": n + 1})

    settling = asyncio.create_task(turn.settle(history_seq=101))
    await asyncio.gather(*[append(n) for n in numbers])
    assert (await settling)["history_to"] == 101
    assert await contents(w, turn.session_id) == [f"{n}" for n in range(101)]


async def is_all_carried_out(w: Wire, caller: str) -> None:
    """Nothing that a caller has sent waits any more, also nothing whose reply the caller gave up."""

    async def left() -> Json:
        return (await w.js.stream_info("COMMANDS", subjects_filter=f"cmd.{caller}.>")).state.subjects or {}

    await eventually(left, lambda found: not found, within=120)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_commands_over_kills_and_an_empty_redis_have_their_effect_once(
    up: Deployment, cw: Wire
) -> None:
    """Appends with ids, sent again and again while instances die and Redis is emptied: each is there once.

    The next blow falls when some more have been answered: however slow the machine is, the services get as
    far as to answer in between.
    """
    w, answers = cw, asyncio.Semaphore(0)
    turn = await w.start(await w.open(), task="0")
    count = 400 if LONG else 120

    async def append(n: int) -> None:
        body: Json = {"run_id": turn.run_id, "messages": [{"role": "assistant", "content": f"{n}"}]}
        await w.insist(turn.caller, "run.append", command_id=f"append-{n}", **body)
        answers.release()
        if n % 7 == 0:
            await w.insist(turn.caller, "run.append", command_id=f"append-{n}", **body)

    async def write() -> None:
        for n in range(0, count, 6):
            await asyncio.gather(*[append(each) for each in range(n, min(n + 6, count))])

    writing = asyncio.create_task(write())
    for blow in range(count // 10 - 1):
        for _ in range(10):
            await answers.acquire()
        strike = up.flush_redis if blow % 3 == 2 else partial(up.kill, "session")
        await asyncio.to_thread(strike)
    await writing
    await is_all_carried_out(w, turn.caller)
    found = Counter((await contents(w, turn.session_id))[1:])
    assert found == Counter(f"{n}" for n in range(count))
    # And once more, long after, when neither the state nor Redis can know them.
    await asyncio.to_thread(up.flush_redis)
    await asyncio.gather(*[append(n) for n in range(20)])
    assert (await w.session(turn.session_id))["history_seq"] == count + 1


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_spawns_and_reports_over_kills(up: Deployment, cw: Wire) -> None:
    """Children are spawned, claimed, settled and counted while every service dies: one of each."""
    w = cw
    parent = await w.start(await w.open())
    agent = uid("agent")
    runner = Runner(w, agent)
    await runner.provision()
    count = 60 if LONG else 20
    receipts: list[Json] = []

    async def spawn() -> None:
        for n in range(count):
            body: Json = {"agent": agent, "task": f"Part {n}.", "run_id": parent.run_id, "lease_ms": 0}
            receipts.append(await w.insist(parent.caller, "session.spawn", command_id=f"s{n}", **body))

    async def serve() -> None:
        for _ in range(count):
            claim = await runner_take(runner, w)
            await w.insist(runner.id, "run.settle", **claim, outcome="completed", answer="Done.")

    work = asyncio.gather(spawn(), serve())
    for part in ("session", "reporter", "session", "question_broker", "session"):
        await asyncio.sleep(0.4)
        await asyncio.to_thread(up.kill, part)
    await asyncio.wait_for(work, 200)
    for receipt in receipts:
        await w.until_report(receipt["period_id"], "delivered", within=60)
    assert len({r["session_id"] for r in receipts}) == count
    children = await w.pages(parent.caller, "session.list", "sessions")
    assert len(children) == count

    async def pending() -> list[Json]:
        return list((await w.session(parent.session_id))["pending"])

    await eventually(pending, lambda found: not found, within=30)
    items = await eventually(lambda: w.inbox(parent.session_id), lambda found: len(found) == count)
    await w.insist(parent.caller, "inbox.handle", item_ids=[i["item"]["item_id"] for i in items])
    await w.insist(parent.caller, "run.settle", run_id=parent.run_id, outcome="completed")
    await w.until_session(parent.session_id, period_id=None)


async def runner_take(runner: Runner, w: Wire) -> Json:
    """Take a dispatched run and claim it, over crashes; the fields by which a settle names it."""
    while True:
        run, message = await runner.dispatched(within=60)
        try:
            claimed = await w.insist(runner.id, "run.claim", run_id=run["run_id"], command_id=run["run_id"])
        except AssertionError as refused:
            if getattr(refused, "code", None) != "run_not_claimable":
                raise
            await message.ack()
            continue
        await message.ack()
        return {"run_id": run["run_id"], "attempt": claimed["run"]["attempt"]}


@pytest.mark.parametrize("verb", ["close", "cancel"])
async def test_spawn_amid_a_cascade_leaves_no_orphan(quick: Wire, verb: str) -> None:
    """Children that are being spawned while their parent ends are taken along, or never made."""
    w = quick
    top = await w.start(await w.open())

    async def one() -> None:
        parent = await top.spawn()
        body: Json = {"agent": "worker", "task": "x", "host": "self", "run_id": parent.run_id}
        spawns = [w.reply_to(f"cmd.{parent.caller}.session.spawn", body) for _ in range(4)]
        end = w.do(top.caller, f"session.{verb}", session_id=parent.session_id)
        replies = (await asyncio.gather(*spawns, end))[:-1]
        made = {r["result"]["session_id"] for r in replies if r["ok"]}
        codes = {r["error"]["code"] for r in replies if not r["ok"]}
        assert codes <= {"session_closed", "run_not_active"}, codes
        children = await w.pages(OPERATOR, "session.list", "sessions", session_id=parent.session_id)
        assert made <= {child["session_id"] for child in children}
        for child in children:
            if verb == "close":
                await w.until_session(child["session_id"], status="closed")
            else:
                await w.until_settled(child["run_id"] or await last_run(w, child["session_id"]))

    for _ in range(5):
        await asyncio.gather(*[one() for _ in range(6)])


async def last_run(w: Wire, session_id: str) -> str:
    events = await w.pages(OPERATOR, "log.introspect", "events", session_id=session_id)
    return str(events[0]["run_id"])


async def test_claims_and_cancels_at_once(quick: Wire) -> None:
    """A queued run that is cancelled in the moment of its claim is one or the other, and ends."""
    w = quick
    parent = await w.start(await w.open())
    runner = Runner(w, uid("agent"))
    await runner.provision()

    async def one() -> None:
        made = await w.do(parent.caller, "session.spawn", agent=runner.agent, task="x", run_id=parent.run_id)
        cancel = w.do(parent.caller, "session.cancel", session_id=made["session_id"])
        claim, cancelled = await asyncio.gather(runner.claim(made["run_id"]), cancel)
        assert cancelled["cancelled"] == [made["run_id"]]
        run = await w.until_settled(made["run_id"])
        assert run["outcome"] == "cancelled"
        assert (run["started_at"] is not None) is claim["ok"]

    await asyncio.gather(*[one() for _ in range(20)])
