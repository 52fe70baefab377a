"""Containers are killed in the middle: readiness says so, and then all goes on."""

import asyncio
import time

import pytest

from tests.blackbox.wire import WHY, Turn, Wire, uid

from .stack import SERVICES, Stack

pytestmark = [
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


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_ends_with_what_it_has_in_hand(broken: Stack, w: Wire, service: str) -> None:
    """A rolling restart under load: each command sent meanwhile is answered, once."""
    parent = await w.start(await w.open())
    children = await asyncio.gather(*(w.spawn(parent.session_id, run_id=parent.run_id) for _ in range(10)))
    asks = [asyncio.create_task(_asked_and_answered(w, parent.session_id, child)) for child in children]
    for number in (1, 2):
        await asyncio.to_thread(broken.restart, service, number)
    await asyncio.gather(*asks)
    for child in children:
        await w.until_item(parent.session_id, child.period_id)


async def _asked_and_answered(w: Wire, parent: str, child: Turn) -> None:
    session_id, run_id = child.session_id, child.run_id
    asked = await w.insist(
        session_id, "question.ask", run_id=run_id, question="Which database?", why_blocked=WHY
    )
    question = asked["question"]
    await w.insist(parent, "question.answer", request_id=question["request_id"], answer="PostgreSQL")
    await w.insist(session_id, "run.settle", run_id=run_id, outcome="completed", answer="Done.")
    assert await w.ends(run_id, question["request_id"]) == ["answered"]
