"""The inbox of a session as an async iterator: first what is not handled yet, then what comes."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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
from upcall_contracts.records import ReportRecord, ReportStatus
from upcall_contracts.texts import report_item_text

from . import tracing
from .errors import ForbiddenError
from .items import Item, Report, read_item
from .wire import TROUBLE, Wire, log

if TYPE_CHECKING:
    from .parent import Parent

_FETCH: Final = 10.0
_HEARTBEAT: Final = 3.0  # of the server, while it has nothing for us
_FORGET_AFTER: Final = 30.0  # an unused consumer goes by itself
_PAUSE: Final = 0.5


class Waits:
    """What a parent's waits and inboxes know of each other, so that a report comes through one of them."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set whenever an inbox may have something to give that it had not before."""
        self.returned: set[str] = set()
        """Items that a wait has returned; an inbox that still holds them skips them."""
        self.handled: set[str] = set()
        """Items that the services have handled, as far as this process knows."""
        self.given_up: dict[str, ReportRecord] = {}
        """Reports whose wait was given up while it took them. They may be handled: we have to give them."""
        self._runs: Counter[str] = Counter()

    @contextmanager
    def of(self, run_id: str) -> Iterator[None]:
        """While in here, somebody waits for this run, and inboxes leave its report to the wait."""
        self._runs[run_id] += 1
        try:
            yield
        finally:
            self._runs[run_id] -= 1
            if not self._runs[run_id]:
                del self._runs[run_id]
            self.changed.set()

    def will_return(self, item: Item) -> bool:
        """Whether a wait in progress will return it. Questions are everybody's, until they end."""
        return isinstance(item, Report) and any(run_id in self._runs for run_id in item.record.runs)

    def returns(self, reports: Iterable[ReportRecord]) -> None:
        """A wait returns these: they are no items any more."""
        for report in reports:
            self.returned.add(report.period_id)
            self.given_up.pop(report.period_id, None)

    def give_up(self, reports: Iterable[ReportRecord]) -> None:
        """A wait was given up while it took these: whoever waits or reads next is to have them."""
        for report in reports:
            if report.status is ReportStatus.DELIVERED and report.period_id not in self.returned:
                self.given_up[report.period_id] = report

    def handle(self, named: Iterable[str], handled: Iterable[str]) -> None:
        """The items named have been dealt with; these the services have handled for that."""
        self.handled.update(handled)
        for item_id in named:
            self.given_up.pop(item_id, None)


class Inbox:
    """Reads `inbox.<session_id>.>` through a consumer of its own, and starts over whenever that breaks.

    The stream keeps the last message of each item, so a fresh start gives exactly what is not handled; what
    was given before is not given twice. Items that a foreground call waits for (`for_run`) are left to it. A
    report that a wait of this parent object is to return is held back until the wait has, or has given up.
    """

    def __init__(self, wire: Wire, parent: "Parent") -> None:
        self._wire = wire
        self._parent = parent
        self._items: deque[tuple[Item, tracing.Origin | None]] = deque()
        self._waits = parent.waits
        self._seen: set[str] = set()
        self._over: set[str] = set()  # ended or handled since it was read
        self._reader: asyncio.Task[None] | None = None

    def __aiter__(self) -> "Inbox":
        return self

    async def __anext__(self) -> Item:
        """The next item; waits for ever. Giving up a wait loses nothing."""
        if self._reader is None:
            self._reader = self._wire.read(self._read())
            self._reader.add_done_callback(lambda _: self._waits.changed.set())
        while True:
            if found := self._pop():
                item, origin = found
                return replace(item, origin=item.received_from(origin))
            if self._reader.done():
                self._reader.result()  # its error is the caller's
                raise StopAsyncIteration
            self._waits.changed.clear()
            await self._waits.changed.wait()

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

    def _pop(self) -> tuple[Item, tracing.Origin | None] | None:
        """The first item that is still to be given; those that a wait will return keep their places."""
        for report in self._waits.given_up.values():
            self._put(Report(report, report_item_text(report), self._parent), None)
        place = 0
        while place < len(self._items):
            item, origin = self._items[place]
            if self._waits.will_return(item):
                place += 1
                continue
            del self._items[place]
            if not self._is_over(item.item_id):
                return item, origin
        return None

    def _is_over(self, item_id: str) -> bool:
        if item_id in self._waits.returned:
            return True
        return item_id in self._over and item_id not in self._waits.given_up

    def _put(self, item: Item, origin: tracing.Origin | None) -> None:
        if item.item_id not in self._seen:
            self._seen.add(item.item_id)
            self._items.append((item, origin))
            self._waits.changed.set()

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
            self._waits.handled.add(item_id)
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
        else:
            self._put(item, tracing.origin_of(message.headers))


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
