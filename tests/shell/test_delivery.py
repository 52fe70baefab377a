"""What a delivery comes to: done, again later, or parked."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import nats.errors as nats_errors
import pytest
from nats.aio.msg import Msg

from upcall_contracts import limits
from upcall_contracts.errors import Refusal
from upcall_contracts.refusals import internal
from upcall_shell.dead_letters import DeadLetters
from upcall_shell.delivery import MAX_FAILURES, Again, Deliveries
from upcall_shell.errors import Conflict, Unavailable
from upcall_shell.jetstream import StreamClient
from upcall_shell.queries import QueryDesk

PAUSES = (1.0, 5.0, 30.0)


@dataclass
class Delivered:
    """A message as nats-py delivers it."""

    seq: int = 1
    delivered: int = 1
    subject: str = "cmd.S.question.ask"
    data: bytes = b"{}"
    headers: dict[str, str] | None = None
    broken: bool = False
    said: list[object] = field(default_factory=list[object])
    is_acked: bool = False

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(num_delivered=self.delivered, sequence=SimpleNamespace(stream=self.seq))

    async def ack(self) -> None:
        self._say("ack")

    async def nak(self, delay: float | None = None) -> None:
        self._say(delay)

    async def in_progress(self) -> None:
        self.said.append("working")

    def _say(self, what: object) -> None:
        if self.broken:
            raise nats_errors.ConnectionClosedError
        self.said.append(what)
        self.is_acked = True


class Letters:
    """Keeps dead letters, unless told to fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.kept: list[tuple[str, int]] = []
        self._error = error

    async def record(self, message: Msg, refusal: Refusal, reason: str, attempts: int) -> None:
        if self._error is not None:
            raise self._error
        assert refusal.code.value == "internal"
        self.kept.append((reason, attempts))


def deliveries(
    handle: Callable[[Msg], Awaitable[Again | None]], letters: Letters | None = None, **named: Any
) -> Deliveries:
    return Deliveries("test", handle, cast(DeadLetters, letters or Letters()), retry_s=PAUSES, **named)


def outcome(*outcomes: object) -> Callable[[Msg], Awaitable[Again | None]]:
    """A handler that comes to these outcomes, one after the other, and the last one from then on."""
    left = list(outcomes)

    async def handle(_: Msg) -> Again | None:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, Exception):
            raise now
        assert now is None or isinstance(now, Again)
        return now

    return handle


async def deliver(to: Deliveries, *messages: Delivered) -> list[Delivered]:
    for message in messages:
        await to.accept(cast(Msg, message))
        await asyncio.sleep(0)
        await to.drain(5)
        to._stopping = False  # the test's own way to wait for each
    return list(messages)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (None, "ack"),
        (Again(250), 0.25),
        (Again(0), 0.001),  # a nak without a delay would come back at once, and again
        (Unavailable("away"), 1.0),
        (Conflict("g", 1), 1.0),
        (nats_errors.ConnectionClosedError(), 1.0),
        (OSError("cut"), 1.0),
        (ValueError("ours"), 1.0),
    ],
)
async def test_one_delivery(what: object, said: object) -> None:
    [message] = await deliver(deliveries(outcome(what)), Delivered())
    assert message.said == [said]


@pytest.mark.parametrize(
    ("what", "pauses"),
    [
        (Unavailable("away"), [1.0, 5.0, 5.0, 5.0, 5.0, 5.0]),  # it will be back soon
        (ValueError("ours"), [1.0, 5.0, 30.0, 30.0]),
    ],
)
async def test_pauses(what: Exception, pauses: list[float]) -> None:
    to = deliveries(outcome(what))
    messages = await deliver(to, *[Delivered(delivered=n + 1) for n in range(len(pauses))])
    assert [m.said for m in messages] == [[p] for p in pauses]


async def test_the_fifth_failure_parks() -> None:
    letters, told = Letters(), list[str]()

    async def parked(message: Msg) -> None:
        told.append(message.subject)

    to = deliveries(outcome(ValueError("ours")), letters, on_parked=parked)
    messages = await deliver(to, *[Delivered(delivered=n + 1) for n in range(MAX_FAILURES)])
    assert [m.said for m in messages] == [[1.0], [5.0], [30.0], [30.0], ["ack"]]
    assert letters.kept == [("ValueError: ours", 5)]
    assert told == ["cmd.S.question.ask"]


async def test_only_failures_of_ours_count() -> None:
    """Delivered ten times, since NATS was away or its time had not come; then it fails for the first time."""
    letters = Letters()
    odd = [Unavailable("away"), Again(5), Conflict("g", 1), nats_errors.TimeoutError()]
    to = deliveries(outcome(*odd, ValueError("ours"), None), letters)
    messages = await deliver(to, *[Delivered(delivered=n + 10) for n in range(6)])
    assert messages[4].said == [1.0]
    assert messages[5].said == ["ack"]
    assert letters.kept == []


async def test_each_message_has_its_own_count() -> None:
    letters = Letters()
    to = deliveries(outcome(ValueError("ours")), letters)
    await deliver(to, *[Delivered(seq=seq) for seq in range(20) for _ in range(MAX_FAILURES - 1)])
    assert letters.kept == []


