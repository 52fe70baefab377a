"""The broker's index in Redis: from ids to aggregates, and lists. Who reads it checks it against the log."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, cast

from redis.asyncio import Redis

from upcall_contracts import keys
from upcall_contracts.log import CommandMark
from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_shell.command_index import CommandIndex, Tries, Try, add_from_log
from upcall_shell.indexing import IndexKeeper
from upcall_shell.redis_gate import RedisCommand, RedisGate

from .stores import Questions, Sessions

SERVICE: Final = "question_broker"
_CACHED: Final = 100_000
_BATCH: Final = 500
_OLDEST: Final = 32  # looked up in the log at a time
_LOOK_S: Final = 0.05


class Known:
    """Facts that never change once they are known, kept in the process."""

    def __init__(self) -> None:
        self._facts: OrderedDict[str, str] = OrderedDict()

    def get(self, key: str) -> str | None:
        """What is known."""
        return self._facts.get(key)

    def put(self, key: str, value: str) -> str:
        """Remember."""
        self._facts[key] = value
        if len(self._facts) > _CACHED:
            self._facts.popitem(last=False)
        return value


class QuestionIndex:
    """Finds a question's run, a run's session, and the questions of a list."""

    def __init__(self, gate: RedisGate, questions: Questions, sessions: Sessions) -> None:
        self._gate = gate
        self._questions = questions
        self._sessions = sessions
        self._known = Known()
        self._waiting: list[QuestionRecord] = []
        self._read = asyncio.Event()
        self.keeper = IndexKeeper(gate, SERVICE, self._rebuild)
        self.commands = CommandIndex(gate, SERVICE)

    async def found_waiting(self) -> list[QuestionRecord]:
        """The questions that waited when the index was last read from the log; each reading is told once."""
        await self._read.wait()
        self._read.clear()
        return self._waiting

    async def session_of_run(self, run_id: str) -> str | None:
        """The session of a run; None if there is no such run."""
        key = keys.run_session(run_id)
        return await self._find(key) or self._remember(key, await self._sessions.find_session(run_id))

    async def run_of_question(self, request_id: str) -> str | None:
        """The run of a question; None if there is no such question."""
        key = keys.question_run(request_id)
        return await self._find(key) or self._remember(key, await self._questions.find_run(request_id))

    async def was_asked_elsewhere(self, mark: CommandMark, request_id: str, run_id: str) -> bool:
        """Whether a question that this run is about to ask was asked by another run before, or just now.

        Where the index is whole its silence is believed; else the log is searched.
        """
        tries = await self.commands.tried(mark, run_id, 0)
        others = tries.of_others(run_id, mark) if tries is not None else []
        if tries is not None and tries.whole and not others:
            return False

        async def is_there() -> bool:
            return await self._questions.find_run(request_id) not in {None, run_id}

        return await _seen(is_there, others, tries)

    async def has_ended_elsewhere(self, mark: CommandMark, run_id: str) -> bool:
        """Whether an answer or cancel of this id has ended a question of another run, or does so just now."""
        tries = await self.commands.tried(mark, run_id, 0)
        others = tries.of_others(run_id, mark) if tries is not None else []

        async def is_there() -> bool:
            states = [(await self._questions.load(each.place)).state for each in others]
            return any(q.end_key == mark.key for state in states if state for q in state.questions)

        return bool(others) and await _seen(is_there, others, tries)

    async def _find(self, key: str) -> str | None:
        known = self._known.get(key)
        if known is not None:
            return known
        found = await self._gate.run(("GET", key))
        return self._known.put(key, cast(bytes, found[0]).decode()) if found and found[0] else None

    def _remember(self, key: str, value: str | None) -> str | None:
        return None if value is None else self._known.put(key, value)

    async def note(self, record: QuestionRecord, *, every: bool = False) -> None:
        """Bring the index up to a record: what its last event has changed, or all there is to know of it."""
        self._known.put(keys.question_run(record.request_id), record.child_run_id or "")
        await self.keeper.note(*_changes(record, every=every))

    async def candidates(self, parent_session_id: str | None, *, waiting: bool, since: int = 0) -> list[str]:
        """Ids of questions, oldest first, for a parent session or for all; may hold too many.

        `since` is the epoch ms at which the first was asked.
        """
        name = _list_name(parent_session_id, waiting=waiting)

        async def look(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=True) as pipe:
                self._gate.look_if_ready(pipe, SERVICE)
                pipe.zrangebyscore(name, since, "+inf")
                return await pipe.execute()

        found = None if self.keeper.doubtful else await self._gate.attempt(look)
        if found is not None and self._gate.was_ready(found[0], found[1]):
            return [cast(bytes, each).decode() for each in found[2]]
        records = await self._read_log(parent_session_id)
        kept = [r for r in records if not waiting or r.status is QuestionStatus.WAITING]
        places = sorted((r.created_at or 0, r.request_id) for r in kept)
        return [request_id for at, request_id in places if at >= since]

    async def open_questions(self) -> tuple[int, int | None] | None:
        """How many questions wait, and when (epoch ms) the oldest was asked; None where the index can't say.

        Cheap, however many there are: the log is asked of the oldest alone, and what has ended is taken out.
        """
        name = keys.questions_open()

        async def look(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=True) as pipe:
                self._gate.look_if_ready(pipe, SERVICE)
                pipe.zcard(name)
                pipe.zrange(name, 0, _OLDEST - 1, withscores=True)
                return await pipe.execute()

        found = None if self.keeper.doubtful else await self._gate.attempt(look)
        if found is None or not self._gate.was_ready(found[0], found[1]):
            return None
        count, oldest = int(found[2]), [(cast(bytes, each).decode(), int(at)) for each, at in found[3]]
        for passed, (request_id, at) in enumerate(oldest):
            if await self._still_waits(request_id):
                return count - passed, at
        return count - len(oldest), None

    async def _still_waits(self, request_id: str) -> bool:
        run_id = await self.run_of_question(request_id)
        record = None if run_id is None else await self._questions.current(run_id, request_id)
        if record is not None and record.status is QuestionStatus.WAITING:
            return True
        await self._gate.attempt(lambda redis: redis.zrem(keys.questions_open(), request_id))
        return False

    async def _read_log(
        self, parent_session_id: str | None = None, marks: list[tuple[CommandMark, str]] | None = None
    ) -> list[QuestionRecord]:
        """All questions as they stand, or those put to a session; and the commands, with the runs they were
        carried out on."""
        last: dict[str, QuestionRecord] = {}
        async for record, mark in self._questions.all():
            if parent_session_id in {None, record.parent_session_id}:
                last[record.request_id] = record
                self._known.put(keys.question_run(record.request_id), record.child_run_id or "")
                if mark is not None and marks is not None:
                    marks.append((mark, record.child_run_id or ""))
        return list(last.values())

    async def _rebuild(self) -> None:
        marks: list[tuple[CommandMark, str]] = []
        records = await self._read_log(marks=marks)
        for begin in range(0, len(marks), _BATCH):
            await self._gate.attempt(partial(_write_marks, marks=marks[begin : begin + _BATCH]))
        for begin in range(0, len(records), _BATCH):
            batch = records[begin : begin + _BATCH]

            changes = [change for record in batch for change in _changes(record, every=True)]
            await self._gate.run(*changes)
        self._waiting = [r for r in records if r.status is QuestionStatus.WAITING]
        self._read.set()


async def _seen(is_there: Callable[[], Awaitable[bool]], others: Sequence[Try], tries: Tries | None) -> bool:
    """Whether the log has it, once nobody has it in hand any more."""
    while True:
        in_hand = tries is not None and any(tries.in_hand(each) for each in others)
        if await is_there():
            return True
        if not in_hand:
            return False
        await asyncio.sleep(_LOOK_S)


async def _write_marks(redis: Redis, *, marks: Sequence[tuple[CommandMark, str]]) -> list[Any]:
    pipe = redis.pipeline(transaction=False)
    for mark, run_id in marks:
        add_from_log(pipe, mark, run_id, 1)
    return await pipe.execute()


def _list_name(parent_session_id: str | None, *, waiting: bool) -> str:
    if parent_session_id is not None:
        return keys.questions_of_parent(parent_session_id)
    return keys.questions_open() if waiting else keys.questions_all()


def _changes(record: QuestionRecord, *, every: bool = False) -> list[RedisCommand]:
    """What to write after a question's last event: what that has changed, or all that is known of it."""
    at, name = record.created_at or 0, record.request_id
    waits = record.status is QuestionStatus.WAITING
    changes: list[RedisCommand] = [
        ("ZADD", keys.questions_open(), at, name) if waits else ("ZREM", keys.questions_open(), name)
    ]
    if every or waits:
        changes += [
            ("SET", keys.question_run(name), record.child_run_id or ""),
            ("ZADD", keys.questions_of_parent(record.parent_session_id or ""), at, name),
            ("ZADD", keys.questions_all(), at, name),
        ]
    return changes
