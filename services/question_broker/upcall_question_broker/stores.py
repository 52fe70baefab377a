"""What the broker reads from the log and appends to it."""

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import structlog

from upcall_contracts import log, texts
from upcall_contracts.events import EVENT_TYPES, Family, Item
from upcall_contracts.log import CommandMark, Entry
from upcall_contracts.records import ItemKind, QuestionRecord, QuestionStatus, RunRecord
from upcall_contracts.states import QuestionsState, SessionState
from upcall_contracts.tracing import Trace
from upcall_shell import tracing
from upcall_shell.errors import Conflict
from upcall_shell.jetstream import Stored, StreamClient

from .decisions.outcomes import Decided

logger = structlog.get_logger()
_CACHED: Final = 50_000
_CACHED_BYTES: Final = 64 * 1024 * 1024  # of questions, as the log has them

QuestionEntry = Entry[QuestionsState]
SessionEntry = Entry[SessionState]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The questions of a run, as they stand at a sequence of the log."""

    seq: int
    """The last sequence under the guard; 0 if the run has asked nothing."""
    state: QuestionsState | None = None
    last: QuestionRecord | None = None
    """The record in the last entry: often the one that is wanted."""
    size: int = 0
    """Bytes of the last entry."""
    trace: Trace | None = None
    """The context in which the last entry was stored."""


class Questions:
    """The aggregate of a run's questions."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream
        self._cache: OrderedDict[str, Loaded] = OrderedDict()
        self._cached_bytes = 0

    async def load(self, run_id: str, *, fresh: bool = True) -> Loaded:
        """The questions of a run. Not `fresh`, what this process knows will do: a guard then decides."""
        known = None if fresh else self._cache.get(run_id)
        if known is not None:
            return known
        stored = await self._stream.last(log.question_guard(run_id))
        if stored is None:
            return Loaded(0)
        entry = QuestionEntry.model_validate_json(stored.body)
        last = QuestionRecord.model_validate(entry.data)
        return self._keep(run_id, Loaded(stored.seq, entry.state, last, len(stored.body), stored.trace))

    async def record(self, run_id: str, request_id: str, loaded: Loaded) -> QuestionRecord | None:
        """One question of a run as it stood when that was loaded; Conflict if it has moved on since."""
        if loaded.last is not None and loaded.last.request_id == request_id:
            return loaded.last
        if loaded.state is None or all(q.request_id != request_id for q in loaded.state.questions):
            return None
        stored = await self._stream.last(log.question_filter(run_id, request_id))
        if stored is not None and stored.seq > loaded.seq:
            raise Conflict(log.question_guard(run_id), loaded.seq)
        return None if stored is None else read_record(stored)

    async def current(self, run_id: str, request_id: str) -> QuestionRecord | None:
        """One question as it stands now."""
        stored = await self._stream.last(log.question_filter(run_id, request_id))
        return None if stored is None else read_record(stored)

    async def trace_of(self, run_id: str, request_id: str, loaded: Loaded) -> Trace | None:
        """The context in which a question was last decided on, which is that of its ask while it waits.

        So its end is linked to the ask, however long it waited and whatever was restarted.
        """
        if loaded.state is None or all(q.request_id != request_id for q in loaded.state.questions):
            return None
        if loaded.last is not None and loaded.last.request_id == request_id:
            return loaded.trace
        stored = await self._stream.last(log.question_filter(run_id, request_id))
        return None if stored is None else stored.trace

    async def append(
        self, decided: Decided, *, expected: int, now: int, mark: CommandMark | None
    ) -> QuestionRecord:
        """Store a decision; Conflict if another came first. `now` is its time in epoch ms."""
        record, state = decided.record, decided.state
        data = record.to_wire()
        if decided.late is not None:
            data["late"] = decided.late.to_wire()
        entry = QuestionEntry(
            event_id="e_" + uuid.uuid4().hex,
            type=EVENT_TYPES[Family.QUESTION, decided.event].value,
            time=now,
            run_id=state.run_id,
            session_id=state.session_id,
            parent_run_id=state.parent_run_id,
            parent_session_id=state.parent_session_id,
            root_session_id=record.root_session_id,
            agent=record.agent,
            task_id=record.task_id,
            data=data,
            item=_item(record),
            state=state,
            command=mark,
        )
        subject = log.question_event(
            state.run_id,
            record.request_id,
            decided.event,
            state.session_id,
            state.parent_run_id,
            state.parent_session_id,
        )
        body = entry.model_dump_json(exclude={"history"}).encode()
        guard = log.question_guard(state.run_id)
        seq = await self._stream.append(
            subject, body, guard=guard, expected=expected, event_id=entry.event_id
        )
        self._keep(state.run_id, Loaded(seq, state, record, len(body), tracing.current()))
        return record

    async def find_run(self, request_id: str) -> str | None:
        """The run of a question, searched for in the whole log: only where the index doesn't know it."""
        stored = await self._stream.last(log.question_anywhere_filter(request_id))
        return None if stored is None else log.tokens(stored.subject)[1]

    async def all(self) -> AsyncIterator[tuple[QuestionRecord, CommandMark | None]]:
        """The questions of the whole log, each event's record in order (the last one of an id counts), with
        the command that it carries out."""
        async for stored in self._stream.scan([log.QUESTION_GUARD_ALL]):
            try:
                yield read_record(stored), read_mark(stored)
            except Unreadable as error:  # of one run; what concerns all others must go on
                logger.error("unreadable entry", error=str(error))

    def _keep(self, run_id: str, loaded: Loaded) -> Loaded:
        """Remember it, unless something newer came while it was read."""
        known = self._cache.get(run_id)
        if known is None or known.seq < loaded.seq:
            self._cache[run_id] = loaded
            self._cached_bytes += loaded.size - (known.size if known is not None else 0)
        self._cache.move_to_end(run_id)
        while len(self._cache) > _CACHED or self._cached_bytes > _CACHED_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.size
        return loaded


