"""The wire as a harness has it, and the session service's part of the log, written by hand.

The broker reads of sessions only their entries in the log; here a test writes them, guarded as the session
service writes them, and drives the broker with a plain NATS client.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig, DeliverPolicy, PubAck
from nats.js.errors import NotFoundError

from upcall_contracts import log, streams, subjects
from upcall_contracts.events import EVENT_TYPES, Family
from upcall_contracts.ids import OPERATOR
from upcall_contracts.log import NOTE_TYPE, Entry, Note
from upcall_contracts.records import Host, Outcome, RunRecord, RunStatus
from upcall_contracts.states import SessionState

Json = dict[str, Any]
T = TypeVar("T")
WITHIN = 30.0
"""Seconds after which a condition that was to come has not come: a slow machine, not a hanging one."""


def uid(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:12]


def now() -> int:
    return time.time_ns() // 1_000_000


async def eventually(
    look: Callable[[], Awaitable[T]], good: Callable[[T], bool] = bool, within: float = WITHIN
) -> T:
    """Look until what is seen is good; an error with what was seen last if it never is."""
    until = time.monotonic() + within
    while not good(seen := await look()):
        assert time.monotonic() < until, f"not within {within} s; last seen: {seen!r}"
        await asyncio.sleep(0.01)
    return seen


@dataclass
class Session:
    """A session in the log, as the session service would have it."""

    world: "World"
    state: SessionState
    seq: int = 0

    @property
    def id(self) -> str:
        return self.state.session_id

    @property
    def run_id(self) -> str:
        assert self.state.run is not None
        return self.state.run.run_id

    async def changed(self, note: Note, **changes: Any) -> None:
        """An entry that concerns no run."""
        self.state = self.state.model_copy(update={"updated_at": now(), **changes})
        await self.world.store(self, log.session_note(self.id, note), NOTE_TYPE, "", {})

    async def happens(self, event: str, run: RunRecord, *, over: bool = False, **changes: Any) -> None:
        """An entry of the life of the active run; `over`: none is active after it."""
        active = None if over else run
        self.state = self.state.model_copy(update={"updated_at": now(), "run": active, **changes})
        subject = log.session_event(
            self.id,
            run.run_id,
            "lifecycle",
            str(run.attempt),
            event,
            run.parent_run_id,
            run.parent_session_id,
        )
        type_ = EVENT_TYPES[Family.LIFECYCLE, event].value
        await self.world.store(self, subject, type_, run.run_id, run.to_wire(), run.parent_run_id)

    async def starts(self, **fields: Any) -> str:
        """A further run of the session, running at once."""
        run = self.world.run_of(self.state, **fields)
        await self.happens("started", run, runs=self.state.runs + 1, wake_blocked=False)
        return run.run_id

    async def settles(self, outcome: Outcome = Outcome.COMPLETED) -> str:
        run = self.state.run
        assert run is not None
        settled = run.model_copy(
            update={"status": RunStatus.SETTLED, "outcome": outcome, "settled_at": now()}
        )
        holder = self.state.holder if self.state.host is Host.SELF else None
        await self.happens("settled", settled, over=True, holder=holder, cancel_deadline=None)
        return run.run_id

    async def is_cancelled(self) -> None:
        """session.cancel was carried out: the host is asked to settle."""
        assert self.state.run is not None
        await self.happens(
            "cancel_requested", self.state.run, cancel_deadline=now() + 10_000, wake_blocked=True
        )

    async def loses_its_runner(self) -> None:
        """The lease of the runner passed: the run is queued again, with the next attempt."""
        run = self.state.run
        assert run is not None
        gone = [*self.state.former_holders, self.state.holder or ""]
        away = run.model_copy(update={"status": RunStatus.INTERRUPTED})
        await self.happens("interrupted", away, holder=None, former_holders=gone)
        again = run.model_copy(
            update={"status": RunStatus.QUEUED, "attempt": run.attempt + 1, "holder": None}
        )
        await self.happens("queued", again)

    async def is_claimed(self, runner: str) -> None:
        run = self.state.run
        assert run is not None
        held = run.model_copy(update={"status": RunStatus.RUNNING, "holder": runner})
        former = [h for h in self.state.former_holders if h != runner]
        await self.happens("started", held, holder=runner, former_holders=former)

    async def closes(self) -> None:
        if self.state.run is not None:
            await self.settles(Outcome.CANCELLED)
        await self.changed(Note.CLOSED, closed_at=now())

    async def is_gone(self) -> None:
        await self.changed(Note.GONE, live=False)

    async def is_back(self) -> None:
        await self.changed(Note.LIVE, live=True)

    # As a caller

    async def ask(self, question: str = "Which database?", **body: Any) -> Json:
        """Ask, and return the question's record."""
        return (await self.world.do(self.id, "question.ask", **self._asking(question, body)))["question"]

    async def ask_reply(self, question: str = "Which database?", **body: Any) -> Json:
        """Ask, and return the reply."""
        return await self.world.command(self.id, "question.ask", **self._asking(question, body))

    def _asking(self, question: str, body: Json) -> Json:
        if "run_id" not in body:
            body = {"run_id": self.run_id, **body}
        return {"question": question, **_WHY, **body}

    async def answer(self, request_id: str, answer: str = "SQLite.", **body: Any) -> Json:
        """Answer, and return the question's record."""
        body = {"request_id": request_id, "answer": answer, **body}
        return (await self.world.do(self.id, "question.answer", **body))["question"]

    async def listed(self, **body: Any) -> list[str]:
        """The ids that question.list shows to the session."""
        return await self.world.listed(self.id, **body)