async def test_what_went_well_is_forgotten() -> None:
    letters = Letters()
    four = [ValueError("ours")] * (MAX_FAILURES - 1)
    to = deliveries(outcome(*four, None, *four, None), letters)
    await deliver(to, *[Delivered() for _ in range(2 * MAX_FAILURES)])
    assert letters.kept == []


async def test_what_other_instances_met_counts() -> None:
    counted = 3

    async def count(_: str, __: int) -> int:
        nonlocal counted
        counted += 1
        return counted

    letters = Letters()
    to = deliveries(outcome(ValueError("ours")), letters, count=count)
    await deliver(to, Delivered(), Delivered())
    assert len(letters.kept) == 1


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("can't be written")])
async def test_what_can_not_be_parked_comes_again(error: Exception) -> None:
    to = deliveries(outcome(ValueError("ours")), Letters(error))
    messages = await deliver(to, *[Delivered() for _ in range(MAX_FAILURES + 1)])
    assert [m.said for m in messages[-2:]] == [[30.0], [30.0]]


@pytest.mark.parametrize("what", [None, Again(5), Unavailable("away"), ValueError("ours")])
async def test_without_a_connection_nothing_is_said_and_nothing_breaks(what: object) -> None:
    letters = Letters()
    await deliver(deliveries(outcome(what), letters), *[Delivered(broken=True) for _ in range(9)])
    assert letters.kept == [] or isinstance(what, ValueError)


async def test_what_takes_long_is_not_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upcall_shell.delivery._KEEP_S", 0.01)
    go = asyncio.Event()

    async def handle(_: Msg) -> None:
        await go.wait()

    to, message = deliveries(handle), Delivered()
    await to.accept(cast(Msg, message))
    while "working" not in message.said:  # noqa: ASYNC110  the sign is what is waited for
        await asyncio.sleep(0.005)
    go.set()
    await to.drain(5)
    assert message.said[-1] == "ack"


async def test_a_stop_finishes_what_is_in_hand_and_takes_nothing_more() -> None:
    go = asyncio.Event()

    async def handle(_: Msg) -> None:
        await go.wait()

    to, held, late = deliveries(handle), Delivered(), Delivered(seq=2)
    await to.accept(cast(Msg, held))
    draining = asyncio.create_task(to.drain(5))
    await asyncio.sleep(0)
    await to.accept(cast(Msg, late))
    go.set()
    await draining
    assert (held.said, late.said) == (["ack"], [None])


# Dead letters


class Kept:
    """A stream that keeps what is put into it."""

    def __init__(self) -> None:
        self.letters: list[dict[str, Any]] = []

    async def put(self, subject: str, body: bytes) -> int:
        assert subject == "dead.test"
        assert len(body) < limits.PAYLOAD_MAX_BYTES
        self.letters.append(json.loads(body))
        return 1


@pytest.mark.parametrize(
    "message",
    [
        Delivered(data=b"\xff\x00"),
        Delivered(data=b"x" * limits.PAYLOAD_MAX_BYTES),
        Delivered(headers={"a": "\ufffd", "b": ""}),
        Delivered(data=b"x" * limits.PAYLOAD_MAX_BYTES, headers={"a": "\x01" * (16 * 1024 - 1)}),
        Delivered(headers={"a": "x" * (limits.PAYLOAD_MAX_BYTES - 1)}),
        Delivered(subject="cmd.\ufffd.question." + "x" * 4000),
        Delivered(
            data=b"x" * (limits.PAYLOAD_MAX_BYTES // 2), headers={"a": "x" * (limits.PAYLOAD_MAX_BYTES // 2)}
        ),
    ],
    ids=["bytes", "large", "headers", "large and odd", "large headers", "odd subject", "large in both"],
)
async def test_whatever_came_can_be_kept(message: Delivered) -> None:
    stream = Kept()
    await DeadLetters(cast(StreamClient, stream), "test").record(cast(Msg, message), internal(), "why", 3)
    [letter] = stream.letters
    assert (letter["subject"], letter["code"], letter["attempts"]) == (message.subject, "internal", 3)
    assert letter["reason"].startswith("why")


# Queries


def asked(reply: str, body: bytes = b"{}") -> Msg:
    return Msg(_client=cast(Any, None), subject="query.S.question.list", reply=reply, data=body)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"questions": [], "cursor": None}, None),
        (internal(), "internal"),
        (ValueError("ours"), "internal"),
        (Unavailable("away"), "internal"),
        ({"questions": ["x" * limits.PAYLOAD_MAX_BYTES], "cursor": None}, "internal"),
    ],
    ids=["result", "refusal", "failure", "away", "too large a result"],
)
async def test_every_query_gets_one_reply(result: object, code: str | None) -> None:
    replies: list[tuple[str, Any]] = []

    async def reply(to: str, body: bytes) -> None:
        assert len(body) <= limits.PAYLOAD_MAX_BYTES
        replies.append((to, json.loads(body)))

    async def handle(_: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    desk = QueryDesk({("question", "list"): handle}, reply)
    for to in ("", "evil", "_INBOX", "_INBOX.>", "_INBOX.a b", "_INBOX.\ufffd"):
        await desk.accept(asked(to))
    await desk.accept(asked("_INBOX.good"))
    await desk.drain(5)
    [(to, body)] = replies
    assert to == "_INBOX.good"
    assert body["ok"] == (code is None)
    assert code is None or body["error"]["code"] == code
