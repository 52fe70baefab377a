"""kill -9 at any point: every acknowledged command has its effect once, and its reply comes in the end."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.question_broker.place import Place
from tests.question_broker.world import Json, Session, World, now
from upcall_contracts import times
from upcall_contracts.records import Outcome
from upcall_question_broker.app import build
from upcall_question_broker.index import QuestionIndex
from upcall_question_broker.settings import BrokerSettings
from upcall_shell.jetstream import StreamClient
from upcall_shell.process import Service
from upcall_shell.timers import Timers

pytestmark = [pytest.mark.xdist_group("question_broker"), pytest.mark.faults]

LONG = os.environ.get("UPCALL_FAULTS") == "long"


# A broker that dies at random moments


@pytest.mark.slow
@pytest.mark.timeout(600 if LONG else 120)
async def test_brokers_are_killed_while_questions_flow(w: World, place: Place) -> None:
    """Asks, answers and cancels go on while one broker after the other dies: each has its effect once."""
    parents = [await w.top() for _ in range(4)]
    done = asyncio.Event()
    flows = [asyncio.create_task(_flow(w, parents[n % 4], done)) for n in range(16)]
    for kill in range(20 if LONG else 2):
        await asyncio.sleep(random.uniform(0.2, 0.6))
        victim = place.brokers[kill % 2]
        (victim.stop if kill % 4 == 3 else victim.kill)()  # now and then it may finish what it has in hand
        await place.again(victim)
    done.set()
    assert sum(await asyncio.gather(*flows)) >= 16


async def _flow(w: World, parent: Session, done: asyncio.Event) -> int:
    """One child after another: it asks, its parent answers, each command sent twice; how many there were."""
    rounds = 0
    while not done.is_set():
        child = await w.child(parent)
        ask = {"run_id": child.run_id, "question": "Which database?", "why_blocked": "w", "command_id": "ask"}
        asked = [await w.send(child.id, "question.ask", **ask) for _ in range(2)]
        replies = [await asyncio.wait_for(each, 60) for each in asked]
        [request_id] = {reply["result"]["question"]["request_id"] for reply in replies}
        answer = {"request_id": request_id, "answer": "SQLite.", "command_id": f"answer-{request_id}"}
        answered = [await w.send(parent.id, "question.answer", **answer) for _ in range(2)]
        for each in answered:
            reply = await asyncio.wait_for(each, 60)
            assert reply["result"]["question"]["status"] == "answered"
        assert await w.in_log(child.run_id) == [f"{request_id}.requested", f"{request_id}.answered"]
        await child.settles(Outcome.COMPLETED)
        rounds += 1
    return rounds


# Everything dies across a deadline


async def test_everything_is_down_across_a_deadline(w: World, place: Place) -> None:
    """An answer stored in time wins though it is handled long after; a later one never does."""
    parent = await w.top()
    children = [await w.child(parent) for _ in range(4)]
    asked = [await child.ask(timeout_ms=1_500) for child in children]
    in_time, late, none, settled = [q["request_id"] for q in asked]
    for part in place.brokers:
        part.kill()
    replies = [await w.send(parent.id, "question.answer", request_id=in_time, answer="In time.")]
    await children[3].settles()
    place.redis.kill()
    expires_at = max(times.from_wire(q["expires_at"]) for q in asked)
    await asyncio.sleep(max(0, expires_at - now()) / 1000)
    replies.append(await w.send(parent.id, "question.answer", request_id=late, answer="Too late."))
    replies.append(await w.send(parent.id, "question.answer", request_id=settled, answer="Too late."))
    place.nats.kill()
    await place.again(*place.parts)
    first, second, third = [await asyncio.wait_for(each, 60) for each in replies]
    assert first["result"]["question"]["status"] == "answered"
    assert [reply["error"]["code"] for reply in (second, third)] == ["already_resolved"] * 2
    ends = [await w.until_ended(request_id) for request_id in (in_time, late, none, settled)]
    assert [end["status"] for end in ends[:3]] == ["answered", "timed_out", "timed_out"]
    assert ends[3]["status"] in {"timed_out", "cancelled"}
    for child, question in zip(children[:3], asked[:3], strict=True):
        assert len(await w.ends(child.run_id, question["request_id"])) == 1
    assert await parent.listed() == []


# A broker that dies between two steps, at each of them


STEPS: list[tuple[type, str]] = [
    (Timers, "set"),  # the deadline
    (StreamClient, "append"),  # the decision
    (QuestionIndex, "note"),  # the index
    (StreamClient, "last"),  # what is read, before and after
    (Msg, "ack"),
    (Service, "reply"),
]


class Dying:
    """Ends a task at a call, as if the process had died there: no more happens, nothing is acknowledged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._armed: dict[str, tuple[str, bool, int]] = {}
        for owner, name in STEPS:
            monkeypatch.setattr(owner, name, self._dying(getattr(owner, name), name))

    def at(self, mark: str, method: str, *, done: bool, call: int = 1) -> None:
        """Die at the nth call of a method with `mark` in its arguments, when it is done or before it is."""
        self._armed[mark] = (method, done, call)

    @property
    def left(self) -> dict[str, tuple[str, bool, int]]:
        return self._armed

    def _dying(self, original: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
        async def method(*arguments: Any, **named: Any) -> Any:
            if not self._is_deadly(name, repr((arguments, named))):
                return await original(*arguments, **named)
            if self._done:
                await original(*arguments, **named)
            raise asyncio.CancelledError

        return method

    def _is_deadly(self, name: str, said: str) -> bool:
        for mark, (method, done, call) in list(self._armed.items()):
            if method == name and mark in said:
                self._armed[mark] = (method, done, call - 1)
                if call == 1:
                    del self._armed[mark]
                    self._done = done
                    return True
        return False

    _done = False


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place.running(tmp_path_factory.mktemp("quiet"), brokers=0) as place:
        yield place


@asynccontextmanager
async def _brokers_of_our_own(place: Place, count: int) -> AsyncIterator[None]:
    """Brokers in this process, so that each of their steps can be got at."""
    settings = BrokerSettings(
        nats_url=place.nats.url, redis_url=place.redis.url, http_port=0, log_level="ERROR"
    )
    apps = [build(settings).app() for _ in range(count)]
    for app in apps:
        await app.start()
    try:
        yield
    finally:
        for app in apps:
            await app.stop()


async def test_a_broker_dies_between_any_two_steps(quiet: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of asking, answering and cancelling; the command is delivered again, and is carried out once."""
    dying = Dying(monkeypatch)
    async with World(quiet.nats.url) as w, _brokers_of_our_own(quiet, 2):
        rounds: list[Awaitable[None]] = []
        parent = await w.top()
        for command in ("question.ask", "question.answer", "question.cancel"):
            for _, method in STEPS:
                for done in (False, True):
                    if method == "set" and command != "question.ask":
                        continue
                    child = await w.child(parent)
                    rounds.append(_dies_and_goes_on(w, dying, parent, child, command, method, done=done))
        await asyncio.gather(*rounds)
        assert dying.left == {}
        assert await parent.listed() == []


async def _dies_and_goes_on(
    w: World, dying: Dying, parent: Session, child: Session, command: str, method: str, *, done: bool
) -> None:
    ask: Json = {
        "run_id": child.run_id,
        "question": "Which database?",
        "why_blocked": "w",
        "command_id": "ask",
    }
    mark = child.id if method == "last" else child.run_id
    if command == "question.ask":
        dying.at(mark, method, done=done, call=random.randint(1, 2) if method == "last" else 1)
    question = await _insist(w, child.id, "question.ask", ask)
    request_id = question["request_id"]
    end: Json = {"request_id": request_id, "command_id": f"end-{request_id}"}
    if command != "question.ask":
        dying.at(request_id if method == "ack" else mark, method, done=done)
    if command == "question.cancel":
        ended = await _insist(w, child.id, command, end)
    else:
        ended = await _insist(w, parent.id, "question.answer", {**end, "answer": "SQLite."})
    kind = "cancelled" if command == "question.cancel" else "answered"
    assert ended["status"] == kind
    assert await w.in_log(child.run_id) == [f"{request_id}.requested", f"{request_id}.{kind}"]
    assert await w.question(request_id) == ended


async def _insist(w: World, caller: str, command: str, body: Json) -> Json:
    """Send a command, and again where the reply was lost with the process; whatever is told is the same."""
    until = now() + 60_000
    while True:
        reply = await w.send(caller, command, **body)
        with suppress(TimeoutError):
            return (await asyncio.wait_for(reply, 7))["result"]["question"]
        assert now() < until, f"no reply to {command}"
