"""A run's block that is cancelled: the run is settled, and nobody waits long for services that are away."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import upcall
from upcall import run as runs
from upcall_contracts.records import Outcome

from .conftest import Reply, Server, Services


async def begun(up: upcall.Upcall) -> tuple[upcall.Run, asyncio.Task[None]]:
    """A run whose block is being carried out."""
    run = await up.session("p").start("think")
    inside = asyncio.Event()

    async def carry_out() -> None:
        async with run:
            inside.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(carry_out())
    await inside.wait()
    return run, task


def answering(settle: Callable[[dict[str, Any]], Reply]) -> Callable[[str, dict[str, Any]], Reply]:
    """Services that start the run r1 of p, and say this to its settle."""

    def script(name: str, body: dict[str, Any]) -> Reply:
        if name == "run.settle":
            return settle(body)
        return {"run": {"run_id": "r1", "session_id": "p"}, "session": {"session_id": "p"}}

    return script


async def test_it_settles_as_cancelled_and_the_cancel_goes_on(up: upcall.Upcall, services: Services) -> None:
    services.script = answering(lambda body: {"run": {"run_id": "r1", "outcome": body["outcome"]}})
    run, task = await begun(up)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert run.record.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("away", ["services", "nats"])
async def test_it_waits_so_long_and_no_longer(
    up: upcall.Upcall, services: Services, server: Server, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """Ten seconds, made shorter here; a block that ends by itself waits for minutes."""
    assert runs._SETTLE_WHEN_CANCELLED == 10
    assert runs._SETTLE_TIMEOUT >= 60
    monkeypatch.setattr(runs, "_SETTLE_WHEN_CANCELLED", 0.3)
    services.script = answering(lambda body: None)
    _, task = await begun(up)
    if away == "nats":
        await server.stop()
    task.cancel()

    with pytest.raises(upcall.NoReplyError, match=r"run\.settle got no reply within 0\.3 s") as caught:
        await asyncio.wait_for(task, 60)

    assert isinstance(caught.value.__context__, asyncio.CancelledError)
    assert caught.value.stored is (away == "services")
