"""Real sessions with real children, driven with plain nats-py: no client package, only the wire."""

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

WAIT_S = 60.0
WHY = "Both are in use here, and the choice decides the schema of the orders table and its migrations."
OPTIONS = ["SQLite, as the tests do", "PostgreSQL, as production does"]
ANSWER = "PostgreSQL, as production does"

Json = dict[str, Any]


def question(number: int) -> str:
    """A question of the usual length."""
    return f"Which database should the orders service be written for, given what step {number} has found?"


@dataclass(slots=True)
class Run:
    """A child's active run. It asks one question at a time, and so many in all."""

    parent_id: str
    session_id: str
    run_id: str
    left: int
    answered: "asyncio.Future[Json] | None" = field(default=None, repr=False)


class Refused(Exception):
    """A command that had to be carried out was refused."""


class Stage:
    """Parents and children on two connections, as if in two processes."""

    def __init__(self, child: Client, parent: Client, *, with_replies: bool) -> None:
        self._child, self._parent = child, parent
        self._child_js, self._parent_js = child.jetstream(timeout=WAIT_S), parent.jetstream(timeout=WAIT_S)
        self._with_replies = with_replies
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._replies: dict[str, asyncio.Future[Json]] = {}
        self._inbox = child.new_inbox()

    async def start(self) -> None:
        """Listen for replies."""
        await self._child.subscribe(f"{self._inbox}.*", cb=self._on_reply, pending_msgs_limit=-1)

    # Setting the stage

    async def command(self, caller: str, command: str, **body: Any) -> Json:
        """Send a command and have its result."""
        name = str(next(self._numbers))
        reply: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._replies[name] = reply
        headers = {"reply_to": f"{self._inbox}.{name}"}
        await self._child_js.publish(f"cmd.{caller}.{command}", json.dumps(body).encode(), headers=headers)
        said = await asyncio.wait_for(reply, WAIT_S)
        if not said["ok"]:
            raise Refused(f"{command}: {said['error']['code']}: {said['error']['message']}")
        return said["result"]

    async def open_parent(self) -> str:
        """A top-level session."""
        session_id = f"parent-{uuid.uuid4().hex[:12]}"
        await self.command(session_id, "session.open", agent="lead")
        return session_id

    async def spawn(self, parent_id: str, questions: int) -> Run:
        """A child of the parent's that is hosted here, with its run active."""
        made = await self.command(
            parent_id, "session.spawn", agent="worker", host="self", task="Build the orders service."
        )
        return Run(parent_id, made["session_id"], made["run_id"], questions)

    async def ask_and_leave(self, run: Run) -> None:
        """Ask a question that nobody answers."""
        await self.command(run.session_id, "question.ask", **self._ask(run, timeout_ms=86_400_000))

    @asynccontextmanager
    async def answering(self, parent_id: str) -> AsyncIterator[None]:
        """The parent reads its inbox and answers what is asked, as its host would."""
        subscription = await self._parent_js.subscribe(
            f"inbox.{parent_id}.>",
            stream="INBOX",
            cb=self._on_item,
            manual_ack=True,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.NEW, ack_policy=AckPolicy.NONE, mem_storage=True
            ),
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
        try:
            yield
        finally:
            await subscription.unsubscribe()

    async def watch(self, run: Run) -> None:
        """The child's side: it sees its run's questions, and goes on with the answer."""

        async def on_event(message: Msg) -> None:
            if message.subject.endswith(".requested"):
                return
            if run.answered is not None and not run.answered.done():
                run.answered.set_result(json.loads(message.data))

        await self._child.subscribe(
            f"run.{run.run_id}.question.>", cb=on_event, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    # The round trip

    async def round(self, run: Run) -> None:
        """Ask; the parent reads it in its inbox and answers; the child has the answer."""
        run.left -= 1
        run.answered = asyncio.get_running_loop().create_future()
        subject = f"cmd.{run.session_id}.question.ask"
        await self._child_js.publish(
            subject, json.dumps(self._ask(run)).encode(), headers=self._reply_header()
        )
        event = await asyncio.wait_for(run.answered, WAIT_S)
        if event["type"] != "parent_question_answered" or event["data"]["answer"] != ANSWER:
            raise Refused(f"not the answer that was given: {event['type']}")

    async def _on_item(self, message: Msg) -> None:
        item = json.loads(message.data)
        if item["type"] != "parent_question_requested":
            return
        body = {"request_id": item["item"]["item_id"], "answer": ANSWER, "selected_option": ANSWER}
        subject = f"cmd.{item['parent_session_id']}.question.answer"
        task = asyncio.create_task(
            self._parent_js.publish(subject, json.dumps(body).encode(), headers=self._reply_header())
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ask(self, run: Run, timeout_ms: int = 300_000) -> Json:
        number = next(self._numbers)
        return {
            "run_id": run.run_id,
            "question": question(number),
            "why_blocked": WHY,
            "options": OPTIONS,
            "recommended_option": OPTIONS[0],
            "timeout_ms": timeout_ms,
            "command_id": f"ask-{number}",
        }

    def _reply_header(self) -> dict[str, str] | None:
        return {"reply_to": f"{self._inbox}.0"} if self._with_replies else None

    async def _on_reply(self, message: Msg) -> None:
        waiting = self._replies.pop(message.subject.rpartition(".")[2], None)
        said = json.loads(message.data)
        if waiting is not None:
            waiting.set_result(said)
        elif not said["ok"]:
            raise Refused(f"{said['error']['code']}: {said['error']['message']}")
