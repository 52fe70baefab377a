"""Requests to JetStream's API whose outcome is always known: an answer, or Unavailable."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from upcall_contracts.log import H_EVENT_ID, H_EXPECTED_SEQ, H_EXPECTED_SUBJECT
from upcall_contracts.times import from_wire, to_wire
from upcall_contracts.tracing import Trace, trace_of

from . import tracing
from .errors import Conflict, TooLarge, Unavailable
from .metrics import CONFLICTS

_OFFLINE = (nats.errors.Error, TimeoutError, ConnectionError, OSError)
_NOT_FOUND = "404"
_GUARD_FAILED = frozenset({10071, 10164})  # wrong last sequence; on replicated streams also one in process
_STREAM_FULL = 10077
_READ_TIMEOUT_S = 2.0
_WRITE_TIMEOUT_S = 3.0
_WRITE_DEADLINE_S = 20.0
_SCAN_BATCH = 256
_SCAN_PULL_S = 5.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as a stream has it."""

    seq: int
    subject: str
    body: bytes
    timestamp: str
    event_id: str | None = None
    trace: Trace | None = None
    """The context in which it was stored; a scan does not read it."""

    @property
    def time_ms(self) -> int:
        """When JetStream stored it, in epoch ms."""
        return from_wire(self.timestamp)


