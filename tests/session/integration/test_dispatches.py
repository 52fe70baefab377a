"""What is dispatched of a run that has ended in the queue goes with it, and nothing else does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.blackbox.deployment import Deployment
from tests.blackbox.wire import OPERATOR, Json, Runner, Turn, Wire, eventually, uid
from upcall_contracts import keys, subjects

pytestmark = pytest.mark.asyncio(loop_scope="function")


async def waiting(w: Wire, agent: str) -> int:
    """How many dispatches wait for runners of an agent."""
    subject = subjects.dispatch(agent)
    info = await w.js.stream_info("DISPATCH", subjects_filter=subject)
    return (info.state.subjects or {}).get(subject, 0)


async def until_waiting(w: Wire, agent: str, count: int, *, within: float = 20) -> None:
    await eventually(lambda: waiting(w, agent), lambda found: found == count, within=within)


async def spawn(w: Wire, parent: Turn, agent: str, **body: Any) -> Json:
    return await w.do(parent.caller, "session.spawn", agent=agent, task="x", run_id=parent.run_id, **body)


async def dispatch_again(w: Wire, run_id: str) -> None:
    """A second copy, as a service makes it that can't know of the first."""
    record = await w.run(run_id)
    await w.js.publish(subjects.dispatch(record["agent"]), json.dumps(record).encode(), stream="DISPATCH")


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_end_in_the_queue_takes_its_dispatch_along(w: Wire, end: str) -> None:
    """A second copy included; what others wait for stays."""
    parent, agent = await w.start(await w.open()), uid("agent")
    made = await spawn(w, parent, agent)
    await dispatch_again(w, made["run_id"])
    other = await spawn(w, parent, agent)
    assert await waiting(w, agent) == 3
    await w.do(parent.caller, f"session.{end}", session_id=made["session_id"])
    await until_waiting(w, agent, 1)
    assert (await Runner(w, agent).take()).turn.run_id == other["run_id"]
    await until_waiting(w, agent, 0)


async def test_run_that_nobody_claims_leaves_nothing_behind(quick: Wire) -> None:
    """Its time in the queue is over; the alert that no runner serves the agent is, too."""
    parent, agent = await quick.start(await quick.open()), uid("agent")
    made = await spawn(quick, parent, agent)
    await dispatch_again(quick, made["run_id"])
    assert await waiting(quick, agent) == 2
    await quick.until_settled(made["run_id"])
    await until_waiting(quick, agent, 0)


async def test_one_of_many(w: Wire) -> None:
    """In a queue too long to be read for one run its place is known by the time."""
    parent, agent = await w.start(await w.open()), uid("agent")
    made = [await spawn(w, parent, agent) for _ in range(120)]
    for ended in (made[119], made[60], made[0]):
        await w.do(parent.caller, "session.cancel", session_id=ended["session_id"])
    await until_waiting(w, agent, 117)
    ended_too = made[1:60] + made[61:119]
    await asyncio.gather(
        *(w.do(parent.caller, "session.cancel", session_id=each["session_id"]) for each in ended_too)
    )
    await until_waiting(w, agent, 0)


async def test_runner_that_takes_it_just_then_is_refused_and_goes_on(w: Wire) -> None:
    """It has the message in hand when that is removed; its ack does no harm, and the next run comes."""
    parent, agent = await w.start(await w.open()), uid("agent")
    made, runner = await spawn(w, parent, agent), Runner(w, agent)
    run, message = await runner.dispatched()
    await w.do(parent.caller, "session.cancel", session_id=made["session_id"])
    await until_waiting(w, agent, 0)
    await w.refused("run_not_claimable", runner.id, "run.claim", run_id=run["run_id"])
    await message.ack()
    then = await spawn(w, parent, agent)
    assert (await runner.take()).turn.run_id == then["run_id"]
    await until_waiting(w, agent, 0)


async def test_next_attempt_waits_until_it_ends(quick: Wire) -> None:
    """Its own dispatch stays as long as it may be claimed; then it goes, and so does the one before that no
    runner has acknowledged."""
    w = quick
    parent, agent = await w.start(await w.open()), uid("agent")
    made, runner = await spawn(w, parent, agent, lease_ms=1000), Runner(w, agent)
    await runner.dispatched()
    await w.do(runner.id, "run.claim", run_id=made["run_id"])
    again = await eventually(lambda: w.run(made["run_id"]), lambda run: run["attempt"] == 2)
    assert again["status"] == "queued"
    await until_waiting(w, agent, 2)
    run = await w.until_settled(made["run_id"])
    assert (run["outcome"], run["attempt"]) == ("failed", 2)
    await until_waiting(w, agent, 0)


async def test_what_a_crash_left_behind_goes_when_the_session_is_looked_at_again(
    standing: Deployment, w: Wire
) -> None:
    """As if whoever stored the end had died before the dispatch was withdrawn."""
    parent, agent = await w.start(await w.open()), uid("agent")
    made = await spawn(w, parent, agent)
    await w.do(parent.caller, "session.cancel", session_id=made["session_id"])
    await until_waiting(w, agent, 0)
    await dispatch_again(w, made["run_id"])
    async with Redis.from_url(standing.redis_url) as redis:
        await redis.zadd(keys.leases(), {made["session_id"]: 1})
    await until_waiting(w, agent, 0)


async def test_sweep_removes_what_outlived_its_run_and_nothing_else(quick: Wire) -> None:
    """Older than a run may be queued: of an ended run it goes; of one that a runner has, it stays."""
    w = quick
    parent, agent = await w.start(await w.open()), uid("agent")
    ended = await spawn(w, parent, agent)
    await (await Runner(w, agent).take()).turn.settle()
    held = await spawn(w, parent, agent)
    runner = Runner(w, agent)
    claim = await runner.take()
    await until_waiting(w, agent, 0)
    await dispatch_again(w, held["run_id"])
    await w.js.publish(subjects.dispatch(agent), b"no record", stream="DISPATCH")
    await dispatch_again(w, ended["run_id"])
    await until_waiting(w, agent, 2)
    kept = await w.js.get_last_msg("DISPATCH", subjects.dispatch(agent))
    assert kept.data == b"no record"
    assert (await w.run(held["run_id"]))["status"] == "running"
    await claim.turn.settle()
    await until_waiting(w, agent, 1)


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_ends_over_kills_leave_nothing_behind(up: Deployment, cw: Wire) -> None:
    """Queued runs are cancelled while the session service dies, again and again; long before the sweep."""
    w = cw
    parent, agent = await w.start(await w.open()), uid("agent")
    made = [await spawn(w, parent, agent) for _ in range(60)]

    async def cancel() -> None:
        for each in made:
            await w.insist(OPERATOR, "session.cancel", session_id=each["session_id"])

    work = asyncio.create_task(cancel())
    for left in (50, 40, 30, 20, 10):
        await eventually(lambda: waiting(w, agent), lambda found, left=left: found <= left, within=60)
        await asyncio.to_thread(up.kill, "session")
    await asyncio.wait_for(work, 200)
    await until_waiting(w, agent, 0, within=60)