_WHY = {"why_blocked": "Two documents contradict each other."}


class World:
    """One connection, its inbox of replies, and the sessions that the test has made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._replies: dict[str, asyncio.Future[Json]] = {}
        self.late_replies: list[tuple[str, Json]] = []
        self.inbox = "_INBOX." + uid("test")

    nc: Client

    async def __aenter__(self) -> "World":
        async def quiet(_: Exception) -> None:
            return None

        self.nc = Client()
        await self.nc.connect(
            self._url,
            error_cb=quiet,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0,
            allow_reconnect=True,
        )
        await self.nc.subscribe(self.inbox + ".*", cb=self._replied)
        self.js = self.nc.jetstream(timeout=3)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.nc.close()

    async def _replied(self, message: Msg) -> None:
        reply: Json = json.loads(message.data)
        future = self._replies.pop(message.subject, None)
        if future is None or future.done():
            self.late_replies.append((message.subject, reply))
        else:
            future.set_result(reply)

    # Commands and queries

    async def publish(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> PubAck:
        """Publish to JetStream until it is acknowledged."""
        until = time.monotonic() + WITHIN
        while True:
            try:
                return await self.js.publish(subject, body, headers=headers)
            except (NatsError, OSError, TimeoutError):
                assert time.monotonic() < until
                await asyncio.sleep(0.02)

    def expect_reply(self) -> tuple[str, asyncio.Future[Json]]:
        """An inbox, and what will come there."""
        to = f"{self.inbox}.{uid('r')}"
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._replies[to] = future
        return to, future

    async def send(self, caller: str, command: str, **body: Any) -> asyncio.Future[Json]:
        """Publish a command; its reply comes in the future that is returned."""
        to, future = self.expect_reply()
        await self.publish(f"cmd.{caller}.{command}", json.dumps(body).encode(), {"reply_to": to})
        return future

    async def command(self, caller: str, command: str, **body: Any) -> Json:
        """Publish a command, and return its reply."""
        return await asyncio.wait_for(await self.send(caller, command, **body), WITHIN)

    async def do(self, caller: str, command: str, **body: Any) -> Json:
        """Publish a command that has to be carried out, and return its result."""
        reply = await self.command(caller, command, **body)
        assert reply["ok"], reply
        return reply["result"]

    async def refused(self, code: str, caller: str, command: str, **body: Any) -> Json:
        """Publish a command that has to be refused with this code, and return the error."""
        reply = await self.command(caller, command, **body)
        assert not reply["ok"], reply
        assert reply["error"]["code"] == code, reply
        return reply["error"]

    async def query_reply(self, caller: str, query: str, *, within: float = WITHIN, **body: Any) -> Json:
        message = await self.nc.request(f"query.{caller}.{query}", json.dumps(body).encode(), timeout=within)
        return json.loads(message.data)

    async def query(self, caller: str, query: str, **body: Any) -> Json:
        reply = await self.query_reply(caller, query, **body)
        assert reply["ok"], reply
        return reply["result"]

    async def question(self, request_id: str, caller: str = OPERATOR) -> Json:
        return (await self.query(caller, "question.get", request_id=request_id))["question"]

    async def listed(self, caller: str, **body: Any) -> list[str]:
        """All pages of a question.list."""
        ids: list[str] = []
        while True:
            page = await self.query(caller, "question.list", **body)
            ids += [q["request_id"] for q in page["questions"]]
            if page["cursor"] is None:
                return ids
            body["cursor"] = page["cursor"]

    async def until_ended(self, request_id: str, *statuses: str) -> Json:
        """The question once it has ended (as one of these)."""
        record = await eventually(lambda: self.question(request_id), lambda q: q["status"] != "waiting")
        assert not statuses or record["status"] in statuses, record
        return record

    async def pause_ends(self, seconds: float) -> None:
        """Keep the ends of runs and sessions from the broker for so long."""
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        body = json.dumps({"pause_until": until.isoformat()}).encode()
        reply = await self.nc.request("$JS.API.CONSUMER.PAUSE.LOG.question_broker-ends", body)
        assert json.loads(reply.data)["paused"]

    async def ends_consumer_is_idle(self) -> bool:
        """Whether the broker has handled all ends of runs and sessions."""
        info = await self.js.consumer_info(streams.LOG, "question_broker-ends")
        return not info.num_pending and not info.num_ack_pending

    # Sessions

    def run_of(self, state: SessionState, **fields: Any) -> RunRecord:
        values: Json = {
            "run_id": uid("r"),
            "session_id": state.session_id,
            "parent_session_id": state.parent_session_id,
            "root_session_id": state.root_session_id,
            "agent": state.agent,
            "task": "Build the orders service.",
            "description": "Build the orders service.",
            "task_id": "task-1",
            "status": RunStatus.RUNNING,
            "holder": state.holder,
            "started_at": now(),
        }
        return RunRecord.model_validate({**values, **fields})

    async def top(self, *, running: bool = True, **fields: Any) -> Session:
        """A top-level session of a host of its own, with an active run."""
        id_ = fields.pop("session_id", uid("P"))
        state = SessionState(
            session_id=id_,
            root_session_id=id_,
            agent="lead",
            holder=id_,
            created_at=now(),
            updated_at=now(),
            **fields,
        )
        session = Session(self, state)
        await session.changed(Note.OPENED)
        if running:
            await session.starts()
        return session

    async def child(
        self, parent: Session, *, runner: str | None = None, parent_run: bool = True, **fields: Any
    ) -> Session:
        """A child of a session with a running run; with `runner`, that holds it, else it hosts itself."""
        id_ = uid("C")
        above = parent.state
        state = SessionState(
            session_id=id_,
            parent_session_id=above.session_id,
            root_session_id=above.root_session_id,
            ancestors=[*above.ancestors, above.session_id],
            depth=above.depth + 1,
            agent="worker",
            host=Host.SELF if runner is None else Host.RUNNER,
            holder=runner if runner is not None else above.session_id,
            created_at=now(),
            updated_at=now(),
            runs=1,
        )
        session = Session(self, state)
        parent_run_id = above.run.run_id if parent_run and above.run is not None else None
        run = self.run_of(state, parent_run_id=parent_run_id, **fields)
        await session.happens("started", run)
        return session

    async def family(self, **fields: Any) -> tuple[Session, Session]:
        parent = await self.top()
        return parent, await self.child(parent, **fields)

    async def store(
        self,
        session: Session,
        subject: str,
        type_: str,
        run_id: str,
        data: Json,
        parent_run_id: str | None = None,
    ) -> None:
        """Append an entry of a session, guarded."""
        state = session.state
        entry = Entry[SessionState](
            event_id=uid("e"),
            type=type_,
            time=state.updated_at,
            run_id=run_id,
            session_id=state.session_id,
            parent_run_id=parent_run_id,
            parent_session_id=state.parent_session_id,
            root_session_id=state.root_session_id,
            agent=state.agent,
            data=data,
            state=state,
        )
        headers = {
            log.H_EXPECTED_SEQ: str(session.seq),
            log.H_EXPECTED_SUBJECT: log.session_guard(session.id),
            log.H_EVENT_ID: entry.event_id,
        }
        ack = await self.js.publish(subject, entry.model_dump_json().encode(), headers=headers)
        session.seq = ack.seq

    # What stands in the streams

    async def read(self, stream: str, *filters: str) -> list[tuple[str, bytes]]:
        """All messages of a stream under these filters, in order."""
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, filter_subjects=list(filters))
        info = await self.js.add_consumer(stream, config, inactive_threshold=30)
        found: list[tuple[str, bytes]] = []
        left = info.num_pending or 0
        if left:
            pull = await self.js.pull_subscribe_bind(consumer=info.name, stream=stream)
            while len(found) < left:
                batch = await pull.fetch(min(500, left - len(found)), timeout=5)
                found += [(message.subject, message.data) for message in batch]
            await pull.unsubscribe()
        await self.js.delete_consumer(stream, info.name)
        return found

    async def topic(self, run_id: str, tail: str = "question.>") -> list[tuple[str, Json]]:
        """The events on a run's topic, as (subject, body)."""
        return [(s, json.loads(b)) for s, b in await self.read(streams.TOPICS, f"run.{run_id}.{tail}")]

    async def in_log(self, run_id: str) -> list[str]:
        """The question events of a run as the log has them: `<request_id>.<event>`, in order."""
        found = await self.read(streams.LOG, log.question_guard(run_id))
        return [".".join(log.tokens(subject)[2:4]) for subject, _ in found]

    async def ends(self, run_id: str, request_id: str) -> list[str]:
        """The ends of a question in the log."""
        events = [e.partition(".") for e in await self.in_log(run_id)]
        return [event for id_, _, event in events if id_ == request_id and event not in {"requested", "late"}]

    async def inbox_of(self, session_id: str) -> dict[str, Json | None]:
        """What stands in a session's inbox, by item."""
        found = await self.read(streams.INBOX, subjects.inbox_all(session_id))
        return {s.split(".")[2]: json.loads(b) if b else None for s, b in found}

    async def timers(self) -> list[tuple[str, bytes]]:
        """What is scheduled, or has fired and is not carried out. A work queue is read one by one."""
        found: list[tuple[str, bytes]] = []
        info = await self.js.stream_info(streams.TIMERS)
        for seq in range(info.state.first_seq, info.state.last_seq + 1):
            with suppress(NotFoundError):
                message = await self.js.get_msg(streams.TIMERS, seq)
                found.append((message.subject or "", message.data or b""))
        return found

    async def dead(self) -> list[Json]:
        return [json.loads(b) for _, b in await self.read(streams.DEAD, subjects.dead("question_broker"))]
