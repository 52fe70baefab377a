"""A plain NATS client that speaks the wire contract and nothing else.

Nothing here knows the services: subjects, fields and codes are spelled out as the contract spells them, so
that a change of the services that a foreign client would feel is felt here first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, PubAck

Json = dict[str, Any]
T = TypeVar("T")

OPERATOR = "operator"
WITHIN = 15.0
"""Seconds a test waits for what should take milliseconds: only a failure ever waits that long."""

TOKEN = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")

RETRYABLE = frozenset({"session_busy", "question_open", "overloaded", "internal"})
"""The codes a caller may try again; all others stay refused until something else has changed."""

ENDS = ("answered", "timed_out", "cancelled", "error")


def names(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


QUESTION_FIELDS = names(
    "request_id status created_at updated_at expires_at parent_run_id parent_session_id child_run_id",
    "child_session_id root_session_id task_id agent description question why_blocked options",
    "recommended_option can_continue_without_answer fallback timeout_ms answer rationale selected_option",
    "action answered_at answered_by reason meta",
)
RUN_FIELDS = names(
    "run_id session_id ordinal trigger causes parent_run_id parent_session_id root_session_id task_id",
    "description task agent model variant background notify status outcome attempt holder answer error",
    "step_budget steps timeout_ms history_from history_to period_id queued_at started_at settled_at",
)
SESSION_FIELDS = names(
    "session_id parent_session_id root_session_id depth agent host title model variant notify status live",
    "lease_ms run_id runs period_id pending history_seq created_at updated_at meta",
)
REPORT_FIELDS = names(
    "period_id session_id parent_session_id parent_run_id root_session_id agent description task_id result",
    "outcome answer error runs work pending cancelled status reason for_run held_ms created_at delivered_at",
)
WORK_FIELDS = names("work_id session_id run_id kind label wakes outcome summary finished_at")
EVENT_FIELDS = names(
    "event_id type time run_id session_id parent_run_id parent_session_id root_session_id agent task_id data"
)

WHY = "Both are in use, and the choice decides the schema."


def uid(prefix: str = "id") -> str:
    """A token that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:16]}"


def when(text: str) -> float:
    """Seconds since the epoch of a time on the wire, which has to be in the one form the contract allows."""
    assert TIME.match(text), f"not RFC 3339 in UTC with milliseconds and Z: {text!r}"
    return datetime.fromisoformat(text).timestamp()


def now() -> float:
    """The wall clock, as the services (on the same machine) see it."""
    return time.time()


async def at(moment: float) -> None:
    """Return at a moment that the scenario itself names, such as `answer at 2 s`."""
    await asyncio.sleep(max(0.0, moment - now()))


async def eventually(
    look: Callable[[], Awaitable[T]],
    holds: Callable[[T], object],
    *,
    within: float = WITHIN,
    why: str = "",
) -> T:
    """Look again and again until it holds; fail at the deadline with what was seen last."""
    deadline = time.monotonic() + within
    while True:
        seen = await look()
        if holds(seen):
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {why or 'the condition'}; last seen: {seen!r}")
        await asyncio.sleep(0.05)


async def never(
    look: Callable[[], Awaitable[T]], wrong: Callable[[T], object], *, over: float, why: str = ""
) -> None:
    """Look for a while and fail as soon as what must not happen has happened."""
    deadline = time.monotonic() + over
    while time.monotonic() < deadline:
        seen = await look()
        assert not wrong(seen), f"{why or 'what must not happen'}: {seen!r}"
        await asyncio.sleep(0.1)


def has_fields(record: Json, fields: Iterable[str]) -> None:
    """A record holds all its fields, absent values as null."""
    missing = sorted(set(fields) - set(record))
    assert not missing, f"fields missing: {missing} in {record}"


