"""The broker's queries. What the index says is checked against the log before it is shown."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from upcall_contracts import refusals, subjects
from upcall_contracts.errors import Refusal
from upcall_contracts.events import Family
from upcall_contracts.ids import OPERATOR
from upcall_contracts.queries import QuestionGet, QuestionList, QuestionWait
from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_shell.queries import Query, QueryHandler

from .decisions import access, ending
from .index import QuestionIndex
from .stores import Questions, Sessions

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
                now = await self._read(record.child_run_id or "", record.request_id)
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
        waiting = body.status is QuestionStatus.WAITING
        mine = body.scope == "mine" and query.caller != OPERATOR
        ids = await self._index.candidates(query.caller if mine else None, waiting=waiting)
        if mine and not ids:  # a runner has no list of its own: it holds sessions
            ids = await self._index.candidates(None, waiting=waiting)
        found: list[QuestionRecord] = []
        for begin in range(0, len(ids), _CHUNK):
            shown = await asyncio.gather(
                *[self._shown(query.caller, each, body) for each in ids[begin : begin + _CHUNK]]
            )
            found += [r for r in shown if r is not None and (r.created_at or 0, r.request_id) > after]
            if len(found) > body.limit:
                break
        page = sorted(found, key=_order)[: body.limit]
        more = len(found) > body.limit
        return {
            "questions": [r.to_wire() for r in page],
            "cursor": _write_cursor(page[-1]) if more else None,
        }

    async def _shown(self, caller: str, request_id: str, body: QuestionList) -> QuestionRecord | None:
        run_id = await self._index.run_of_question(request_id)
        record = None if run_id is None else await self._read(run_id, request_id)
        if record is None or record.status is not body.status:
            return None
        if not await self._put_to(caller, record, body.scope):
            return None
        if record.status is not QuestionStatus.WAITING or await self._stands(record):
            return record
        return None

    async def _put_to(self, caller: str, record: QuestionRecord, scope: str) -> bool:
        """Whether a question is put to the caller, or to a session of its tree."""
        parent = record.parent_session_id or ""
        if caller in {OPERATOR, parent}:
            return True
        line = await self._sessions.line(parent)
        return access.may_see(caller, line[:1] if scope == "mine" else line)

    async def _stands(self, record: QuestionRecord) -> bool:
        """Whether a waiting question is not owed an end: between the two, no list shows it as waiting."""
        child, parent = await asyncio.gather(
            self._sessions.load(record.child_session_id), self._sessions.load(record.parent_session_id)
        )
        return ending.owed_status(record.child_run_id or "", child, parent)[0] is None

    async def _visible(self, caller: str, request_id: str) -> QuestionRecord | Refusal:
        run_id = await self._index.run_of_question(request_id)
        record = None if run_id is None else await self._read(run_id, request_id)
        if record is None:
            return refusals.unknown_request(request_id)
        if caller not in {OPERATOR, record.parent_session_id, record.child_session_id}:
            line = await self._sessions.line(record.child_session_id or "")
            if not access.may_see(caller, line):
                return refusals.unknown_request(request_id)
        return record

    async def _read(self, run_id: str, request_id: str) -> QuestionRecord | None:
        return await self._questions.record(run_id, request_id, await self._questions.load(run_id))


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


def _write_cursor(record: QuestionRecord) -> str:
    return base64.urlsafe_b64encode(json.dumps(_order(record)).encode()).decode()


def _read_cursor(cursor: str | None) -> tuple[int, str] | Refusal:
    if cursor is None:
        return (-1, "")
    try:
        at, request_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        return (int(at), str(request_id))
    except (ValueError, TypeError):
        return refusals.invalid_field("cursor", "is not one that question.list gave")
