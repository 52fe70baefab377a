"""Three NATS servers, streams of three replicas: one server fails in the middle of work.

200 questions are open and 50 children are finishing when it happens. What was acknowledged is carried out,
once; new commands are carried out again, and heard of in inboxes, within 15 s. The figures are printed
(pytest -s) and stand in docs/scaling.md.
"""

import asyncio
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import nats.js.errors
import pytest
import pytest_asyncio

from tests.blackbox.wire import ENDS, WHY, Turn, Wire, eventually, select, uid

from .stack import SERVICES, Stack, a_directory, docker

pytestmark = [
    pytest.mark.asyncio(loop_scope="function"),
    pytest.mark.timeout(400),
    # nats-py leaves the socket of a server that was killed to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

OPEN, FINISHING = 200, 50
AT_ONCE = 25
IN_THE_MIDDLE = 20
PATIENCE = 120.0
BACK_WITHIN = 60.0 if os.environ.get("CI") else 15.0
"""Seconds. CI's machine is shared, and a vote that splits costs another round: that alone is no failure."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Stack]:
    """The shipped Compose files, with two instances of each service."""
    directory = a_directory()
    with Stack(directory, "compose.cluster.yaml", UPCALL_INSTANCES="2").running() as stack:
        yield stack
    shutil.rmtree(directory, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="function")
async def cw(cluster: Stack) -> AsyncIterator[Wire]:
    """A connection that may be anyone, to whichever server is there."""
    wire = Wire(await cluster.connect("everyone", servers=cluster.urls))
    yield wire
    await wire.close()


async def leader(stack: Stack) -> str:
    """The server that leads the log."""
    monitor = await stack.connect("monitor", servers=stack.urls)
    try:
        answer = await monitor.request("$JS.API.STREAM.INFO.LOG", b"{}", timeout=5)
        return str(json.loads(answer.data)["cluster"]["leader"])
    finally:
        await monitor.close()


def _kill(stack: Stack, server: str) -> Callable[[], object]:
    stack.kill(server)
    return lambda: stack.start(server)


def _pause(stack: Stack, server: str) -> Callable[[], object]:
    docker("pause", stack.container(server))
    return lambda: docker("unpause", stack.container(server))


def _partition(stack: Stack, server: str) -> Callable[[], object]:
    docker("network", "disconnect", stack.network, stack.container(server))
    alias = ["--alias", server, stack.network, stack.container(server)]
    return lambda: docker("network", "connect", *alias)


class Spread:
    """Work that is done side by side, so much of it at once."""

    def __init__(self, work: Sequence[Callable[[], Awaitable[object]]]) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._tasks = [asyncio.create_task(self._one(job)) for job in work]

    async def _one(self, job: Callable[[], Awaitable[object]]) -> object:
        async with self._places:
            return await job()

    async def until(self, count: int) -> None:
        """Return when so much of it is done."""
        for number, done in enumerate(asyncio.as_completed(self._tasks), 1):
            await done
            if number == count:
                return

    async def all(self) -> list[object]:
        """What came of it, when all is done."""
        return list(await asyncio.gather(*self._tasks))


async def first_of(job: Callable[[], Awaitable[None]]) -> None:
    """Return when the job is done once; one more is begun every half second."""
    tries: set[asyncio.Task[None]] = set()
    try:
        while not (done := [task for task in tries if task.done()]):
            tries.add(asyncio.create_task(_awaited(job)))
            await asyncio.wait(tries, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        done[0].result()
    finally:
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)


async def _awaited(job: Callable[[], Awaitable[None]]) -> None:
    await job()


async def command_is_carried_out(w: Wire) -> None:
    await w.insist(uid("S"), "session.open", agent="lead", within=PATIENCE)


async def question_reaches_the_parent(w: Wire) -> None:
    """The main path: what a child asks stands in its parent's inbox."""
    parent = uid("S")
    await w.insist(parent, "session.open", agent="lead", within=PATIENCE)
    child = await w.insist(
        parent, "session.spawn", agent="worker", task="Build.", host="self", within=PATIENCE
    )
    asking = {"run_id": child["run_id"], "question": "Which database?", "why_blocked": WHY}
    asked = await w.insist(child["session_id"], "question.ask", **asking, within=PATIENCE)
    await w.until_item(parent, asked["question"]["request_id"], within=PATIENCE)


@pytest.mark.parametrize(
    "fail",
    [
        pytest.param(_kill, id="killed", marks=pytest.mark.core),
        pytest.param(_pause, id="paused"),
        pytest.param(_partition, id="partitioned"),
    ],
)
async def test_the_leader_of_the_log_fails_in_the_middle(
    cluster: Stack, cw: Wire, fail: Callable[[Stack, str], Callable[[], object]]
) -> None:
    parent = await cw.start(await cw.open())

    async def child() -> Turn:
        return await cw.spawn(parent.session_id, run_id=parent.run_id)

    made = await Spread([child] * (OPEN + FINISHING)).all()
    children = [turn for turn in made if isinstance(turn, Turn)]
    asking, finishing = children[:OPEN], children[OPEN:]
    asked = {turn.run_id: uid("q") for turn in asking}

    async def ask(turn: Turn) -> object:
        body: dict[str, Any] = {"question": "Which database?", "why_blocked": WHY}
        return await cw.do(
            turn.session_id, "question.ask", run_id=turn.run_id, command_id=asked[turn.run_id], **body
        )

    questions = await Spread([partial(ask, turn) for turn in asking]).all()
    ids = [q["question"]["request_id"] for q in questions if isinstance(q, dict)]

    async def settle(turn: Turn) -> object:
        body = {"run_id": turn.run_id, "outcome": "completed", "answer": "Done."}
        return await cw.insist(turn.session_id, "run.settle", within=PATIENCE, **body)

    async def answer(request_id: str) -> object:
        body = {"request_id": request_id, "answer": "PostgreSQL"}
        return await cw.insist(parent.session_id, "question.answer", within=PATIENCE, **body)

    server = await leader(cluster)
    going_on = Spread(
        [*(partial(settle, turn) for turn in finishing), *(partial(answer, id_) for id_ in ids)]
    )
    await going_on.until(IN_THE_MIDDLE)
    failed_at = time.monotonic()
    repair = await asyncio.to_thread(fail, cluster, server)
    try:
        back = asyncio.create_task(first_of(partial(command_is_carried_out, cw)))
        heard = asyncio.create_task(first_of(partial(question_reaches_the_parent, cw)))
        await back
        back_after = time.monotonic() - failed_at
        await heard
        heard_after = time.monotonic() - failed_at
        await going_on.all()
        done_after = time.monotonic() - failed_at
    finally:
        await asyncio.to_thread(repair)
    await asyncio.to_thread(cluster.until_ready, *SERVICES)
    print(
        f"\nleader {server}: a new command is carried out after {back_after:.1f} s, a new question is in its "
        f"parent's inbox after {heard_after:.1f} s, all is done after {done_after:.1f} s"
    )

    for turn in finishing:
        await cw.until_report(turn.period_id, "delivered", within=30)

    async def told() -> tuple[Counter[str], Counter[str]]:
        try:
            events = await cw.history(parent.run_id)
        except nats.js.errors.ServiceUnavailableError:  # the server that is back elects with the others
            return Counter(), Counter()
        ends = (seen.id for seen in select(events, "question") if seen.event in ENDS)
        return Counter(ends), Counter(seen.id for seen in select(events, "report", None, "delivered"))

    once_each = Counter(ids), Counter(turn.period_id for turn in finishing)
    # Topics are derived, and a reader may be given a replica that lags: so wait until all is told.
    wanted = once_each[0].total(), once_each[1].total()
    seen = await eventually(
        told,
        lambda seen: all(got.total() >= want for got, want in zip(seen, wanted, strict=True)),
        within=PATIENCE,
    )
    assert seen == once_each
    assert back_after < BACK_WITHIN
    assert heard_after < BACK_WITHIN