@dataclass(frozen=True)
class Seen:
    """One committed event as a reader got it."""

    subject: str
    body: Json

    @property
    def event_id(self) -> str:
        return str(self.body["event_id"])

    @property
    def type(self) -> str:
        return str(self.body["type"])

    @property
    def data(self) -> Json:
        data = self.body["data"]
        assert isinstance(data, dict)
        return data

    @property
    def child(self) -> str | None:
        """The run whose event this is a copy of; None for an event on its own topic."""
        tokens = self.subject.split(".")
        return tokens[3] if len(tokens) == 7 and tokens[2] == "child" else None

    @property
    def family(self) -> str:
        return self.subject.split(".")[-3]

    @property
    def id(self) -> str:
        return self.subject.split(".")[-2]

    @property
    def event(self) -> str:
        return self.subject.split(".")[-1]

    def __str__(self) -> str:
        return f"{self.subject} {self.body.get('data')}"


def once_each(events: Iterable[Seen]) -> list[Seen]:
    """Delivery is at least once: an event seen twice is one event."""
    found: dict[tuple[str, str], Seen] = {}
    for seen in events:
        found.setdefault((seen.subject, seen.event_id), seen)
    return list(found.values())


def select(
    events: Iterable[Seen],
    family: str | None = None,
    ident: str | None = None,
    *names: str,
    child: str | bool | None = True,
) -> list[Seen]:
    """The events that fit; child=None leaves copies out, child=<run id> wants that run's copies only."""
    return [
        seen
        for seen in events
        if family in (None, seen.family)
        and ident in (None, seen.id)
        and (not names or seen.event in names)
        and (child is True or seen.child == child)
    ]


