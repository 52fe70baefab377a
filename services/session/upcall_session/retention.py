"""Forgetting trees that are over: leaves first and the root last, so that a crash in between is made good.

An item of INBOX that was replaced and then purged comes back after a crash of the server (DESIGN.md section
9), so inboxes of sessions that the log does not know are purged as well, after every start and reconnect.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from upcall_contracts import log, streams, subjects
from upcall_contracts.events import Family
from upcall_contracts.states import SessionState
from upcall_shell.errors import Unavailable
from upcall_shell.process import Service

from .clock import now_ms
from .decisions.periods import period_id
from .decisions.retention import is_due, may_purge
from .decisions.rules import Rules
from .index import SessionIndex
from .log_store import subjects_of
from .metrics import PURGED
from .reach import Reach
from .sessions import Sessions

logger = structlog.get_logger()

_EVERY_MIN_S: Final = 1.0
_EVERY_MAX_S: Final = 60.0
_WITH_RUN: Final = 6
"""A subject of the log that names a run has at least so many tokens behind `log`."""


class Retention:
    """Purges trees."""

    def __init__(
        self, service: Service, sessions: Sessions, reach: Reach, index: SessionIndex, rules: Rules
    ) -> None:
        self._service = service
        self._sessions = sessions
        self._reach = reach
        self._index = index
        self._rules = rules
        self._not_before: dict[str, int | None] = {}
        """By session: epoch ms before which it need not be looked at; None for those that are no roots."""
        self._strays_seen_at = 0.0

    async def run(self) -> None:
        """Look for trees to forget until cancelled."""
        every = min(max(self._rules.retention_ms / 2000, _EVERY_MIN_S), _EVERY_MAX_S)
        while True:
            try:
                await self._purge_strays()
                await self._look(now_ms())
            except Unavailable as error:
                logger.warning("retention broken off", error=str(error))
            await asyncio.sleep(every)

    async def _look(self, now: int) -> None:
        known = await self._index.all_sessions()
        self._not_before = {each: self._not_before[each] for each in known if each in self._not_before}
        for session_id in known:
            due = self._not_before.get(session_id, 0)
            if due is None or due > now:
                continue
            root = await self._reach.session(session_id)
            if root is None or root.depth > 0:
                self._not_before[session_id] = None
            elif is_due(root, now, self._rules):
                await self._purge_tree(root, now)
            else:
                # Whenever it closes after this, it is kept for longer than until the next look.
                since = root.closed_at if root.closed_at is not None else now
                self._not_before[session_id] = since + self._rules.retention_ms

    async def _purge_tree(self, root: SessionState, now: int) -> None:
        tree = [root, *await self._reach.descendants(root.session_id)]
        unread = {s.session_id for s in tree if s.closed_at is None and await self._has_items(s)}
        if not may_purge(tree, unread, now, self._rules):
            self._not_before[root.session_id] = now + self._rules.retention_ms
            return
        async with self._service.redis.lock(f"retention:{root.session_id}") as turn:
            await turn.insist()
            for state in reversed(tree):
                if not await self._purge_session(state):
                    return  # somebody has taken it up in this moment
        PURGED.inc(len(tree))
        logger.info("purged", root_session_id=root.session_id, sessions=len(tree))

    async def _has_items(self, state: SessionState) -> bool:
        return bool(await self._sessions.items.items(state.session_id))

    async def _purge_session(self, state: SessionState) -> bool:
        """Everything of a session, if it is still as it was; what finds it again comes last."""
        session_id = state.session_id
        loaded = await self._sessions.log.load(session_id)
        if loaded is None or loaded.state.updated_at != state.updated_at:
            return loaded is None
        runs = await self._runs(session_id)
        for run_id in runs:
            await self._purge(streams.LOG, log.question_guard(run_id))
            await self._purge(streams.TOPICS, subjects.run_topic(run_id))
        for ordinal in range(1, state.periods + 1):
            await self._purge(streams.LOG, log.report_guard(period_id(session_id, ordinal)))
        await self._purge(streams.TIMERS, streams.session_timer(session_id, "*")[0])
        await self._purge(streams.INBOX, subjects.inbox_all(session_id))
        await self._purge(streams.LOG, log.session_guard(session_id), below_seq=loaded.seq + 1)
        await self._index.forget([session_id], runs)
        return True

    async def _runs(self, session_id: str) -> list[str]:
        found = [
            log.tokens(each) for each in await self._sessions.log.subjects(log.session_guard(session_id))
        ]
        return sorted({each[2] for each in found if len(each) >= _WITH_RUN and each[3] == Family.LIFECYCLE})

    async def _purge_strays(self) -> None:
        """Inboxes that came back: once after the start, and after every reconnect."""
        if self._strays_seen_at == self._service.nats_steady_since:
            return
        seen_at = self._service.nats_steady_since
        sessions = {parts[0] for parts in await self._inboxes()}
        for session_id in sorted(sessions):
            if await self._reach.session(session_id) is None:
                await self._purge(streams.INBOX, subjects.inbox_all(session_id))
        self._strays_seen_at = seen_at

    async def _inboxes(self) -> Sequence[tuple[str, str]]:
        found = await subjects_of(self._service.inbox, subjects.INBOX_ALL)
        return [each for each in map(subjects.parse_inbox, found) if each is not None]

    async def _purge(self, stream: str, subject: str, below_seq: int | None = None) -> None:
        request = {"filter": subject} | ({"seq": below_seq} if below_seq is not None else {})
        answer = await self._service.log.api(f"STREAM.PURGE.{stream}", request)
        if "error" in answer:
            raise Unavailable(f"purge of {subject}: {answer['error']}")
