"""The broker's queries. What the index says is checked against the log before it is shown."""

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors
import structlog
from nats.aio.client import Client

from upcall_contracts import refusals, subjects
from upcall_contracts.errors import Refusal
from upcall_contracts.events import Family
from upcall_contracts.ids import OPERATOR
from upcall_contracts.queries import QuestionGet, QuestionList, QuestionWait
from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_contracts.states import SessionState
from upcall_shell.queries import Page, Query, QueryHandler

from .decisions import access, ending
from .index import QuestionIndex
from .stores import Questions, Sessions, Unreadable

logger = structlog.get_logger()
_LOOK_S: Final = 2.0  # a wait looks at the log so often, for an event that got lost on the way
_CHUNK: Final = 32


class QuestionQueries:
    """Answers question.get, question.wait and question.list."""

    def __init__(
        self,
        questions: Questions,
        sessions: Sessions,
        index: QuestionIndex,
        connection: Callable[[], Client],
    ) -> None:
        self._questions = questions
        self._sessions = sessions
        self._index = index
        self._connection = connection

    def handlers(self) -> dict[tuple[str, str], QueryHandler]:
        """By noun and verb."""
        return {
            ("question", "get"): self.get,
            ("question", "wait"): self.wait,
            ("question", "list"): self.list,
        }

    async def get(self, query: Query[QuestionGet]) -> dict[str, Any] | Refusal:
        """One question that the caller may see."""
        return _reply(await self._visible(query.caller, query.body.request_id))

    async def wait(self, query: Query[QuestionWait]) -> dict[str, Any] | Refusal:
        """One question, once it has ended or the time is over."""
        record = await self._visible(query.caller, query.body.request_id)
        if isinstance(record, Refusal) or record.status is not QuestionStatus.WAITING:
            return _reply(record)
        loop = asyncio.get_running_loop()
        until = loop.time() + query.body.timeout_ms / 1000
        topic = subjects.run_topic(record.child_run_id or "")
        subscription = await self._connection().subscribe(topic)
        try:
            while True:
                now = await self._questions.current(record.child_run_id or "", record.request_id)
                record = now if now is not None else record
                left = until - loop.time()
                if record.status is not QuestionStatus.WAITING or left <= 0:
                    return _reply(record)
                await _next(subscription, record.request_id, min(left, _LOOK_S))
        finally:
            await subscription.unsubscribe()

    async def list(self, query: Query[QuestionList]) -> dict[str, Any] | Refusal:
        """The questions put to the caller or to its tree, oldest first."""
        body = query.body
        after = _read_cursor(body.cursor)
        if isinstance(after, Refusal):
            return after
        look = _Look(self._sessions)
        ids = await self._candidates(query.caller, body, after[0], look)
        page, last = Page(body.limit), after
        for begin in range(0, len(ids), _CHUNK):
            chunk = ids[begin : begin + _CHUNK]
            shown = await asyncio.gather(*[self._shown(query.caller, each, body, look) for each in chunk])
            for record in shown:
                if record is None or _order(record) <= after:
                    continue
                if not page.takes(record.to_wire()):
                    return {"questions": page.records, "cursor": _write_cursor(last)}
                last = _order(record)
        return {"questions": page.records, "cursor": None}

    async def _candidates(self, caller: str, body: QuestionList, since: int, look: "_Look") -> Sequence[str]:
        waiting = body.status is QuestionStatus.WAITING
        mine = body.scope == "mine" and caller != OPERATOR
        if mine and await look.session(caller) is None:
            mine = False  # a runner has no list of its own: it holds sessions
        return await self._index.candidates(caller if mine else None, waiting=waiting, since=max(since, 0))

    async def _shown(
        self, caller: str, request_id: str, body: QuestionList, look: "_Look"
    ) -> QuestionRecord | None:
        run_id = await self._index.run_of_question(request_id)
        try:
            record = None if run_id is None else await self._questions.current(run_id, request_id)
        except Unreadable as error:
            logger.error("left out of a list", error=str(error))
            return None
        if record is None or record.status is not body.status:
            return None
        if not await self._put_to(caller, record, body.scope, look):
            return None
        if record.status is not QuestionStatus.WAITING or await self._stands(record, look):
            return record
        return None

    async def _put_to(self, caller: str, record: QuestionRecord, scope: str, look: "_Look") -> bool:
        """Whether a question is put to the caller, or to a session of its tree."""
        parent = record.parent_session_id or ""
        if caller in {OPERATOR, parent}:
            return True
        line = await look.line(parent)
        return access.may_see(caller, line[:1] if scope == "mine" else line)

    async def _stands(self, record: QuestionRecord, look: "_Look") -> bool:
        """Whether a waiting question is not owed an end: between the two, no list shows it as waiting."""
        child, parent = await asyncio.gather(
            look.session(record.child_session_id or ""), look.session(record.parent_session_id or "")
        )
        return ending.owed_status(record.child_run_id or "", child, parent)[0] is None

    async def _visible(self, caller: str, request_id: str) -> QuestionRecord | Refusal:
        run_id = await self._index.run_of_question(request_id)
        record = None if run_id is None else await self._questions.current(run_id, request_id)
        if record is None:
            return refusals.unknown_request(request_id)
        if caller not in {OPERATOR, record.parent_session_id, record.child_session_id}:
            line = await self._sessions.line(record.child_session_id or "")
            if not access.may_see(caller, line) and not await self._carried_out(caller, line, record):
                return refusals.unknown_request(request_id)
        return record

    async def _carried_out(self, caller: str, line: Sequence[SessionState], record: QuestionRecord) -> bool:
        """Whether the caller held the run to its end: it may hear what became of what it asked."""
        run = await self._sessions.run(line[0], record.child_run_id or "") if line else None
        return run is not None and caller == run.holder


class _Look:
    """The sessions as one query finds them: each is read once, however many questions are put to it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._found: dict[str, asyncio.Task[SessionState | None]] = {}

    async def session(self, session_id: str) -> SessionState | None:
        """A session; None if there is none."""
        if session_id not in self._found:
            self._found[session_id] = asyncio.create_task(self._sessions.load(session_id))
        return await self._found[session_id]

    async def line(self, session_id: str) -> list[SessionState]:
        """A session and its ancestors."""
        session = await self.session(session_id)
        if session is None:
            return []
        above = await asyncio.gather(*[self.session(each) for each in session.ancestors])
        return [session, *[each for each in above if each is not None]]


def _reply(record: QuestionRecord | Refusal) -> dict[str, Any] | Refusal:
    return record if isinstance(record, Refusal) else {"question": record.to_wire()}


def _order(record: QuestionRecord) -> tuple[int, str]:
    return (record.created_at or 0, record.request_id)


async def _next(subscription: Any, request_id: str, wait_s: float) -> None:
    """Wait for an event of a question, or for so long."""
    until = asyncio.get_running_loop().time() + wait_s
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            message = await subscription.next_msg(timeout=left)
        except (nats.errors.TimeoutError, TimeoutError):
            return
        address = subjects.parse_topic(message.subject)
        if address is not None and (address.family, address.id) == (Family.QUESTION.value, request_id):
            return


def _write_cursor(place: tuple[int, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def _read_cursor(cursor: str | None) -> tuple[int, str] | Refusal:
    if cursor is None:
        return (-1, "")
    try:
        match json.loads(base64.urlsafe_b64decode(cursor.encode())):
            case [int(at), str(request_id)]:
                return (at, request_id)
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    return refusals.invalid_field("cursor", "is not one that question.list gave")
