"""A lease that has passed is dropped, and one that was granted meanwhile is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import nats.errors
import pytest

from tests.blackbox.deployment import Deployment
from tests.blackbox.wire import Json, Runner, Wire, uid
from tests.session.world import World
from upcall_contracts import keys
from upcall_session.leases import Leases
from upcall_shell.indexing import IndexKeeper
from upcall_shell.redis_gate import RedisGate


@pytest.fixture
async def gate(up: Deployment) -> AsyncIterator[RedisGate]:
    """A database beside the one of the deployment, whose services would drop leases too."""
    gate = RedisGate(up.redis_url.removesuffix("/0") + "/1")
    yield gate
    await gate.close()


@pytest.mark.parametrize(("expires", "stays"), [(1000, False), (1001, True)], ids=["passed", "granted anew"])
async def test_only_a_lease_that_has_passed_is_dropped(gate: RedisGate, expires: int, stays: bool) -> None:
    session_id = uid("S")
    await gate.redis.zadd(keys.leases(), {session_id: expires})
    nobody = cast(Any, None)
    await Leases(gate, nobody, nobody).drop(session_id, 1000)
    assert (await gate.redis.zscore(keys.leases(), session_id) is not None) is stays


@pytest.mark.parametrize(
    ("there", "stays"), [(None, False), (2_000_000_000_000, True)], ids=["left out", "granted before"]
)
async def test_lease_that_a_crash_left_out_is_granted(
    gate: RedisGate, there: int | None, stays: bool
) -> None:
    """The command comes again, and finds its entry in the log: nothing else would notice a host that dies."""
    world = World()
    world.open("P")
    _, ids = world.spawn("P", host="self", lease_ms=60_000)
    state = world.states[ids.session_id]
    if there is not None:
        await gate.redis.zadd(keys.leases(), {state.session_id: there})
    await Leases(gate, IndexKeeper(gate, "session", nothing), cast(Any, None)).follow_again(state)
    found = await gate.redis.zscore(keys.leases(), state.session_id)
    assert found is not None
    assert (found == there) is stays


async def nothing() -> None:
    """Rebuild no index."""


async def test_who_takes_a_run_over_at_once_and_dies_is_found_gone(w: Wire) -> None:
    """A runner that waits for the run has claimed it before all that its last holder's end brings is done."""

    async def lose_every_holder() -> Json:
        parent = await w.start(await w.open())
        runner = Runner(w, uid("agent"))
        spawn = {"agent": runner.agent, "task": "Build.", "run_id": parent.run_id, "lease_ms": 1000}
        made = await w.do(parent.caller, "session.spawn", **spawn)
        for _ in range(3):
            await runner.take(beats=False)
        return await w.until_settled(made["run_id"], within=20)

    runs = await asyncio.gather(*(lose_every_holder() for _ in range(20)))
    assert {(run["outcome"], run["attempt"]) for run in runs} == {("lost", 3)}


async def test_beats_of_who_lost_the_run_do_not_keep_the_next_holder_alive(w: Wire) -> None:
    """It was cut off, and does not know yet that another holds the run, who dies."""
    parent = await w.start(await w.open())
    runner = Runner(w, uid("agent"))
    spawn = {"agent": runner.agent, "task": "Build.", "run_id": parent.run_id, "lease_ms": 1000}
    made = await w.do(parent.caller, "session.spawn", **spawn)
    await runner.take(beats=False)
    second = await Runner(w, runner.agent).take(beats=False)
    assert second.run["attempt"] == 2
    async with w.beating(made["session_id"], {"run_id": made["run_id"], "attempt": 1}):
        third = await Runner(w, runner.agent).take()
    assert third.run["attempt"] == 3
    await third.turn.settle(answer="Built.")


async def test_a_beat_gets_no_reply_wherever_it_asks_for_one(w: Wire) -> None:
    """What a service may publish must not go where somebody else says."""
    parent = await w.start(await w.open())
    child = await parent.spawn(lease_ms=60_000)
    heard = await w.nc.subscribe("elsewhere.>")
    for _ in range(3):
        await w.nc.publish(f"heartbeat.{child.session_id}", b"", reply="elsewhere.beat")
    await w.nc.publish("heartbeat.nobody", b"", reply="elsewhere.nobody")
    with pytest.raises(nats.errors.TimeoutError):
        await heard.next_msg(2)