class Topic:
    """What a plain core subscriber on one run's topic has seen so far."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.events: list[Seen] = []
        self._changed = asyncio.Condition()
        self._subscription: Subscription | None = None

    async def take(self, message: Msg) -> None:
        seen = Seen(message.subject, json.loads(message.data))
        async with self._changed:
            self.events = once_each([*self.events, seen])
            self._changed.notify_all()

    async def until(
        self,
        family: str,
        ident: str | None = None,
        *names: str,
        child: str | bool | None = True,
        count: int = 1,
        within: float = WITHIN,
    ) -> Seen:
        """The count-th event that fits, once it is there."""
        return (await self.until_all(family, ident, *names, child=child, count=count, within=within))[
            count - 1
        ]

    async def until_all(
        self,
        family: str,
        ident: str | None = None,
        *names: str,
        child: str | bool | None = True,
        count: int = 1,
        within: float = WITHIN,
    ) -> list[Seen]:
        """All events that fit, once there are so many."""

        def found() -> list[Seen]:
            return select(self.events, family, ident, *names, child=child)

        try:
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(lambda: len(found()) >= count), within)
        except TimeoutError:
            wanted = f"{count} of {family}.{ident or '*'}.{'|'.join(names) or '*'} on {self.run_id}"
            raise AssertionError(f"{wanted} not within {within} s: {[str(e) for e in self.events]}") from None
        return found()


class RefusedError(AssertionError):
    """A command or query that a test expected to succeed was refused."""

    def __init__(self, asked: str, error: Json) -> None:
        super().__init__(f"{asked}: {error.get('code')}: {error.get('message')} {error.get('details')}")
        self.code = error.get("code")
        self.error = error


class Wire:
    """One connection and what the contract lets anyone do with it."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.js = nc.jetstream(timeout=5)
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, url: str) -> Wire:
        async def quiet(_: Exception) -> None:
            """Servers are killed under this client on purpose; the calls that suffer say so themselves."""

        nc = await nats.connect(
            url,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            connect_timeout=10,
            error_cb=quiet,
            name=uid("blackbox"),
        )
        return cls(nc)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.nc.close()

    def background(self, work: Awaitable[Any]) -> asyncio.Task[None]:
        """Run something beside the test; it ends with the connection."""

        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Commands

    async def publish(
        self, subject: str, body: Json | bytes, headers: dict[str, str] | None = None, *, within: float = 5.0
    ) -> PubAck:
        """Publish to JetStream and return its acknowledgement, which is not the reply."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.js.publish(subject, payload, timeout=within, headers=headers)

    async def publish_surely(self, subject: str, body: Json, *, within: float = 60.0) -> PubAck:
        """Publish until JetStream has acknowledged, over any outage; the body needs a command_id for that."""
        assert "command_id" in body, "only a command with an id may be published twice"
        deadline = time.monotonic() + within
        while True:
            try:
                return await self.publish(subject, body, within=2.0)
            except (nats.errors.Error, nats.js.errors.Error, OSError) as broken:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{subject} was not acknowledged within {within} s") from broken
                await asyncio.sleep(0.1)

    async def reply_to(
        self,
        subject: str,
        body: Json | bytes,
        *,
        within: float = WITHIN,
        headers: dict[str, str] | None = None,
    ) -> Json:
        """Send one command and return the reply as it stands on the wire."""
        inbox = self.nc.new_inbox()
        replies = await self.nc.subscribe(inbox)
        try:
            await self.publish(subject, body, {**(headers or {}), "reply_to": inbox})
            try:
                message = await replies.next_msg(timeout=within)
            except nats.errors.TimeoutError:
                raise AssertionError(f"no reply to {subject} within {within} s: {str(body)[:400]}") from None
            return well_formed(json.loads(message.data))
        finally:
            await replies.unsubscribe()

    async def do(self, caller: str, command: str, *, within: float = WITHIN, **body: Any) -> Json:
        """Carry out a command (`question.ask`) and return its result."""
        reply = await self.reply_to(f"cmd.{caller}.{command}", body, within=within)
        if not reply["ok"]:
            raise RefusedError(f"cmd.{caller}.{command}", reply["error"])
        return result_of(reply)

    async def refused(
        self, code: str, caller: str, command: str, *, within: float = WITHIN, **body: Any
    ) -> Json:
        """Send a command that has to be refused with this code, and return the error."""
        reply = await self.reply_to(f"cmd.{caller}.{command}", body, within=within)
        assert not reply["ok"], f"cmd.{caller}.{command} should be {code} and was carried out: {reply}"
        assert reply["error"]["code"] == code, f"cmd.{caller}.{command} should be {code}: {reply['error']}"
        return error_of(reply)

    async def insist(self, caller: str, command: str, *, within: float = 60.0, **body: Any) -> Json:
        """Carry out a command over crashes: the same command_id is sent again until a reply comes.

        A reply may be lost with the process that owes it, and a retryable refusal may be ours: both are tried
        again. Anything else that is refused fails the test.
        """
        body.setdefault("command_id", uid("insist"))
        deadline = time.monotonic() + within
        last: object = "nothing"
        while time.monotonic() < deadline:
            try:
                reply = await self.reply_to(f"cmd.{caller}.{command}", body, within=3.0)
            except (AssertionError, nats.errors.Error, nats.js.errors.Error, OSError) as broken:
                last = broken
                await asyncio.sleep(0.1)
                continue
            if reply["ok"]:
                return result_of(reply)
            if reply["error"]["code"] not in ("overloaded", "internal"):
                raise RefusedError(f"cmd.{caller}.{command}", reply["error"])
            last = reply["error"]
            await asyncio.sleep(0.2)
        raise AssertionError(f"cmd.{caller}.{command} got no reply within {within} s; last: {last}")

    # Queries

    async def request(self, subject: str, body: Json, *, within: float = WITHIN) -> Json:
        """Send one query and return the reply as it stands on the wire."""
        message = await self.nc.request(subject, json.dumps(body).encode(), timeout=within)
        return well_formed(json.loads(message.data))

    async def query(self, caller: str, query: str, *, within: float = WITHIN, **body: Any) -> Json:
        """Ask (`session.get`) and return the result."""
        reply = await self.request(f"query.{caller}.{query}", body, within=within)
        if not reply["ok"]:
            raise RefusedError(f"query.{caller}.{query}", reply["error"])
        return result_of(reply)

    async def query_refused(self, code: str, caller: str, query: str, **body: Any) -> Json:
        """Ask what has to be refused with this code, and return the error."""
        reply = await self.request(f"query.{caller}.{query}", body)
        assert not reply["ok"], f"query.{caller}.{query} should be {code} and was answered: {reply}"
        assert reply["error"]["code"] == code, f"query.{caller}.{query} should be {code}: {reply['error']}"
        return error_of(reply)

    async def query_surely(self, caller: str, query: str, *, within: float = 60.0, **body: Any) -> Json:
        """Ask over an outage: nobody there, no answer in time and `internal` are tried again."""
        deadline = time.monotonic() + within
        while True:
            try:
                return await self.query(caller, query, within=3.0, **body)
            except (nats.errors.Error, OSError) as broken:
                if time.monotonic() > deadline:
                    raise AssertionError(
                        f"query.{caller}.{query} was not answered within {within} s"
                    ) from broken
            except RefusedError as refusal:
                if refusal.code not in ("overloaded", "internal") or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.2)

    async def pages(self, caller: str, query: str, key: str, **body: Any) -> list[Json]:
        """All rows of a list, page after page."""
        rows: list[Json] = []
        cursor: object = None
        for _ in range(1000):
            asked = {**body, "cursor": cursor} if cursor else body
            page = await self.query(caller, query, **asked)
            rows += page[key]
            cursor = page["cursor"]
            if not cursor:
                return rows
        raise AssertionError(f"{query} never ends: {rows[:3]}")

    async def session(self, session_id: str, caller: str = OPERATOR) -> Json:
        record = (await self.query(caller, "session.get", session_id=session_id))["session"]
        assert isinstance(record, dict)
        return record

    async def run(self, run_id: str, caller: str = OPERATOR) -> Json:
        record = (await self.query(caller, "run.get", run_id=run_id))["run"]
        assert isinstance(record, dict)
        return record

    async def question(self, request_id: str, caller: str = OPERATOR) -> Json:
        record = (await self.query(caller, "question.get", request_id=request_id))["question"]
        assert isinstance(record, dict)
        return record

    async def report(self, period_id: str, caller: str = OPERATOR) -> Json:
        record = (await self.query(caller, "report.get", period_id=period_id))["report"]
        assert isinstance(record, dict)
        return record

    async def questions(self, caller: str, **body: Any) -> list[str]:
        """The request ids of a caller's list, in its order."""
        return [q["request_id"] for q in await self.pages(caller, "question.list", "questions", **body)]

    async def until_question(self, request_id: str, *statuses: str, within: float = WITHIN) -> Json:
        """The question, once it has one of these statuses (by default: any end)."""
        wanted = statuses or ENDS
        return await eventually(
            lambda: self.question(request_id),
            lambda q: q["status"] in wanted,
            within=within,
            why=f"question {request_id} is {' or '.join(wanted)}",
        )

    async def until_settled(self, run_id: str, within: float = WITHIN) -> Json:
        """The run, once it is settled."""
        return await eventually(
            lambda: self.run(run_id),
            lambda r: r["status"] == "settled",
            within=within,
            why=f"{run_id} settles",
        )

    async def until_session(self, session_id: str, within: float = WITHIN, **wanted: Any) -> Json:
        """The session, once these fields have these values."""
        return await eventually(
            lambda: self.session(session_id),
            lambda s: all(s[name] == value for name, value in wanted.items()),
            within=within,
            why=f"session {session_id} has {wanted}",
        )

    async def until_report(self, period_id: str, *statuses: str, within: float = WITHIN) -> Json:
        """The report, once it has one of these statuses."""

        async def look() -> Json:
            reply = await self.request(f"query.{OPERATOR}.report.get", {"period_id": period_id})
            return dict(reply["result"]["report"]) if reply["ok"] else reply["error"]

        return await eventually(
            look,
            lambda r: r.get("status") in statuses,
            within=within,
            why=f"report {period_id} is {' or '.join(statuses)}",
        )

    # Topics and inboxes

    async def topic(self, run_id: str) -> Topic:
        """Subscribe to a run's topic as any core client does."""
        topic = Topic(run_id)
        topic._subscription = await self.nc.subscribe(f"run.{run_id}.>", cb=topic.take)
        await self.nc.flush(timeout=10)
        return topic

    async def read(self, stream: str, subject: str) -> list[tuple[str, bytes]]:
        """All a stream holds under a subject, from its beginning, as a consumer of its own reads it."""
        deliver = self.nc.new_inbox()
        messages = await self.nc.subscribe(deliver, pending_msgs_limit=-1, pending_bytes_limit=-1)
        config = ConsumerConfig(
            name=uid("reader"),
            deliver_subject=deliver,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            filter_subject=subject,
            inactive_threshold=30,
            mem_storage=True,
            num_replicas=1,
        )
        info = await self.js.add_consumer(stream, config=config)
        found: list[tuple[str, bytes]] = []
        try:
            delivered = info.delivered.consumer_seq if info.delivered else 0
            left = (info.num_pending or 0) + delivered
            while left:
                message = await messages.next_msg(timeout=10)
                found.append((message.subject, message.data))
                left = message.metadata.num_pending
        finally:
            await messages.unsubscribe()
            with contextlib.suppress(nats.errors.Error):
                await self.js.delete_consumer(stream, info.name)
        return found

    async def history(self, run_id: str, tail: str = ">") -> list[Seen]:
        """All events of a run's topic, from the beginning, as stored."""
        stored = await self.read("TOPICS", f"run.{run_id}.{tail}")
        return once_each(Seen(subject, json.loads(data)) for subject, data in stored)

    async def ends(self, run_id: str, request_id: str) -> list[str]:
        """The ends that a question has on its topic: never more than one."""
        events = await self.history(run_id, f"question.{request_id}.*")
        return [seen.event for seen in events if seen.event in ENDS]

    async def inbox_slots(self, session_id: str) -> dict[str, Json | None]:
        """What stands in a session's inbox by item id; None is an empty body, which means handled."""
        stored = await self.read("INBOX", f"inbox.{session_id}.>")
        return {
            subject.split(".", 2)[2]: (json.loads(data) if data.strip() else None) for subject, data in stored
        }

    async def inbox(self, session_id: str) -> list[Json]:
        """What waits for a session, read as a reader does that starts afresh."""
        return [
            body
            for body in (await self.inbox_slots(session_id)).values()
            if body is not None
            and not (body["item"]["kind"] == "question" and body["type"] != "parent_question_requested")
        ]

    async def until_item(self, session_id: str, item_id: str, within: float = WITHIN) -> Json:
        """An open item of the inbox, once it is there."""
        found = await eventually(
            lambda: self.inbox(session_id),
            lambda items: any(i["item"]["item_id"] == item_id for i in items),
            within=within,
            why=f"item {item_id} is in the inbox of {session_id}",
        )
        return next(i for i in found if i["item"]["item_id"] == item_id)

    async def until_no_item(self, session_id: str, item_id: str, within: float = WITHIN) -> None:
        """Wait until no reader would take the item for open any more."""
        await eventually(
            lambda: self.inbox(session_id),
            lambda items: all(i["item"]["item_id"] != item_id for i in items),
            within=within,
            why=f"item {item_id} is gone from the inbox of {session_id}",
        )

    # Hosts

    async def open(self, session_id: str | None = None, **body: Any) -> str:
        """Open a top-level session, as a person's shell would, and return its id."""
        session_id = session_id or uid("S")
        body.setdefault("agent", "lead")
        session = (await self.do(session_id, "session.open", **body))["session"]
        assert session["session_id"] == session_id
        return session_id

    async def start(self, session_id: str, **body: Any) -> Turn:
        """Start a run of a session as its own host."""
        run = (await self.do(session_id, "run.start", **body))["run"]
        return Turn(self, session_id, session_id, run["run_id"], run["period_id"])

    async def spawn(self, caller: str, **body: Any) -> Turn:
        """Spawn a child that the test carries out itself, as a session of its own."""
        body = {"agent": "worker", "task": "Build the orders service.", "host": "self", **body}
        made = await self.do(caller, "session.spawn", **body)
        return Turn(self, made["session_id"], made["session_id"], made["run_id"], made["period_id"])

    async def proceed(self, caller: str, session_id: str, **body: Any) -> Turn:
        """Continue a child that the test carries out itself."""
        made = await self.do(caller, "session.continue", session_id=session_id, **{"task": "Go on.", **body})
        assert made["session_id"] == session_id
        return Turn(self, session_id, session_id, made["run_id"], made["period_id"])

    async def family(self, **body: Any) -> tuple[Turn, Turn]:
        """A parent with an active run, and a child of it with one: both hosted by the test."""
        parent = await self.start(await self.open())
        return parent, await self.spawn(parent.session_id, run_id=parent.run_id, **body)

    @contextlib.asynccontextmanager
    async def beating(
        self, session_id: str, body: Json | None = None, every: float = 0.25
    ) -> AsyncIterator[None]:
        """Beat for a session as its host, while the block runs."""

        async def beat() -> None:
            while True:
                with contextlib.suppress(nats.errors.Error, OSError):
                    await self.nc.publish(
                        f"heartbeat.{session_id}", json.dumps(body).encode() if body else b""
                    )
                await asyncio.sleep(every)

        task = self.background(beat())
        try:
            yield
        finally:
            task.cancel()


