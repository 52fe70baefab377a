"""INBOX, as the session service reads and writes it: what stands there, emptied, or written anew."""

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from upcall_contracts import subjects
from upcall_contracts.events import EventType
from upcall_contracts.log import H_EXPECTED_SEQ
from upcall_contracts.records import ItemKind
from upcall_contracts.states import InboxEntry
from upcall_contracts.tracing import Trace
from upcall_shell.errors import Conflict, Unavailable
from upcall_shell.jetstream import Stored, StreamClient

_DERIVED_WITHIN_S = 3.0
"""JetStream derives an item within milliseconds of its entry; after a restart it may take longer."""
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An item that stands in an inbox and is not empty."""

    seq: int
    item_id: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        """What it is."""
        return str(self.body["item"]["kind"])

    @property
    def is_over(self) -> bool:
        """A question that has ended invites nobody any more."""
        return self.kind == ItemKind.QUESTION and self.body["type"] != EventType.QUESTION_REQUESTED

    @property
    def text(self) -> str:
        """What a model reads."""
        return str(self.body["item"].get("text") or "")

    @property
    def wakes(self) -> bool:
        """Whether a run is started for it."""
        return bool(self.body["item"].get("wakes"))


class InboxStore:
    """Items by session."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream

    async def items(self, session_id: str) -> list[InboxItem]:
        """What stands in an inbox, oldest first, without what is empty or over."""
        everything = subjects.inbox_all(session_id)
        if await self._stream.last(everything) is None:
            return []
        found = [_read(stored) async for stored in self._stream.scan([everything], last_per_subject=True)]
        open_ = [item for item in found if item is not None and not item.is_over]
        return sorted(open_, key=lambda item: (str(item.body["time"]), item.seq))

    async def item(self, session_id: str, item_id: str) -> InboxItem | None:
        """One item; None if it is not there, or empty."""
        stored = await self._stream.last(subjects.inbox_item(session_id, item_id))
        return _read(stored) if stored is not None else None

    async def is_handled(self, session_id: str, item_id: str) -> bool:
        """Whether an item stands there with an empty body."""
        stored = await self._stream.last(subjects.inbox_item(session_id, item_id))
        return stored is not None and not stored.body

    async def derived(self, session_id: str, item_id: str) -> Stored:
        """What stands under an item's subject, once JetStream has derived it from the log."""
        give_up = asyncio.get_running_loop().time() + _DERIVED_WITHIN_S
        while True:
            stored = await self._stream.last(subjects.inbox_item(session_id, item_id))
            if stored is not None:
                return stored
            if asyncio.get_running_loop().time() > give_up:
                raise Unavailable(f"INBOX has no {session_id}.{item_id} yet")
            await asyncio.sleep(_LOOK_S)

    async def empty(self, session_id: str, item_id: str, seq: int) -> None:
        """Replace an item by an empty body, if it is still the one with this sequence."""
        await self._replace(session_id, item_id, b"", seq)

    async def write_anew(self, session_id: str, entry: InboxEntry) -> None:
        """Make an item that a run waited for an ordinary one. Done again, it changes nothing."""
        while True:
            stored = await self.derived(session_id, entry.item_id)
            item = _read(stored)
            if item is None or item.body["item"].get("for_run") is None:
                return
            changed = {**item.body["item"], "for_run": entry.for_run, "wakes": entry.wakes}
            body = orjson.dumps({**item.body, "item": changed})
            if await self._replace(session_id, entry.item_id, body, stored.seq, stored.trace):
                return

    async def _replace(
        self, session_id: str, item_id: str, body: bytes, seq: int, trace: Trace | None = None
    ) -> bool:
        headers = {H_EXPECTED_SEQ: str(seq), **(trace or {})}
        try:
            await self._stream.put(subjects.inbox_item(session_id, item_id), body, headers)
        except Conflict:
            return False
        return True


def _read(stored: Stored) -> InboxItem | None:
    if not stored.body:
        return None
    item_id = stored.subject.rsplit(".", 1)[1]
    return InboxItem(stored.seq, item_id, orjson.loads(stored.body))
