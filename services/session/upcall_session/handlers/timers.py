"""What wakes the service by itself: deadlines, and questions for a session that could be woken by them."""

import json

from nats.aio.msg import Msg

from upcall_contracts.records import Host, RunStatus
from upcall_contracts.states import SessionState
from upcall_session.clock import now_ms
from upcall_session.decisions.deadlines import LIMIT, LOOK_MS, QUEUE, deadlines, end_limit, run_limit
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Sessions
from upcall_shell.delivery import Again
from upcall_shell.stamps import stored_at


class Timers:
    """Deadlines of sessions."""

    def __init__(self, sessions: Sessions, reach: Reach) -> None:
        self._sessions = sessions
        self._reach = reach

    async def due(self, message: Msg) -> Again | None:
        """A deadline has come."""
        *_, session_id, kind = message.subject.split(".")
        await self.fire(session_id, kind, max(now_ms(), stored_at(message)))
        return None

    async def fire(self, session_id: str, kind: str, now: int) -> None:
        """Do what a session owes at epoch ms `now`, and set its deadline again where it has moved."""
        if kind == LIMIT:
            await self._limit(session_id, now)
            return
        loaded = await self._sessions.advance(session_id, now)
        if loaded is None:
            return
        if kind == QUEUE:
            await self._sessions.dispatch(loaded.state)
        at = deadlines(loaded.state, now, self._sessions.rules).get(kind)
        if at is not None and at > now:
            await self._sessions.set_timer(session_id, kind, at)

    async def question(self, message: Msg) -> Again | None:
        """A question was asked: it wakes its parent session, if that is idle and hosted by runners."""
        event = json.loads(message.data)
        if event["state"].get("parent_host") == Host.SELF:  # a host never changes
            return None
        parent = await self._reach.session(event["parent_session_id"])
        if parent is None or parent.host is not Host.RUNNER or parent.closed_at is not None:
            return None
        await self._sessions.items.derived(parent.session_id, str(event["data"]["request_id"]))
        await self._sessions.advance(parent.session_id, now_ms())
        return None

    async def _limit(self, session_id: str, now: int) -> None:
        """The time limit of a run, which stands still while a question waits."""
        again: list[int] = []

        async def decide(state: SessionState | None) -> Decision:
            again.clear()
            if state is None or state.run is None or state.run.status is not RunStatus.RUNNING:
                return None
            questions = await self._sessions.log.questions(state.run.run_id)
            paused = questions.paused_ms(now, state.limit_from or 0) if questions is not None else 0
            ended = end_limit(state, now, paused)
            limit = run_limit(state, paused)
            if ended is None and limit is not None:
                waits = questions is not None and questions.waiting() is not None
                # While a question waits the limit moves on; so soon it is due at the earliest.
                again.append(max(limit, now + LOOK_MS) if waits else limit)
            return ended

        await self._sessions.change(session_id, decide)
        for at in again:
            await self._sessions.set_timer(session_id, LIMIT, at)