class Unreadable(Exception):
    """An entry of the log that is none of ours, or was damaged."""


def read_record(stored: Stored) -> QuestionRecord:
    """The question in an entry."""
    try:
        return QuestionRecord.model_validate(json.loads(stored.body)["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"{stored.subject} at {stored.seq}: {error!r}") from error


def read_mark(stored: Stored) -> CommandMark | None:
    """The command that an entry carries out."""
    mark = json.loads(stored.body).get("command")
    return None if mark is None else CommandMark.model_validate(mark)


def _item(record: QuestionRecord) -> Item:
    return Item(
        item_id=record.request_id,
        kind=ItemKind.QUESTION,
        text=texts.question_item_text(record) if record.status is QuestionStatus.WAITING else "",
        wakes=record.status is QuestionStatus.WAITING,
    )


class Sessions:
    """Sessions, as the broker reads them; it never writes one."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream
        self._parsed: OrderedDict[str, tuple[int, SessionState]] = OrderedDict()

    async def load(self, session_id: str | None) -> SessionState | None:
        """A session as the leader has it; None if there is no such session."""
        if session_id is None:
            return None
        stored = await self._stream.last(log.session_guard(session_id))
        if stored is None:
            return None
        seq, state = self._parsed.get(session_id, (0, None))
        if state is None or seq != stored.seq:
            state = SessionEntry.model_validate_json(stored.body).state
            self._parsed[session_id] = (stored.seq, state)
            if len(self._parsed) > _CACHED:
                self._parsed.popitem(last=False)
        return state

    async def load_with_parent(
        self, session_id: str | None
    ) -> tuple[SessionState | None, SessionState | None]:
        """A session and its parent: at once, where this process knows who the parent is."""
        _, known = self._parsed.get(session_id or "", (0, None))
        if known is None:
            child = await self.load(session_id)
            return child, await self.load(child.parent_session_id if child is not None else None)
        return await asyncio.gather(self.load(session_id), self.load(known.parent_session_id))

    async def run(self, session: SessionState | None, run_id: str) -> RunRecord | None:
        """A run of a session, active or settled."""
        if session is None:
            return None
        if session.run is not None and session.run.run_id == run_id:
            return session.run
        stored = await self._stream.last(log.run_filter(session.session_id, run_id))
        return None if stored is None else RunRecord.model_validate(json.loads(stored.body)["data"])

    async def line(self, session_id: str) -> list[SessionState]:
        """A session and its ancestors."""
        session = await self.load(session_id)
        if session is None:
            return []
        above = await asyncio.gather(*[self.load(each) for each in session.ancestors])
        return [session, *[each for each in above if each is not None]]

    async def find_session(self, run_id: str) -> str | None:
        """The session of a run, searched for in the whole log: only where the index doesn't know it."""
        stored = await self._stream.last(log.run_anywhere_filter(run_id))
        return None if stored is None else log.tokens(stored.subject)[1]


class PendingAnswers:
    """Answers in COMMANDS that nobody has handled yet."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream

    async def stored_before(self, request_id: str, at_ms: int, filter_: str) -> bool:
        """Whether an answer to a question waits that was stored before epoch ms `at_ms`.

        Looks at most at so many; if there are more, it says yes, and whoever asked looks again later.
        """
        seq = 1
        for _ in range(256):
            stored = await self._stream.next(filter_, seq)
            if stored is None or stored.time_ms >= at_ms:
                return False
            if _names(stored.body, request_id):
                return True
            seq = stored.seq + 1
        return True


def _names(body: bytes, request_id: str) -> bool:
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and parsed.get("request_id") == request_id
