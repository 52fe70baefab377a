"""What the client makes of processes that are killed: every call ends right, once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

import upcall
from tests.blackbox.deployment import PARTS, Deployment
from upcall_contracts.records import RunStatus

from .agents import runner_of
from .test_live import next_item, until

pytestmark = pytest.mark.faults

LONG = os.environ.get("UPCALL_FAULTS") == "long"


class Far:
    """A runner in a process of its own."""

    def __init__(self, url: str, runner_id: str, agent: str) -> None:
        self._arguments = url, runner_id, agent
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.client.agents", *self._arguments),
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()


@pytest.fixture
async def parent(live: upcall.Upcall) -> upcall.Session:
    return await live.open_session(f"p-{uuid4().hex}", agent="planner")


@pytest.fixture
def agent(request: pytest.FixtureRequest) -> str:
    """An agent that only this test's runners serve; it asks one question, unless the test names another."""
    return f"far{uuid4().hex[:8]}-{getattr(request, 'param', 'asks')}"


@pytest.fixture
async def far(deployment: Deployment, agent: str) -> AsyncIterator[Far]:
    far = Far(deployment.nats_url, "far-runner", agent)
    await far.start()
    yield far
    await far.end()


async def until_attempt(child: upcall.Child, attempt: int) -> None:
    async with asyncio.timeout(20):
        while (await child.run()).attempt < attempt:  # noqa: ASYNC110 - somebody else's state
            await asyncio.sleep(0.05)


async def test_a_killed_runner_is_replaced_and_the_question_is_the_same(
    parent: upcall.Session, far: Far, agent: str, live: upcall.Upcall
) -> None:
    """The child's process dies while it waits; another runner takes the run over and gets the answer."""
    child = await parent.spawn(agent, "Keep v1?")
    question = await next_item(parent)
    await far.end()
    other = runner_of(live, agent)
    serving = asyncio.create_task(other.run(handle_signals=False))
    await until_attempt(child, 2)
    await until(child, RunStatus.RUNNING)
    assert [waiting.request_id for waiting in await parent.questions()] == [question.item_id]
    assert isinstance(question, upcall.Question)
    await question.answer(option="keep")

    assert (await child.result()).answer == "keep in attempt 2: keep"
    other.stop()
    await serving


async def test_an_answer_while_nobody_held_the_run_reaches_the_next_holder(
    parent: upcall.Session, far: Far, agent: str, live: upcall.Upcall
) -> None:
    child = await parent.spawn(agent, "Keep v1?")
    question = await next_item(parent)
    assert isinstance(question, upcall.Question)
    await far.end()
    await question.answer(option="drop")
    await far.start()  # the same runner id, in a new process

    assert (await child.result()).answer == "drop in attempt 2: drop"
    assert len(await parent.pages("question.list", "questions", {"status": "answered"})) == 1


@pytest.mark.parametrize("agent", ["interviews"], indirect=True)
async def test_questions_that_the_claim_has_no_room_for_are_not_asked_again(
    parent: upcall.Session, far: Far, agent: str
) -> None:
    """Answers of half a megabyte: the next holder's claim can't hold six of them, and it finds all."""
    child = await parent.spawn(agent, "What now?")
    async with parent.inbox() as inbox:
        for _ in range(6):
            question = await inbox.next(20)
            assert isinstance(question, upcall.Question)
            await question.answer("x" * 250_000, rationale="x" * 250_000)
        waiting = await inbox.next(20)
        assert isinstance(waiting, upcall.Question)
        await far.end()
        await far.start()
        await until_attempt(child, 2)
        await until(child, RunStatus.RUNNING)
        await waiting.answer("That.")

    assert (await child.result()).answer == ", ".join(["250000"] * 6 + ["5"])
    assert len(await parent.pages("question.list", "questions", {"status": "answered"})) == 7


async def test_a_runner_that_stops_lets_its_runs_go_and_their_questions_live(
    parent: upcall.Session, far: Far, agent: str
) -> None:
    child = await parent.spawn(agent, "Keep v1?")
    question = await next_item(parent)
    assert isinstance(question, upcall.Question)
    stopping = asyncio.create_task(far.end(signal.SIGTERM))
    await asyncio.wait_for(stopping, 15)
    await far.start()
    await until(child, RunStatus.RUNNING)
    await question.answer(option="keep")

    assert (await child.result()).answer == "keep in attempt 2: keep"


@pytest.mark.parametrize("part", PARTS if LONG else ("question_broker", "nats"))
async def test_a_part_is_killed_while_the_child_waits(
    deployment: Deployment, parent: upcall.Session, far: Far, agent: str, part: str
) -> None:
    """kill -9 of any part between the ask and the answer, with every call under way."""
    child = await parent.spawn(agent, "Keep v1?")
    waiting = asyncio.create_task(child.wait())
    question = await asyncio.wait_for(waiting, 20)
    assert isinstance(question, upcall.Question)
    async with parent.inbox() as inbox:
        assert await inbox.next(10) == question
        for pid in deployment.pids(part):
            os.kill(pid, signal.SIGKILL)
        await question.answer(option="keep")
        report = await inbox.next(40)

    assert isinstance(report, upcall.Report)
    assert report.answer.startswith("keep in attempt")
    assert report.record.period_id == child.period_id


@pytest.mark.parametrize("part", PARTS if LONG else ("session",))
async def test_a_part_is_killed_just_before_everything(
    deployment: Deployment, parent: upcall.Session, far: Far, agent: str, part: str
) -> None:
    """Spawn, ask, answer, settle and report with a part that has just died."""
    for pid in deployment.pids(part):
        os.kill(pid, signal.SIGKILL)
    child = await parent.spawn(agent, "Keep v1?")

    async def answer(question: upcall.Question) -> None:
        await question.answer(option="keep")

    result = await asyncio.wait_for(child.result(answer), 60)

    assert result.answer.startswith("keep in attempt")
    assert result.record.runs == [child.run_id]
