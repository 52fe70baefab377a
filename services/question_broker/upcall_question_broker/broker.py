"""Load, decide, commit: what every handler of the broker goes through. Nothing is decided here."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from upcall_contracts import refusals, streams
from upcall_contracts.commands import QuestionAnswer, QuestionAsk, QuestionCancel
from upcall_contracts.errors import Refusal
from upcall_contracts.log import CommandMark
from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_contracts.states import SessionState
from upcall_shell import tracing
from upcall_shell.commands import Command
from upcall_shell.delivery import Again
from upcall_shell.errors import Conflict, Unavailable
from upcall_shell.redis_gate import RedisGate, Turn
from upcall_shell.timers import Timers

from .decisions import ending
from .decisions.answering import decide_answer, late_refusal
from .decisions.asking import AskFacts, AskRules, decide_ask, refuse_early
from .decisions.cancelling import decide_cancel
from .decisions.outcomes import Decided, EndFirst, Repeated
from .index import QuestionIndex
from .metrics import count_end
from .overdue import Overdue
from .stores import Loaded, PendingAnswers, Questions, Sessions

logger = structlog.get_logger()

_TRIES = 50  # conflicts in a row before a message is delivered again
_SIDE_BY_SIDE = 32  # runs that are looked at together
_LOOK_AGAIN_MS = 50  # an answer stored in time is still to be handled
_EARLY_MS = 2_000  # by so much the clocks of JetStream and of this machine may differ

Result = QuestionRecord | Refusal | Again


@dataclass(frozen=True, slots=True)
class Around:
    """A run's questions, and the two sessions that they rest on."""

    loaded: Loaded
    record: QuestionRecord | None
    child: SessionState | None
    parent: SessionState | None


