"""What JetStream says of a service's consumers and of the streams: how far behind, and how large."""

from collections.abc import Sequence
from typing import Any

from upcall_contracts import streams
from upcall_contracts.streams import ConsumerDefinition

from .errors import Unavailable
from .figures import Figures
from .jetstream import StreamClient
from .metrics import ACK_FLOOR, ACK_PENDING, PENDING, STREAM_BYTES, STREAM_MESSAGES


class Backlog:
    """Reads them through JetStream's API."""

    def __init__(self, stream: StreamClient, consumers: Sequence[ConsumerDefinition]) -> None:
        """`consumers` is read anew each time: the service adds its own later."""
        self._stream = stream
        self._consumers = consumers

    def add_to(self, figures: Figures) -> None:
        """Have them read on schedule."""
        figures.add("consumers", self.consumers, PENDING, ACK_PENDING, ACK_FLOOR)
        figures.add("streams", self.streams, STREAM_BYTES, STREAM_MESSAGES)

    async def consumers(self) -> None:
        """How much waits for each consumer, is in hand, and is done. Raises Unavailable."""
        for consumer in self._consumers:
            info = await self._api(f"CONSUMER.INFO.{consumer.stream}.{consumer.name}")
            labels = (consumer.stream, consumer.name)
            PENDING.labels(*labels).set(info["num_pending"])
            ACK_PENDING.labels(*labels).set(info["num_ack_pending"])
            ACK_FLOOR.labels(*labels).set(info["ack_floor"]["stream_seq"])

    async def streams(self) -> None:
        """How large each stream is. Raises Unavailable."""
        for stream in streams.STREAMS:
            state = (await self._api(f"STREAM.INFO.{stream.name}"))["state"]
            STREAM_BYTES.labels(stream.name).set(state["bytes"])
            STREAM_MESSAGES.labels(stream.name).set(state["messages"])

    async def _api(self, verb: str) -> dict[str, Any]:
        answer = await self._stream.api(verb, {})
        if "error" in answer:
            raise Unavailable(f"{verb}: {answer['error']}")
        return answer