class StreamClient:
    """Reads, guarded appends and scans of one stream."""

    def __init__(self, connection: Callable[[], Client], stream: str) -> None:
        self._connection = connection
        self.stream = stream
        self._leader_only: bool | None = None

    # Reading

    async def last(self, subject_filter: str) -> Stored | None:
        """The last message under a filter, wildcards included, as the stream's leader has it."""
        return await self._get({"last_by_subj": subject_filter})

    async def next(self, subject_filter: str, from_seq: int) -> Stored | None:
        """The first message under a filter at or after a sequence."""
        return await self._get({"next_by_subj": subject_filter, "seq": max(1, from_seq)})

    async def next_since(self, subject_filter: str, from_ms: int) -> Stored | None:
        """The first message under a filter that was stored at or after an epoch ms of JetStream's clock."""
        return await self._get({"next_by_subj": subject_filter, "start_time": to_wire(from_ms)})

    async def info(self, **request: Any) -> dict[str, Any]:
        """The answer of STREAM.INFO."""
        return await self.api(f"STREAM.INFO.{self.stream}", request)

    async def now(self) -> int:
        """JetStream's clock, in epoch ms. Raises Unavailable."""
        return from_wire((await self._described())["ts"])

    async def counts(self, subject_filter: str) -> dict[str, int]:
        """How many messages each subject under a filter has. Raises Unavailable."""
        return (await self._described(subjects_filter=subject_filter))["state"].get("subjects") or {}

    async def _described(self, **request: Any) -> dict[str, Any]:
        info = await self.info(**request)
        if "error" in info:
            raise Unavailable(f"{self.stream}: {info['error']}")
        return info

    async def api(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        """A request to the API; Unavailable where nobody answers."""
        reply = await self._request(f"$JS.API.{verb}", json.dumps(request).encode(), None, _READ_TIMEOUT_S)
        return json.loads(reply.data)

    async def _get(self, request: dict[str, Any]) -> Stored | None:
        if self._leader_only is None:
            config = (await self.info()).get("config", {})
            # A lone server is its own leader, and a direct get is the faster way to ask it.
            self._leader_only = config.get("num_replicas", 1) > 1 or not config.get("allow_direct")
        raw = json.dumps(request).encode()
        if self._leader_only:
            return await self._get_from_leader(raw)
        reply = await self._request(f"$JS.API.DIRECT.GET.{self.stream}", raw, None, _READ_TIMEOUT_S)
        headers = reply.headers or {}
        status = headers.get("Status")
        if status == _NOT_FOUND:
            return None
        if status is not None:
            raise Unavailable(f"{self.stream}: direct get answered {status} {headers.get('Description')}")
        return Stored(
            int(headers["Nats-Sequence"]),
            headers["Nats-Subject"],
            reply.data,
            headers["Nats-Time-Stamp"],
            headers.get(H_EVENT_ID),
            trace_of(headers),
        )

    async def _get_from_leader(self, raw: bytes) -> Stored | None:
        reply = await self._request(f"$JS.API.STREAM.MSG.GET.{self.stream}", raw, None, _READ_TIMEOUT_S)
        answer = json.loads(reply.data)
        error = answer.get("error")
        if error is not None:
            if error.get("code") == int(_NOT_FOUND):
                return None
            raise Unavailable(f"{self.stream}: {error}")
        message = answer["message"]
        head = base64.b64decode(message["hdrs"]).decode() if message.get("hdrs") else ""
        parts = [line.partition(":") for line in head.split("\r\n")]
        headers = {name: value.strip() for name, colon, value in parts if colon}
        return Stored(
            message["seq"],
            message["subject"],
            base64.b64decode(message["data"]) if message.get("data") else b"",
            message["time"],
            headers.get(H_EVENT_ID),
            trace_of(headers),
        )

    async def scan(
        self, filters: list[str], from_seq: int = 1, *, last_per_subject: bool = False
    ) -> AsyncIterator[Stored]:
        """All messages under the filters from a sequence on, in order, until the end as it is at the start.

        With `last_per_subject` only the last message of each subject. The consumer is ephemeral, in memory,
        and gone when the scan ends.
        """
        connection = self._connection()
        config: dict[str, Any] = {
            "filter_subjects": filters,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30_000_000_000,
        }
        if last_per_subject:
            config["deliver_policy"] = "last_per_subject"
        else:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, from_seq)}
        made = await self.api(
            f"CONSUMER.CREATE.{self.stream}", {"stream_name": self.stream, "config": config}
        )
        if "error" in made:
            raise Unavailable(f"{self.stream}: {made['error']}")
        name, left = made["name"], made.get("num_pending", 0)
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox, pending_msgs_limit=-1, pending_bytes_limit=-1)
        try:
            while left > 0:
                want = min(left, _SCAN_BATCH)
                pull = json.dumps({"batch": want, "expires": int(_SCAN_PULL_S * 1e9)}).encode()
                await connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{name}", pull, reply=inbox)
                got = 0
                while got < want:
                    try:
                        message = await subscription.next_msg(timeout=_SCAN_PULL_S + 1)
                    except _OFFLINE as error:
                        raise Unavailable(f"{self.stream}: the scan broke off: {error!r}") from error
                    if message.headers and "Status" in message.headers and not message.reply:
                        break
                    got += 1
                    metadata = message.metadata
                    yield Stored(
                        metadata.sequence.stream,
                        message.subject,
                        message.data,
                        metadata.timestamp.isoformat(),
                        (message.headers or {}).get(H_EVENT_ID),
                    )
                left = left - got if got == want else min(left - got, await self._left(name))
        finally:
            await subscription.unsubscribe()
            await connection.publish(f"$JS.API.CONSUMER.DELETE.{self.stream}.{name}", b"")

    async def _left(self, consumer: str) -> int:
        """How much a scan has still to read, asked where a pull ended early: something was purged meanwhile.

        Or the consumer is gone, since the server was started anew: then the scan has broken off, and what was
        read must not pass for the whole.
        """
        info = await self.api(f"CONSUMER.INFO.{self.stream}.{consumer}", {})
        if "error" in info:
            raise Unavailable(f"{self.stream}: the scan broke off: {info['error']}")
        return int(info.get("num_pending", 0))

    # Writing

    async def append(self, subject: str, body: bytes, *, guard: str, expected: int, event_id: str) -> int:
        """Store a message if `expected` is still the last sequence under `guard`; return its sequence.

        The outcome is always known: after a publish that nobody answered, the first message behind `expected`
        is read, and its event id tells whether it is ours. Raises Conflict if another one came first, and
        Unavailable if JetStream stays away; the message may then be stored all the same, and whoever decides
        again finds it.
        """
        headers = {H_EXPECTED_SEQ: str(expected), H_EXPECTED_SUBJECT: guard, H_EVENT_ID: event_id}
        give_up = asyncio.get_running_loop().time() + _WRITE_DEADLINE_S
        pause = 0.05
        while True:
            try:
                answer = await self._publish(subject, body, headers)
                error = answer.get("error")
                if error is None:
                    tracing.stored(subject)
                    return int(answer["seq"])
                if error.get("err_code") in _GUARD_FAILED:
                    first = await self.next(guard, expected + 1)
                    if first is not None and first.event_id == event_id:
                        return first.seq
                    if first is not None or error["err_code"] != 10164:
                        CONFLICTS.inc()
                        raise Conflict(guard, expected)
                elif error.get("err_code") == _STREAM_FULL or error.get("code") == 400:
                    raise Unavailable(f"{self.stream} refused a write: {error}")
            except Unavailable:
                if asyncio.get_running_loop().time() > give_up:
                    raise
            if asyncio.get_running_loop().time() > give_up:
                raise Unavailable(f"{self.stream}: the outcome of a write is unknown")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    async def put(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> int:
        """Store a message without a guard; return its sequence. Raises Unavailable or, guarded by headers of
        the caller's, Conflict."""
        answer = await self._publish(subject, body, headers)
        error = answer.get("error")
        if error is None:
            return int(answer["seq"])
        if error.get("err_code") in _GUARD_FAILED:
            raise Conflict(subject, int((headers or {}).get(H_EXPECTED_SEQ, "0")))
        raise Unavailable(f"{self.stream} refused a write: {error}")

    async def delete(self, seq: int) -> None:
        """Remove a message; one that is gone already is none to remove. Raises Unavailable."""
        answer = await self.api(f"STREAM.MSG.DELETE.{self.stream}", {"seq": seq, "no_erase": True})
        error = answer.get("error")
        # The server has more than one code for a message that is not there.
        if error is not None and await self._get({"seq": seq}) is not None:
            raise Unavailable(f"{self.stream} did not remove {seq}: {error}")

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str] | None) -> dict[str, Any]:
        reply = await self._request(subject, body, tracing.outgoing(headers), _WRITE_TIMEOUT_S)
        return json.loads(reply.data)

    async def _request(
        self, subject: str, body: bytes, headers: dict[str, str] | None, timeout_s: float
    ) -> Msg:
        connection = self._connection()
        if not connection.is_connected:
            # Published now it would sit in the client's buffer and be stored after the reconnect.
            raise Unavailable("not connected to NATS")
        try:
            return await connection.request(subject, body, timeout=timeout_s, headers=headers)
        except nats.errors.MaxPayloadError as error:  # it would be too large the next time, too
            raise TooLarge(subject, len(body)) from error
        except _OFFLINE as error:
            raise Unavailable(f"{subject.split('.', maxsplit=1)[0]}: {error!r}") from error
