"""Sessions in the log: one load, one guarded append, and what else is read there."""

import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from upcall_contracts import log
from upcall_contracts.events import Family
from upcall_contracts.log import CommandMark
from upcall_contracts.records import QuestionRecord, RunRecord, WorkRecord
from upcall_contracts.states import QuestionsState, SessionState
from upcall_contracts.times import to_wire
from upcall_contracts.tracing import Trace
from upcall_shell import tracing
from upcall_shell.jetstream import Stored, StreamClient

from .decisions.results import Decided

_CACHED: Final = 5_000
_TASKS_CACHED: Final = 1_000
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A session as it stands at a sequence of the log."""

    state: SessionState
    seq: int
    trace: Trace | None = None
    """The context in which it was stored."""


class Recent(OrderedDict[str, V]):
    """What was used last; the oldest falls out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def put(self, key: str, value: V) -> V:
        """Remember."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._size:
            self.popitem(last=False)
        return value


class SessionLog:
    """The aggregate of a session. States are cached by sequence: loading still asks the log which is last."""

    def __init__(self, stream: StreamClient) -> None:
        self.stream = stream
        self._states: Recent[Loaded] = Recent(_CACHED)
        self._tasks: Recent[str | None] = Recent(_TASKS_CACHED)

    async def load(self, session_id: str) -> Loaded | None:
        """A session with its active run whole; None if there is none."""
        stored = await self.stream.last(log.session_guard(session_id))
        if stored is None:
            return None
        known = self._states.get(session_id)
        if known is not None and known.seq == stored.seq:
            return known
        entry = orjson.loads(stored.body)
        state = SessionState.model_validate(entry["state"]).carried()
        return self._states.put(session_id, Loaded(await self._with_task(state), stored.seq, stored.trace))

    async def append(self, decided: Decided, expected: int) -> Loaded:
        """Store a decision, if `expected` is still the session's last sequence. Raises Conflict if not."""
        state = decided.state
        event_id = "e_" + uuid.uuid4().hex
        run = state.run
        if run is not None:
            self._tasks.put(run.run_id, run.task)
        seq = await self.stream.append(
            decided.subject,
            _entry(decided, event_id),
            guard=log.session_guard(state.session_id),
            expected=expected,
            event_id=event_id,
        )
        return self._states.put(state.session_id, Loaded(state.carried(), seq, tracing.current()))

    async def run(self, state: SessionState, run_id: str) -> RunRecord | None:
        """A run of a session, active or settled."""
        if state.run is not None and state.run.run_id == run_id:
            return state.run
        stored = await self.stream.last(log.run_filter(state.session_id, run_id))
        return RunRecord.model_validate(orjson.loads(stored.body)["data"]) if stored else None

    async def last_run(self, session_id: str) -> RunRecord | None:
        """The run that a session has, or had last."""
        stored = await self.stream.last(log.last_run_filter(session_id))
        return RunRecord.model_validate(orjson.loads(stored.body)["data"]) if stored else None

    async def work(self, session_id: str, work_id: str) -> WorkRecord | None:
        """Work that has ended; the last one of that id."""
        stored = await self.stream.last(f"log.session.{session_id}.*.{Family.WORK}.{work_id}.>")
        return WorkRecord.model_validate(orjson.loads(stored.body)["data"]) if stored else None

    async def find_run(self, run_id: str) -> str | None:
        """The session of a run, searched for in the whole log: only where no index knows it."""
        stored = await self.stream.last(log.run_anywhere_filter(run_id))
        return log.tokens(stored.subject)[1] if stored else None

    async def child_ids(self, session_id: str) -> list[str]:
        """The ids of a session's children, as the subjects of its spawns name them."""
        return [s.rsplit(".", 1)[1] for s in await self.subjects(log.session_children(session_id))]

    async def subjects(self, subject_filter: str) -> list[str]:
        """The subjects under a filter that have entries."""
        return await subjects_of(self.stream, subject_filter)

    # Questions of a run, which are another aggregate

    async def questions(self, run_id: str) -> QuestionsState | None:
        """The state of a run's questions."""
        stored = await self.stream.last(log.question_guard(run_id))
        return QuestionsState.model_validate(orjson.loads(stored.body)["state"]) if stored else None

    async def question(self, run_id: str, request_id: str) -> QuestionRecord | None:
        """One question of a run."""
        stored = await self.stream.last(log.question_filter(run_id, request_id))
        return QuestionRecord.model_validate(orjson.loads(stored.body)["data"]) if stored else None

    async def open_question(self, run_id: str) -> QuestionRecord | None:
        """The question that a run waits for."""
        state = await self.questions(run_id)
        waiting = state.waiting() if state is not None else None
        return await self.question(run_id, waiting.request_id) if waiting is not None else None

    # Reading many entries

    async def scan(
        self, filters: Sequence[str], from_seq: int = 1
    ) -> AsyncIterator[tuple[Stored, dict[str, Any]]]:
        """Entries under the filters from a sequence on, in order."""
        async for stored in self.stream.scan(list(filters), from_seq):
            yield stored, orjson.loads(stored.body)

    async def _with_task(self, state: SessionState) -> SessionState:
        """An active run's task stands in its last lifecycle entry, and not in every state after it."""
        run = state.run
        if run is None or run.task is not None:
            return state
        if run.run_id not in self._tasks:
            stored = await self.stream.last(log.run_filter(state.session_id, run.run_id))
            self._tasks.put(run.run_id, orjson.loads(stored.body)["data"].get("task") if stored else None)
        return state.model_copy(update={"run": run.model_copy(update={"task": self._tasks[run.run_id]})})


async def subjects_of(stream: StreamClient, subject_filter: str) -> list[str]:
    """The subjects of a stream under a filter that have messages, page by page."""
    found: list[str] = []
    while True:
        info = await stream.info(subjects_filter=subject_filter, offset=len(found))
        page = list(info.get("state", {}).get("subjects") or {})
        found += page
        if not page or len(found) >= info.get("total", 0):
            return found


def read_state(entry: dict[str, Any]) -> SessionState:
    """The state in an entry, without its run's task."""
    return SessionState.model_validate(entry["state"])


def read_mark(entry: dict[str, Any]) -> CommandMark | None:
    """The command that an entry carries out."""
    mark = entry.get("command")
    return CommandMark.model_validate(mark) if mark else None


def _entry(decided: Decided, event_id: str) -> bytes:
    """The body: the public event with every field, and the state with those that say something."""
    state = decided.state
    slim = state
    if state.run is not None:
        slim = state.model_copy(update={"run": state.run.model_copy(update={"task": None})})
    body: dict[str, Any] = {
        "event_id": event_id,
        "type": decided.type,
        "time": to_wire(state.updated_at),
        "run_id": decided.run_id,
        "session_id": state.session_id,
        "parent_run_id": decided.parent_run_id,
        "parent_session_id": state.parent_session_id,
        "root_session_id": state.root_session_id,
        "agent": state.agent,
        "task_id": decided.task_id,
        "data": decided.data.to_wire() if decided.data is not None else {},
        "state": slim.model_dump(mode="json", exclude_defaults=True),
    }
    if decided.item is not None:
        body["item"] = decided.item.to_wire()
    if decided.mark is not None:
        body["command"] = decided.mark.to_wire()
    if decided.history:
        body["history"] = list(decided.history)
    return orjson.dumps(body)
