"""What the session service shows of runs that wait for a runner."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import REGISTRY

import upcall
from tests.in_process import serving, settings_for
from tests.question_broker.place import Place
from tests.question_broker.world import eventually
from upcall_session import app as session
from upcall_session.settings import SessionSettings


@pytest.fixture(scope="module")
def running_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place.running(tmp_path_factory.mktemp("session-figures"), brokers=0) as place:
        yield place


@pytest.fixture
async def up(running_place: Place) -> AsyncIterator[upcall.Upcall]:
    service = session.build(SessionSettings(**settings_for(running_place)))
    async with serving(service), upcall.connect(running_place.nats.url) as up:
        yield up


async def _waiting(agent: str) -> float | None:
    return REGISTRY.get_sample_value("upcall_dispatch_waiting", {"agent": agent})


async def test_what_is_dispatched_shows_until_a_runner_takes_it(up: upcall.Upcall) -> None:
    """By agent; and how long it was queued is counted when it starts."""
    started = REGISTRY.get_sample_value("upcall_run_queue_seconds_count") or 0
    planner = await up.open_session(agent="planner")
    child = await planner.spawn("nobody_serves_me", "Map the API.")
    await planner.spawn("nobody_serves_me", "And the tests.", host="self")  # waits for no runner
    await eventually(lambda: _waiting("nobody_serves_me"), lambda seen: seen == 1)

    runner = upcall.Runner(up)

    @runner.agent("nobody_serves_me")
    async def serve(run: upcall.Run) -> str:
        return "done"

    serving_runs = asyncio.create_task(runner.run(handle_signals=False))
    try:
        await eventually(lambda: _waiting("nobody_serves_me"), lambda seen: seen is None)
        await eventually(child.run, lambda run: run.settled_at is not None)
    finally:
        runner.stop()
        await serving_runs
    assert REGISTRY.get_sample_value("upcall_run_queue_seconds_count") == started + 1


async def test_what_ended_unclaimed_shows_no_more(up: upcall.Upcall) -> None:
    """Else the alert that runners are missing would go on for a run that no runner could take."""
    planner = await up.open_session(agent="planner")
    child = await planner.spawn("nobody_comes", "Map the API.")
    await eventually(lambda: _waiting("nobody_comes"), lambda seen: seen == 1)
    await child.cancel()
    await eventually(lambda: _waiting("nobody_comes"), lambda seen: seen is None)
