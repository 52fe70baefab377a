"""Containers are killed in the middle: readiness says so, and then all goes on."""

import asyncio
import time

import pytest

from tests.blackbox.wire import Wire, uid

from .stack import SERVICES, Stack

pytestmark = [
    pytest.mark.core,
    pytest.mark.asyncio(loop_scope="function"),
    # nats-py leaves the socket of a server that was killed to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def broken(stack: Stack) -> Stack:
    """The shared deployment, whole again when the next test begins."""
    stack.until_ready(*SERVICES)
    return stack


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_is_killed_while_a_question_waits(broken: Stack, w: Wire, service: str) -> None:
    """Its other instance goes on at once; started again, it is ready again."""
    parent, child = await w.family()
    question = await child.ask()
    await asyncio.to_thread(broken.kill, service)
    assert await asyncio.to_thread(broken.ready, service) == {}
    answered = await w.insist(
        parent.session_id, "question.answer", request_id=question["request_id"], answer="PostgreSQL"
    )
    assert answered["question"]["status"] == "answered"
    await w.insist(child.session_id, "run.settle", run_id=child.run_id, outcome="completed", answer="Done.")
    await w.until_item(parent.session_id, child.period_id)
    await asyncio.to_thread(broken.start, service)
    await asyncio.to_thread(broken.until_ready, service)
    assert await w.ends(child.run_id, question["request_id"]) == ["answered"]


@pytest.mark.parametrize("service", ["redis", "nats"])
async def test_a_server_is_killed_while_a_question_waits(broken: Stack, w: Wire, service: str) -> None:
    """Every service says that it can't serve, and what that lacks; afterwards the question is still there."""
    parent, child = await w.family()
    question = await child.ask()
    await asyncio.to_thread(broken.kill, service)
    for name in SERVICES:
        deadline = time.monotonic() + 15
        while (checks := await asyncio.to_thread(broken.ready, name)).get(service, True):
            assert time.monotonic() < deadline, checks
    command_id = uid()
    if service == "redis":
        # The log decides: without Redis it takes longer, and goes on.
        await w.insist(
            parent.session_id, "inbox.handle", item_ids=["no-such-item"], command_id=command_id, within=30
        )
    await asyncio.to_thread(broken.start, service)
    await asyncio.to_thread(broken.until_ready, *SERVICES)
    answered = await w.insist(
        parent.session_id, "question.answer", request_id=question["request_id"], answer="PostgreSQL"
    )
    assert answered["question"]["status"] == "answered"
    await w.insist(child.session_id, "run.settle", run_id=child.run_id, outcome="completed", answer="Done.")
    await w.until_item(parent.session_id, child.period_id)
    assert await w.ends(child.run_id, question["request_id"]) == ["answered"]
