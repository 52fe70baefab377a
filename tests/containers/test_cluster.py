"""Three NATS servers, streams of three replicas: one server fails in the middle of work.

200 questions are open and 50 children are finishing when it happens. What was acknowledged is carried out,
once; and new commands are carried out again within 15 s. The figures are printed (pytest -s) and stand in
docs/scaling.md.
"""

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from tests.blackbox.wire import ENDS, WHY, Turn, Wire, select, uid

from .stack import SERVICES, Stack, a_directory, docker

pytestmark = [
    pytest.mark.asyncio(loop_scope="function"),
    pytest.mark.timeout(400),
    # nats-py leaves the socket of a server that was killed to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

OPEN, FINISHING = 200, 50
BACK_WITHIN = 15.0
AT_ONCE = 25


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


async def _spread(work: Sequence[Callable[[], Awaitable[object]]]) -> list[object]:
    """All of it, so many at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(job: Callable[[], Awaitable[object]]) -> object:
        async with places:
            return await job()

    return list(await asyncio.gather(*map(one, work)))


@pytest.mark.parametrize("fail", [_kill, _pause, _partition], ids=["killed", "paused", "partitioned"])
async def test_the_leader_of_the_log_fails_in_the_middle(
    cluster: Stack, cw: Wire, fail: Callable[[Stack, str], Callable[[], object]]
) -> None:
    parent = await cw.start(await cw.open())

    async def child() -> Turn:
        return await cw.spawn(parent.session_id, run_id=parent.run_id)

    made = await _spread([child] * (OPEN + FINISHING))
    children = [turn for turn in made if isinstance(turn, Turn)]
    asking, finishing = children[:OPEN], children[OPEN:]
    asked = {turn.run_id: uid("q") for turn in asking}

    async def ask(turn: Turn) -> object:
        body: dict[str, Any] = {"question": "Which database?", "why_blocked": WHY}
        return await cw.do(
            turn.session_id, "question.ask", run_id=turn.run_id, command_id=asked[turn.run_id], **body
        )

    questions = await _spread([partial(ask, turn) for turn in asking])
    ids = [q["question"]["request_id"] for q in questions if isinstance(q, dict)]

    async def settle(turn: Turn) -> object:
        body = {"run_id": turn.run_id, "outcome": "completed", "answer": "Done."}
        return await cw.insist(turn.session_id, "run.settle", within=90, **body)

    async def answer(request_id: str) -> object:
        body = {"request_id": request_id, "answer": "PostgreSQL"}
        return await cw.insist(parent.session_id, "question.answer", within=90, **body)

    server = await leader(cluster)
    work = [*(partial(settle, turn) for turn in finishing), *(partial(answer, id_) for id_ in ids)]
    going_on = asyncio.create_task(_spread(work))
    await asyncio.sleep(0.3)
    failed_at = time.monotonic()
    repair = await asyncio.to_thread(fail, cluster, server)
    try:
        await cw.insist(uid("S"), "session.open", agent="lead", within=90)
        back_after = time.monotonic() - failed_at
        await going_on
        done_after = time.monotonic() - failed_at
    finally:
        await asyncio.to_thread(repair)
    await asyncio.to_thread(cluster.until_ready, *SERVICES)
    print(f"\nleader {server}: served again after {back_after:.1f} s, all done after {done_after:.1f} s")

    for turn in finishing:
        await cw.until_report(turn.period_id, "delivered", within=30)
    events = await cw.history(parent.run_id)
    ends = Counter(seen.id for seen in select(events, "question") if seen.event in ENDS)
    assert ends == Counter(ids)
    reports = Counter(seen.id for seen in select(events, "report", None, "delivered"))
    assert reports == Counter(turn.period_id for turn in finishing)
    assert back_after < BACK_WITHIN
