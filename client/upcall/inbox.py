"""The inbox of a session as an async iterator: first what is not handled yet, then what comes."""

import asyncio
import json
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import FetchTimeoutError
from pydantic import ValidationError

from upcall_contracts import streams, subjects
from upcall_contracts.events import Event

from . import tracing
from .errors import ForbiddenError
from .items import Item, read_item
from .wire import TROUBLE, Wire, log

if TYPE_CHECKING:
    from .parent import Parent

_FETCH: Final = 10.0
_HEARTBEAT: Final = 3.0  # of the server, while it has nothing for us
_FORGET_AFTER: Final = 30.0  # an unused consumer goes by itself
_PAUSE: Final = 0.5


class Inbox:
    """Reads `inbox.<session_id>.>` through a consumer of its own, and starts over whenever that breaks.

    The stream keeps the last message of each item, so a fresh start gives exactly what is not handled; what
    was given before is not given twice. Items that a foreground call waits for (`for_run`) are left to it.
    """

    def __init__(self, wire: Wire, parent: "Parent") -> None:
        self._wire = wire
        self._parent = parent
        self._items: deque[tuple[Item, tracing.Origin | None]] = deque()
        self._changed = asyncio.Event()
        self._seen: set[tuple[str, str]] = set()
        self._over: set[str] = set()  # ended or handled since it was read
        self._reader: asyncio.Task[None] | None = None

    def __aiter__(self) -> "Inbox":
        return self

    async def __anext__(self) -> Item:
        """The next item; waits for ever. Giving up a wait loses nothing."""
        if self._reader is None:
            self._reader = self._wire.read(self._read())
            self._reader.add_done_callback(lambda _: self._changed.set())
        while True:
            while self._items:
                item, origin = self._items.popleft()
                if item.item_id not in self._over and item.item_id not in self._parent.taken:
                    return replace(item, origin=item.received_from(origin))
            if self._reader.done():
                self._reader.result()  # its error is the caller's
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    async def next(self, within: float) -> Item | None:
        """The next item, or None when none comes in so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await anext(self)
        return None

    async def close(self) -> None:
        """Stop reading; nothing is marked as handled by that."""
        if self._reader:
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def __aenter__(self) -> "Inbox":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _read(self) -> None:
        session_id = self._parent.session_id
        inbox = subjects.inbox_all(session_id).lower()
        while not self._wire.nc.is_closed:
            reader = asyncio.create_task(self._read_until_broken())
            reconnected = asyncio.ensure_future(self._wire.reconnected())
            try:
                await asyncio.wait({reader, reconnected}, return_when=asyncio.FIRST_COMPLETED)
                if reader.done() and not isinstance(reader.exception(), TROUBLE):
                    reader.result()
                if any(subject.endswith(inbox) for subject in self._wire.violations):
                    raise ForbiddenError(f"read the inbox of {session_id}", session_id)
                if reader.done():
                    log.debug("inbox of %s: %r", session_id, reader.exception())
                    await asyncio.sleep(_PAUSE)
            finally:
                reconnected.cancel()
                reader.cancel()
                with suppress(asyncio.CancelledError, *TROUBLE):
                    await reader

    async def _read_until_broken(self) -> None:
        js = self._wire.nc.jetstream(timeout=5)
        info = await js.add_consumer(streams.INBOX, _fresh_consumer(self._parent.session_id))
        subscription = await js.pull_subscribe_bind(consumer=info.name, stream=streams.INBOX)
        try:
            while True:
                await self._take_next(subscription)
        finally:
            with suppress(*TROUBLE):
                await subscription.unsubscribe()
                if self._wire.nc.is_connected:
                    await js.delete_consumer(streams.INBOX, info.name)

    async def _take_next(self, subscription: JetStreamContext.PullSubscription) -> None:
        """A fetch that hears nothing at all, not even a heartbeat, raises: the consumer is gone."""
        try:
            (message,) = await subscription.fetch(1, timeout=_FETCH, heartbeat=_HEARTBEAT)
        except FetchTimeoutError:
            return
        self._take(message)

    def _take(self, message: Msg) -> None:
        item_id = message.subject.rpartition(".")[2]
        if not message.data:
            self._over.add(item_id)
            return
        try:
            event = Event.model_validate(json.loads(message.data))
        except (ValueError, ValidationError):
            log.warning("%s holds what this version can't read; skipped", message.subject)
            return
        if event.item and event.item.for_run:
            return  # written anew, with the same item_id, if the call that waits for it gives up
        item = read_item(event, self._parent)
        if item is None:
            self._over.add(item_id)
        elif (item_id, event.type) not in self._seen:
            self._seen.add((item_id, event.type))
            self._items.append((item, tracing.origin_of(message.headers)))
            self._changed.set()


def _fresh_consumer(session_id: str) -> ConsumerConfig:
    return ConsumerConfig(
        name=f"inbox-{uuid4().hex}",  # in the request's subject, with the filter: permissions see them there
        filter_subject=subjects.inbox_all(session_id),
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=_FORGET_AFTER,
        mem_storage=True,
        num_replicas=1,
    )
