"""The floor: two publishes to JetStream with their acknowledgements, and their deliveries. Plain nats-py."""

import asyncio
import json
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

STREAM = "BENCH"


class Floor:
    """Both sides of the bare exchange, each on a connection of its own."""

    def __init__(self, child: Client, parent: Client, ask: bytes, answer: bytes) -> None:
        self._child = child.jetstream(timeout=60)
        self._parent = parent.jetstream(timeout=60)
        self._ask, self._answer = ask, answer
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Make the stream, on files and one server as Upcall's are, and both consumers."""
        await self._child.add_stream(name=STREAM, subjects=["bench.>"], max_bytes=512 * 1024 * 1024)
        await self._subscribe(self._parent, "bench.ask.*", self._on_ask)
        await self._subscribe(self._child, "bench.answer.*", self._on_answer)

    async def round(self, slot: int) -> None:
        """Publish, have it delivered, publish back, have that delivered."""
        answered = asyncio.get_running_loop().create_future()
        self._waiting[str(slot)] = answered
        await self._child.publish(f"bench.ask.{slot}", self._ask)
        await answered

    async def _on_ask(self, message: Msg) -> None:
        slot = message.subject.rpartition(".")[2]
        json.loads(message.data)
        task = asyncio.create_task(self._parent.publish(f"bench.answer.{slot}", self._answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _on_answer(self, message: Msg) -> None:
        json.loads(message.data)
        self._waiting.pop(message.subject.rpartition(".")[2]).set_result(None)

    async def _subscribe(self, js: Any, subject: str, callback: Any) -> None:
        await js.subscribe(
            subject,
            stream=STREAM,
            cb=callback,
            manual_ack=True,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.NEW, ack_policy=AckPolicy.NONE, mem_storage=True
            ),
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )
