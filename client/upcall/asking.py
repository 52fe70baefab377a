"""The child's side of a question: ask once, wait for the end, whatever breaks meanwhile.

Three things may bring the end, whichever comes first: the committed event on the run's topic, a look after a
reconnect (core messages are lost in between), and a look every now and then, so that nothing ever hangs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

from upcall_contracts import subjects
from upcall_contracts.events import Event
from upcall_contracts.fields import is_blank
from upcall_contracts.ids import derive_id
from upcall_contracts.records import Action, QuestionRecord, QuestionStatus

from . import tracing
from .errors import AlreadyAskedError, NoReplyError, RefusedError, no_answer
from .wire import Wire

_LOOK_AFTER: Final = (5.0, 10.0, 20.0, 40.0)  # then every 60 s: thousands may wait at the same time
_LOOK_EVERY: Final = 60.0
_AFTER_DEADLINE: Final = 1.0  # the service's clock decides; its event is usually here before we look


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question ended, where the child may go on."""

    text: str
    """The parent's words; when timed out, the fallback."""
    record: QuestionRecord
    """All there is to know."""

    @property
    def request_id(self) -> str:
        """The question's id."""
        return self.record.request_id

    @property
    def rationale(self) -> str | None:
        """Why the parent decided so."""
        return self.record.rationale

    @property
    def option(self) -> str | None:
        """The option chosen, where options were offered and one was named."""
        return self.record.selected_option

    @property
    def declined(self) -> bool:
        """The parent won't decide: decide where that is safe, else end."""
        return self.record.action is Action.DECLINE

    @property
    def timed_out(self) -> bool:
        """No answer came in time: go on with the fallback."""
        return self.record.status is QuestionStatus.TIMED_OUT

    def __str__(self) -> str:
        return self.text


def answer_of(question: QuestionRecord) -> Answer:
    """Read the end of a question, or raise NoAnswerError where the child may not go on."""
    match question.status:
        case QuestionStatus.ANSWERED:
            return Answer(question.answer or "", question)
        case QuestionStatus.TIMED_OUT if question.can_continue_without_answer:
            return Answer(question.fallback or "", question)
        case _:
            raise no_answer(question)


async def read_question(wire: Wire, caller: str, request_id: str) -> QuestionRecord:
    """A question as it stands now."""
    result = await wire.query(caller, "question.get", {"request_id": request_id})
    return QuestionRecord.model_validate(result["question"])