@dataclass
class Turn:
    """One run as its host drives it. A runner names the attempt in each command, a self host need not."""

    wire: Wire
    caller: str
    session_id: str
    run_id: str
    period_id: str
    attempt: int | None = None

    def said(self, body: Json) -> Json:
        if self.attempt is not None:
            body = {"attempt": self.attempt, **body}
        return {"run_id": self.run_id, **body}

    def asking(self, question: str, body: Json) -> Json:
        return self.said({"question": question, "why_blocked": WHY, **body})

    async def ask(self, question: str = "Which database should it use?", **body: Any) -> Json:
        """Ask the parent and return the question's record."""
        record = (await self.wire.do(self.caller, "question.ask", **self.asking(question, body)))["question"]
        assert isinstance(record, dict)
        return record

    async def ask_refused(
        self, code: str, question: str = "Which database should it use?", **body: Any
    ) -> Json:
        """Ask what has to be refused with this code."""
        return await self.wire.refused(code, self.caller, "question.ask", **self.asking(question, body))

    async def answer(self, request_id: str, answer: str | None = None, **body: Any) -> Json:
        """Answer a child's question as this run's host, and return the question's record."""
        if answer is not None:
            body["answer"] = answer
        asked = await self.wire.do(self.caller, "question.answer", request_id=request_id, **body)
        record = asked["question"]
        assert isinstance(record, dict)
        return record

    async def append(self, *texts: str, **body: Any) -> int:
        """Append messages of the agent, and return the history's new end."""
        body.setdefault("messages", [{"role": "assistant", "content": text} for text in texts])
        result = await self.wire.do(self.caller, "run.append", **self.said(body))
        return int(result["history_seq"])

    async def settle(self, outcome: str = "completed", **body: Any) -> Json:
        """Settle the run and return its record."""
        if outcome == "completed":
            body.setdefault("answer", "Done.")
        settled = await self.wire.do(self.caller, "run.settle", **self.said({"outcome": outcome, **body}))
        record = settled["run"]
        assert isinstance(record, dict)
        return record

    async def finish(self, work_id: str, outcome: str = "completed", **body: Any) -> Json:
        """Report the end of work that the run left running, and return its record."""
        if self.attempt is not None:
            body.setdefault("session_id", self.session_id)
        finished = await self.wire.do(self.caller, "work.finish", work_id=work_id, outcome=outcome, **body)
        work = finished["work"]
        assert isinstance(work, dict)
        return work

    async def spawn(self, **body: Any) -> Turn:
        """Spawn a child that the test carries out itself."""
        return await self.wire.spawn(self.caller, **{"run_id": self.run_id, **body})

    async def proceed(self, child: Turn | str, **body: Any) -> Turn:
        """Continue a child that the test carries out itself."""
        session_id = child if isinstance(child, str) else child.session_id
        return await self.wire.proceed(self.caller, session_id, **{"run_id": self.run_id, **body})

    async def topic(self) -> Topic:
        return await self.wire.topic(self.run_id)

    async def report(self, *statuses: str, within: float = WITHIN) -> Json:
        """The report of this run's period, once it is delivered (or has one of these statuses)."""
        return await self.wire.until_report(self.period_id, *(statuses or ("delivered",)), within=within)


