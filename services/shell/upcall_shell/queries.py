"""Queries on the wire: plain requests, answered by one instance."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from nats.aio.msg import Msg

from upcall_contracts import limits, refusals, subjects
from upcall_contracts.errors import Refusal, ok
from upcall_contracts.parsing import parse_query_message

from . import tracing
from .errors import Conflict, Unavailable
from .metrics import QUERIES

logger = structlog.get_logger()
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Query(Generic[B]):
    """A query as a handler gets it."""

    caller: str
    noun: str
    verb: str
    body: B


QueryHandler = Callable[[Query[Any]], Awaitable[dict[str, Any] | Refusal]]
Reply = Callable[[str, bytes], Awaitable[None]]


class QueryDesk:
    """Answers a service's queries side by side; a query that fails is answered with `internal`."""

    def __init__(self, handlers: Mapping[tuple[str, str], QueryHandler], reply: Reply) -> None:
        self._handlers = handlers
        self._reply = reply
        self._in_hand: set[asyncio.Task[None]] = set()

    async def accept(self, message: Msg) -> None:
        """Take a query in hand; returns at once. One that asks for no reply under _INBOX. is dropped."""
        if not subjects.is_reply_subject(message.reply or ""):
            return
        task = asyncio.create_task(self._work(message))
        self._in_hand.add(task)
        task.add_done_callback(self._in_hand.discard)

    async def drain(self, grace_s: float) -> None:
        """Wait for what is in hand."""
        if self._in_hand:
            await asyncio.wait(list(self._in_hand), timeout=grace_s)

    async def _work(self, message: Msg) -> None:
        name, began = "unparsed", time.time_ns()
        try:
            parsed = parse_query_message(message.subject, message.data or b"{}")
            if isinstance(parsed, Refusal):
                outcome: dict[str, Any] | Refusal = parsed
            else:
                address, body = parsed
                name = f"{address.noun}.{address.verb}"
                handler = self._handlers.get((address.noun, address.verb))
                if handler is None:
                    raise LookupError(f"no handler for {name}")
                outcome = await handler(Query(address.caller, address.noun, address.verb, body))
        except (Unavailable, Conflict) as error:
            logger.warning("query not answered", subject=message.subject, error=str(error))
            outcome = refusals.internal()
        except Exception:
            logger.exception("query failed", subject=message.subject)
            outcome = refusals.internal()
        raw = _encode(outcome)
        if len(raw) > limits.REPLY_MAX_BYTES:
            logger.error("reply too large", subject=message.subject, size=len(raw))
            outcome = refusals.internal()
            raw = _encode(outcome)
        code = outcome.code.value if isinstance(outcome, Refusal) else "ok"
        QUERIES.labels(name, code).inc()
        await self._reply(message.reply, raw)
        tracing.answered_query(name, message, began, code)


class Page:
    """A page of a list: at most as many records as were asked for and fit into a reply.

    Measured as they are sent: JSON escapes text, and may need three times the bytes that the log has.
    `at_least` so many are on it, fit or not.
    """

    def __init__(self, limit: int, *, at_least: int = 1) -> None:
        self.records: list[dict[str, Any]] = []
        self._limit = limit
        self._at_least = at_least
        self._size = 0

    def takes(self, record: dict[str, Any]) -> bool:
        """Add a record; False where it, and all after it, have no room."""
        self._size += len(json.dumps(record))
        has_room = len(self.records) < self._at_least or self._size <= limits.PAGE_MAX_BYTES
        if len(self.records) == self._limit or not has_room:
            return False
        self.records.append(record)
        return True


def as_many_as_fit(records: Sequence[dict[str, Any]], *, at_least: int = 1) -> list[dict[str, Any]]:
    """The records of a page, from the first one on, that a reply can hold; so many in any case."""
    page = Page(len(records), at_least=at_least)
    for record in records:
        if not page.takes(record):
            break
    return page.records


def _encode(outcome: dict[str, Any] | Refusal) -> bytes:
    reply = outcome.to_reply() if isinstance(outcome, Refusal) else ok(outcome)
    return json.dumps(reply, separators=(",", ":")).encode()