class Broker:
    """The broker's work, without the wire."""

    def __init__(
        self,
        questions: Questions,
        sessions: Sessions,
        index: QuestionIndex,
        pending: PendingAnswers,
        timers: Timers,
        gate: RedisGate,
        rules: AskRules,
        overdue: Overdue,
    ) -> None:
        self._questions = questions
        self._sessions = sessions
        self._index = index
        self._pending = pending
        self._timers = timers
        self._gate = gate
        self._rules = rules
        self._overdue = overdue

    # Asking

    async def ask(self, command: Command[QuestionAsk], *, overloaded: bool) -> Result:
        """Ask a question: the record as it stands, or why not."""
        body, run_id = command.body, command.body.run_id
        early = refuse_early(body)
        if early is not None and body.attempt is not None:
            return early  # else a runner is told first that its attempt is missing
        request_id = command.derive_id("q_")
        async with self._gate.lock(f"question:{run_id}") as turn:
            outcome = await self._ask_decided(command, request_id, turn, overloaded=overloaded)
            if not isinstance(outcome, QuestionRecord) or outcome.status is not QuestionStatus.WAITING:
                return outcome
            return await self._look_again(run_id, outcome)

    async def _ask_decided(
        self, command: Command[QuestionAsk], request_id: str, turn: Turn, *, overloaded: bool
    ) -> Result:
        body, now, mark = command.body, command.stored_at, command.mark()
        run_id = body.run_id
        scheduled = False

        async def step(fresh: bool) -> Result | None:
            nonlocal scheduled
            loaded = await self._questions.load(run_id, fresh=fresh)
            schedules = loaded.state is None or loaded.state.waiting() is None  # else it will be refused
            scheduled = scheduled or schedules
            facts, _ = await asyncio.gather(
                self._ask_facts(command, mark, request_id, loaded),
                self._set_deadline(run_id, request_id, now + body.timeout_ms) if schedules else _nothing(),
            )
            decided = decide_ask(facts, command.caller, body, mark, request_id, now, self._rules)
            if isinstance(decided, Refusal | Repeated) and not fresh and loaded.seq:
                return None  # what this process remembers may be old: nothing is refused or told for its sake
            if isinstance(decided, Decided) and overloaded:
                return refusals.overloaded()
            return await self._carry_out(run_id, loaded, decided, now, mark)

        outcome = await self._until_decided(run_id, step, turn)
        await self._forget_refused(command, mark, run_id, outcome)
        if scheduled:
            await self._mend_deadline(run_id, request_id, now + body.timeout_ms, outcome)
        return outcome

    async def _ask_facts(
        self, command: Command[QuestionAsk], mark: CommandMark, request_id: str, loaded: Loaded
    ) -> AskFacts:
        run_id = command.body.run_id
        session_id = await self._index.session_of_run(run_id)
        (child, parent), elsewhere = await asyncio.gather(
            self._sessions.load_with_parent(session_id),
            self._asked_elsewhere(command, mark, request_id),
        )
        run = await self._sessions.run(child, run_id)
        open_question = await self._open(run_id, loaded)
        return AskFacts(child, run, parent, loaded.state, open_question, elsewhere)

    async def _set_deadline(self, run_id: str, request_id: str, expires_at: int) -> None:
        """Schedule the deadline, before the question is there: without it, it does no harm."""
        await self._timers.set(streams.question_timer(run_id, request_id), expires_at, {})

    async def _mend_deadline(self, run_id: str, request_id: str, set_to: int, outcome: Result) -> None:
        """What was scheduled may be for no question, or in place of the deadline of one that waits: the same
        command came before, and this process did not know."""
        record = outcome if isinstance(outcome, QuestionRecord) else None
        if isinstance(outcome, Refusal):
            record = await self._questions.current(run_id, request_id)
            if record is None:
                await self._timers.clear(streams.question_timer(run_id, request_id))
        if record is not None and record.status is QuestionStatus.WAITING and record.expires_at != set_to:
            await self._set_deadline(run_id, request_id, record.expires_at or 0)

    async def _look_again(self, run_id: str, record: QuestionRecord) -> QuestionRecord:
        """What the ask rests on may have ended between reading it and storing the question; and its deadline
        may have fired before there was a question to end."""
        now, expires_at = time.time_ns() // 1_000_000, record.expires_at or 0
        if now >= expires_at - _EARLY_MS:
            await self._set_deadline(run_id, record.request_id, expires_at)
        ended = await self.end_owed(run_id, now, fresh=False)
        return ended if ended is not None and ended.request_id == record.request_id else record

    async def _open(self, run_id: str, loaded: Loaded) -> QuestionRecord | None:
        waiting = loaded.state.waiting() if loaded.state is not None else None
        return None if waiting is None else await self._questions.record(run_id, waiting.request_id, loaded)

    # Answering and cancelling

    async def answer(self, command: Command[QuestionAnswer]) -> Result:
        """Answer a question: the record as it stands, or why not."""
        body = command.body
        run_id = await self._index.run_of_question(body.request_id)
        if run_id is None:
            return refusals.unknown_request(body.request_id)
        mark = command.mark()

        elsewhere = asyncio.ensure_future(self._ended_elsewhere(command, mark, run_id))

        async def step(fresh: bool) -> Result | None:
            around = await self._around(run_id, body.request_id, fresh=fresh)
            decided = decide_answer(
                around.loaded.state,
                around.record,
                around.child,
                around.parent,
                command.caller,
                body,
                mark,
                command.stored_at,
                elsewhere=await elsewhere,
            )
            if isinstance(decided, Refusal) and not fresh:
                return None  # what this process remembers may be old: no refusal rests on it
            return await self._carry_out(run_id, around.loaded, decided, command.stored_at, mark)

        try:
            async with self._gate.lock(f"question:{run_id}") as turn:
                outcome = await self._until_decided(run_id, step, turn)
        finally:
            elsewhere.cancel()
        await self._forget_refused(command, mark, run_id, outcome)
        return outcome

    async def cancel(self, command: Command[QuestionCancel]) -> Result:
        """Cancel a question: the record as it stands, or why not."""
        body = command.body
        run_id = body.run_id or await self._index.run_of_question(body.request_id or "")
        if run_id is None:
            return refusals.unknown_request(body.request_id or "")
        mark = command.mark()

        async def step(_: bool) -> Result | None:
            around = await self._around(run_id, body.request_id)
            decided = decide_cancel(
                around.loaded.state,
                around.record,
                around.child,
                await self._sessions.run(around.child, run_id),
                around.parent,
                command.caller,
                body,
                mark,
                command.stored_at,
                elsewhere=elsewhere,
            )
            return await self._carry_out(run_id, around.loaded, decided, command.stored_at, mark)

        elsewhere = await self._ended_elsewhere(command, mark, run_id)
        async with self._gate.lock(f"question:{run_id}") as turn:
            outcome = await self._until_decided(run_id, step, turn)
        await self._forget_refused(command, mark, run_id, outcome)
        return outcome

    # What they share

    async def _asked_elsewhere(
        self, command: Command[QuestionAsk], mark: CommandMark, request_id: str
    ) -> bool:
        """Whether the command's id has asked a question of another run; without one it has not."""
        if command.given_id is None:
            return False
        return await self._index.was_asked_elsewhere(mark, request_id, command.body.run_id)

    async def _ended_elsewhere(self, command: Command[Any], mark: CommandMark, run_id: str) -> bool:
        """Whether the command's id has ended a question of another run; without one it has not."""
        return command.given_id is not None and await self._index.has_ended_elsewhere(mark, run_id)

    async def _forget_refused(
        self, command: Command[Any], mark: CommandMark, run_id: str, outcome: Result
    ) -> None:
        """A refusal is not remembered, so the same id may be used for something else after it."""
        if command.given_id is not None and isinstance(outcome, Refusal):
            await self._index.commands.refused(mark, run_id)

    async def _until_decided(
        self, run_id: str, step: Callable[[bool], Awaitable[Result | None]], turn: Turn
    ) -> Result:
        """Load, decide and store, until nobody else came first. The first time what this process remembers
        will do; `step` is told whether it has to read anew."""
        for attempt in range(_TRIES):
            if attempt > 1:
                await turn.insist()
            try:
                result = await step(attempt > 0)
            except Conflict:
                continue
            if result is not None:
                return result
        raise Unavailable(f"too many conflicts on the questions of {run_id}")

    async def _around(self, run_id: str, request_id: str | None, *, fresh: bool = True) -> Around:
        """Load what a decision on a question rests on; without a request_id, the one that waits."""
        loaded = await self._questions.load(run_id, fresh=fresh)
        if loaded.state is None:
            return Around(loaded, None, None, None)
        if request_id is None:
            record = await self._open(run_id, loaded)
        else:
            record = await self._questions.record(run_id, request_id, loaded)
        child, parent = await self._sessions.load_with_parent(loaded.state.session_id)
        return Around(loaded, record, child, parent)

    async def _carry_out(
        self,
        run_id: str,
        loaded: Loaded,
        decided: Decided | Repeated | EndFirst | Refusal,
        now: int,
        mark: CommandMark,
    ) -> Result | None:
        """Store what was decided; None, or Conflict: decide again."""
        if isinstance(decided, Refusal):
            return decided
        if isinstance(decided, Repeated):
            record = await self._questions.record(run_id, decided.request_id, loaded)
            if record is not None:
                tracing.link(await self._questions.trace_of(run_id, record.request_id, loaded))
                await self._index.note(
                    record, every=True
                )  # who stored it may have died before it was indexed
            return record if record is not None else refusals.unknown_request(decided.request_id)
        if isinstance(decided, EndFirst):
            ended = await self._end_first(loaded, decided.end, now)
            return None if isinstance(ended, QuestionRecord) else ended
        record = await self._commit(loaded, decided, now, mark)
        if decided.late is not None:
            return late_refusal(record)
        await self._index.note(record)
        return record

    # Ends that no command asks for

    async def end_owed(self, run_id: str, now: int, *, fresh: bool = True) -> QuestionRecord | None:
        """End the run's open question if it is owed an end at epoch ms `now`; the record if there was one.

        Not `fresh`, the questions that this process remembers will do. Raises Unavailable while an answer
        that was stored in time is still to be handled.
        """
        for attempt in range(_TRIES):
            try:
                around = await self._around(run_id, None, fresh=fresh or attempt > 0)
                if around.loaded.state is None or around.record is None:
                    return None
                end = ending.owed(around.loaded.state, around.record, around.child, around.parent, now)
                if end is None:
                    return around.record
                ended = await self._end_first(around.loaded, end, now)
            except Conflict:
                continue
            if isinstance(ended, QuestionRecord):
                return ended
            raise Unavailable("an answer that was stored in time is still to be handled")
        raise Unavailable(f"too many conflicts on the questions of {run_id}")

    async def end_owed_locked(self, run_id: str, now: int) -> None:
        """The same, for who does not hold the run's lock."""
        async with self._gate.lock(f"question:{run_id}"):
            await self.end_owed(run_id, now)

    async def end_of_parent(self, parent_session_id: str, now: int) -> None:
        """The parent closed, or its host is gone: end what its children ask it."""
        ids = await self._index.candidates(parent_session_id, waiting=True)
        runs = list(
            {run_id for each in ids if (run_id := await self._index.run_of_question(each)) is not None}
        )
        later: list[Unavailable] = []

        async def look(run_id: str) -> None:
            try:
                await self.end_owed_locked(run_id, now)
            except Unavailable as error:
                later.append(error)  # of one run; the others need not wait for it

        for begin in range(0, len(runs), _SIDE_BY_SIDE):
            await asyncio.gather(*[look(run_id) for run_id in runs[begin : begin + _SIDE_BY_SIDE]])
        if later:
            raise later[0]

    async def mend(self) -> None:
        """Whenever the index was read from the log, look at all questions that wait: while it lacked some, an
        end may have passed them over."""
        while True:
            for record in await self._index.found_waiting():
                self._overdue.note(record)
                try:
                    await self.end_owed_locked(record.child_run_id or "", time.time_ns() // 1_000_000)
                except Unavailable as error:
                    logger.warning("not looked at", request_id=record.request_id, error=str(error))

    async def deadline(self, request_id: str, run_id: str, fired_at: int) -> Again | None:
        """The deadline of a question has fired, at epoch ms `fired_at`."""
        async with self._gate.lock(f"question:{run_id}"):
            for _ in range(_TRIES):
                try:
                    outcome = await self._timed_out(request_id, run_id, fired_at)
                except Conflict:
                    continue
                return outcome
        raise Unavailable(f"too many conflicts on the questions of {run_id}")

    async def _timed_out(self, request_id: str, run_id: str, fired_at: int) -> Again | None:
        loaded = await self._questions.load(run_id)
        record = await self._questions.record(run_id, request_id, loaded)
        if record is None or loaded.state is None:
            return None  # refused, or not stored yet: then the ask schedules it again
        if record.status is not QuestionStatus.WAITING:
            await self._index.note(record)
            return None
        left = (record.expires_at or 0) - fired_at
        if left > 0:
            return Again(left)
        ended = await self._end_first(loaded, ending.timed_out(loaded.state, record, fired_at), fired_at)
        return None if isinstance(ended, QuestionRecord) else ended

    async def _end_first(self, loaded: Loaded, end: Decided, now: int) -> QuestionRecord | Again:
        """Store an end; a timeout only if no answer that was stored in time is still to be handled. Conflict:
        somebody came first."""
        if end.record.status is QuestionStatus.TIMED_OUT:
            expires_at = end.record.expires_at or 0
            if await self._pending.stored_before(end.record.request_id, expires_at, streams.ANSWERS):
                return Again(_LOOK_AGAIN_MS)
        record = await self._commit(loaded, end, now, None)
        await self._index.note(record)
        return record

    async def _commit(
        self, loaded: Loaded, decided: Decided, now: int, mark: CommandMark | None
    ) -> QuestionRecord:
        began = await self._questions.trace_of(decided.state.run_id, decided.record.request_id, loaded)
        with tracing.resting_on(began):
            record = await self._questions.append(decided, expected=loaded.seq, now=now, mark=mark)
        count_end(decided, now)
        self._overdue.note(record)
        logger.info(
            "question " + decided.event,
            request_id=record.request_id,
            run_id=record.child_run_id,
            session_id=record.child_session_id,
        )
        return record


async def _nothing() -> None:
    return None