@dataclass
class Claim:
    """What a runner got with a claim: the run it now holds, its session and the run's questions, of which the
    oldest may only be named."""

    turn: Turn
    run: Json
    session: Json
    questions: list[Json]
    questions_left: list[str]
    beats: asyncio.Task[None] | None = field(repr=False)

    def die(self) -> None:
        """Beat no more, as after a `kill -9` of the runner."""
        if self.beats is not None:
            self.beats.cancel()


class Runner:
    """A harness's runner: takes dispatched runs of one agent, claims them, and beats for what it holds."""

    def __init__(self, wire: Wire, agent: str, runner_id: str | None = None) -> None:
        self.wire = wire
        self.agent = agent
        self.id = runner_id or uid("runner")

    async def provision(self) -> None:
        """Create the agent's durable, as a runner may that comes before the agent's first spawn."""
        await self.wire.js.add_consumer(
            "DISPATCH",
            config=ConsumerConfig(
                name=self.agent,
                durable_name=self.agent,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=30,
                max_deliver=-1,
                filter_subject=f"dispatch.{self.agent}",
            ),
        )

    async def dispatched(self, *, within: float = WITHIN) -> tuple[Json, Msg]:
        """The next run record that is dispatched to the agent, not yet acknowledged."""
        deadline = time.monotonic() + within
        pull = await self.wire.js.pull_subscribe_bind(consumer=self.agent, stream="DISPATCH")
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"nothing was dispatched to {self.agent} within {within} s")
                try:
                    message = (await pull.fetch(1, timeout=min(left, 1.0)))[0]
                except (TimeoutError, nats.errors.Error):
                    await asyncio.sleep(0.02)
                    continue
                return json.loads(message.data), message
        finally:
            with contextlib.suppress(nats.errors.Error):
                await pull.unsubscribe()

    async def claim(self, run_id: str) -> Json:
        """Claim a run; the reply as it stands on the wire, refusals included."""
        return await self.wire.reply_to(f"cmd.{self.id}.run.claim", {"run_id": run_id})

    async def take(self, *, within: float = WITHIN, beats: bool = True, every: float = 0.25) -> Claim:
        """Take the next dispatched run that can be claimed; beat for it until it dies."""
        deadline = time.monotonic() + within
        while True:
            run, message = await self.dispatched(within=deadline - time.monotonic())
            reply = await self.claim(run["run_id"])
            await message.ack()
            if reply["ok"]:
                return self._held(reply["result"], beats, every)
            assert reply["error"]["code"] in ("run_not_claimable", "unknown_run"), reply["error"]

    def _held(self, result: Json, beats: bool, every: float) -> Claim:
        run, session = result["run"], result["session"]
        turn = Turn(
            self.wire, self.id, session["session_id"], run["run_id"], run["period_id"], run["attempt"]
        )
        beating = self.wire.background(self._beat(turn, every)) if beats else None
        return Claim(turn, run, session, result["questions"], result["questions_left"], beating)

    async def _beat(self, turn: Turn, every: float) -> None:
        body = json.dumps({"run_id": turn.run_id, "attempt": turn.attempt}).encode()
        while True:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self.wire.nc.publish(f"heartbeat.{turn.session_id}", body)
            await asyncio.sleep(every)


def well_formed(reply: Json) -> Json:
    """A reply has one of the two forms, and an error says what to do and whether trying again may help."""
    assert isinstance(reply.get("ok"), bool), reply
    if reply["ok"]:
        assert isinstance(reply.get("result"), dict), reply
        return reply
    error = reply["error"]
    assert isinstance(error["code"], str), reply
    assert error["code"], reply
    assert isinstance(error["message"], str), reply
    assert error["message"].strip(), reply
    assert isinstance(error["details"], dict), reply
    assert error["retryable"] is (error["code"] in RETRYABLE), reply
    return reply


def result_of(reply: Json) -> Json:
    result = reply["result"]
    assert isinstance(result, dict)
    return result


def error_of(reply: Json) -> Json:
    error = reply["error"]
    assert isinstance(error, dict)
    return error


def named_fields(error: Json) -> set[str]:
    """The fields that an `invalid` names, an element of a list by its list's name."""
    assert error["code"] == "invalid", error
    problems = error["details"]["fields"]
    assert all(set(p) >= {"field", "problem"} and p["problem"] for p in problems), problems
    return {re.split(r"[.\[]", p["field"])[0] for p in problems}