class Asker:
    """The questions of one run."""

    def __init__(
        self,
        wire: Wire,
        caller: str,
        run_id: str,
        attempt: int | None,
        earlier: Sequence[QuestionRecord] = (),
    ) -> None:
        """`earlier` are the questions of the run's former holders, as the claim hands them over."""
        self._wire = wire
        self._caller = caller
        self._run_id = run_id
        self._attempt = attempt
        self._earlier = list(earlier)
        self._asked = 0
        self._ours: set[str] = set()  # request ids that somebody in this process waits for
        self._ends: dict[str, asyncio.Future[QuestionRecord]] = {}
        self._origins: dict[str, list[tracing.Origin | None]] = {}  # of a question's events, for traces
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._subscribing = asyncio.Lock()

    async def ask(
        self, body: dict[str, Any], key: str | None = None, command_id: str | None = None
    ) -> QuestionRecord:
        """Ask, or find the question asked before; its end."""
        return await self.until_ended(await self.submit(body, key, command_id))

    async def submit(
        self, body: dict[str, Any], key: str | None = None, command_id: str | None = None
    ) -> QuestionRecord:
        """The question as it stands after asking.

        The command id comes from the key (a tool call's id), else from how many questions the run has asked
        and from the text, so that a process that starts over asks the same. Another runner is another caller,
        with command ids of its own: it takes up the former holder's question of the same text instead.
        """
        self._asked += 1
        text = str(body.get("question", ""))
        parts = ("key", key) if key else (str(self._asked), text)
        await self._listen()
        question = await self._take_up(text)
        if question is None:
            question = await self._ask(body, command_id or derive_id("ask-", self._run_id, *parts))
        self._ours.add(question.request_id)
        return question

    async def until_ended(self, question: QuestionRecord) -> QuestionRecord:
        """Wait for the end of a submitted question."""
        try:
            if question.status is QuestionStatus.WAITING:
                question = await self._until(self._end_of(question.request_id), question)
            self._trace_end(question)
            return question
        finally:
            self._ours.discard(question.request_id)

    async def look(self, request_id: str) -> QuestionRecord:
        """The question as it stands now."""
        return await read_question(self._wire, self._caller, request_id)

    async def close(self) -> None:
        """Stop listening."""
        if self._unsubscribe:
            await self._unsubscribe()
            self._unsubscribe = None

    async def _ask(self, body: dict[str, Any], command_id: str) -> QuestionRecord:
        try:
            return await self._send(body, command_id)
        except AlreadyAskedError as refusal:
            if refusal.request_id in self._ours:
                raise
            left = await self.look(refusal.request_id)
        # A question of this run that nobody waits for any more: of an ask that was given up, or of a former
        # holder. The same words: wait for that one. Other words: it is obsolete.
        if _same(left.question, str(body.get("question", ""))):
            return left
        with suppress(RefusedError):  # it may have ended by now
            obsolete = {"request_id": left.request_id, "reason": "superseded by another question"}
            await self._wire.command(self._caller, "question.cancel", obsolete)
        return await self._send(body, command_id)

    async def _send(self, body: dict[str, Any], command_id: str) -> QuestionRecord:
        whole = {**body, "run_id": self._run_id, "attempt": self._attempt}
        result = await self._wire.command(self._caller, "question.ask", whole, command_id=command_id)
        return QuestionRecord.model_validate(result["question"])

    async def _take_up(self, text: str) -> QuestionRecord | None:
        for question in self._earlier:
            if _same(question.question, text):
                self._earlier.remove(question)
                ended = question.status is not QuestionStatus.WAITING
                return question if ended else await self.look(question.request_id)
        return None

    async def _until(self, end: asyncio.Future[QuestionRecord], question: QuestionRecord) -> QuestionRecord:
        for pause in chain(_LOOK_AFTER, repeat(_LOOK_EVERY)):
            await self._event_or_reconnect(end, _until_deadline(pause, question.expires_at))
            if end.done():
                break
            with suppress(NoReplyError):
                seen = await self.look(question.request_id)
                if seen.status is not QuestionStatus.WAITING:
                    return seen
        return end.result()

    async def _event_or_reconnect(self, end: asyncio.Future[QuestionRecord], within: float) -> None:
        reconnected = asyncio.ensure_future(self._wire.reconnected())
        try:
            await asyncio.wait({end, reconnected}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reconnected.cancel()

    def _end_of(self, request_id: str) -> asyncio.Future[QuestionRecord]:
        """Kept for every question of the run: an end may come before the reply to its ask."""
        return self._ends.setdefault(request_id, asyncio.get_running_loop().create_future())

    async def _listen(self) -> None:
        async with self._subscribing:
            if self._unsubscribe is None:
                topic = subjects.run_topic(self._run_id).removesuffix(">") + "question.>"
                self._unsubscribe = await self._wire.subscribe(topic, self._on_event)

    def _trace_end(self, question: QuestionRecord) -> None:
        """The child goes on: in its own trace, linked to the ask and to what ended it."""
        waited = (question.updated_at or 0) - (question.created_at or 0)
        about = {"upcall.status": question.status.value, "upcall.waited_ms": waited}
        ids = {"request_id": question.request_id, "run_id": self._run_id}
        origins = self._origins.pop(question.request_id, [])
        tracing.received("question.end", ids, *origins, attributes=about)

    def _on_event(self, subject: str, body: dict[str, Any]) -> None:
        if subject.endswith(".late"):
            return
        if (origin := tracing.origin()) is not None:
            self._origins.setdefault(str(body["data"]["request_id"]), []).append(origin)
        if subject.endswith(".requested"):
            return
        question = QuestionRecord.model_validate(Event.model_validate(body).data)
        end = self._end_of(question.request_id)
        if not end.done():
            end.set_result(question)


def _until_deadline(pause: float, expires_at: int | None) -> float:
    """Look soon after the deadline, by this machine's clock; where that has passed, keep looking."""
    if expires_at is None:
        return pause
    left = expires_at / 1000 - time.time() + _AFTER_DEADLINE
    return min(pause, left if left > 0 else _LOOK_AFTER[0])


def _same(one: str, other: str) -> bool:
    return not is_blank(one) and one.split() == other.split()
