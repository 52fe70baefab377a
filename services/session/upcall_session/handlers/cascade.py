"""session.cancel and session.close, over the tree."""

from upcall_contracts import refusals
from upcall_contracts.commands import SessionCancel, SessionClose
from upcall_contracts.errors import Refusal
from upcall_contracts.states import SessionState
from upcall_session.decisions import cancelling, closing
from upcall_session.decisions.cancelling import Cancel
from upcall_session.decisions.results import Asked, Repeated
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Outcome, Sessions
from upcall_shell.commands import Command

from .common import Reply, asked, visible_session


class Cascade:
    """Cancels and closes sessions with what is below them."""

    def __init__(self, sessions: Sessions, reach: Reach) -> None:
        self._sessions = sessions
        self._reach = reach

    # Cancel

    async def cancel(self, command: Command[SessionCancel]) -> Reply:
        """session.cancel: the session itself first, so that its hold ends as cancelled and not as quiet."""
        body, who = command.body, asked(command)
        top = await visible_session(self._sessions, self._reach, who, body.session_id)
        if isinstance(top, Refusal):
            return top
        below = await self._reach.descendants(top.session_id) if body.cascade else []
        busy = [state for state in below if cancelling.is_busy(state)]
        runs = [s.run.run_id for s in (top, *busy) if s.run is not None]
        outcome = await self._cancel_named(top.session_id, body, busy, runs, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        until = None
        if isinstance(outcome.decision, Repeated):
            until, runs = _remembered(outcome.decision)
        elif body.cascade:
            below = await self._reach.descendants(top.session_id)  # with what was being spawned
        for state in below:
            order = Cancel(body.reason, _below(state, busy), cascade=True)
            await self._cancel_below(state, order, who.from_now, until)
        return {"cancelled": runs}

    async def _cancel_named(
        self, session_id: str, body: SessionCancel, busy: list[SessionState], runs: list[str], who: Asked
    ) -> Outcome:
        order = Cancel(body.reason, [state.session_id for state in busy], body.cascade)

        async def decide(state: SessionState | None) -> Decision:
            if state is None:
                return refusals.unknown_session(session_id)
            return cancelling.cancel_named(state, order, runs, who, self._sessions.rules)

        return await self._sessions.change(session_id, decide, who)

    async def _cancel_below(
        self, state: SessionState, order: Cancel, now: int, until: int | None = None
    ) -> None:
        """Cancel a descendant; with `until`, epoch ms, only what had begun by then."""

        async def decide(current: SessionState | None) -> Decision:
            if current is None or (until is not None and cancelling.began_after(current, until)):
                return None
            return cancelling.cancel(current, order, now, self._sessions.rules)

        await self._sessions.change(state.session_id, decide)

    # Close

    async def close(self, command: Command[SessionClose]) -> Reply:
        """session.close: nothing below takes anything new, then all is closed, leaves first."""
        body, who = command.body, asked(command)
        session_id = body.session_id or command.caller
        top = await visible_session(self._sessions, self._reach, who, session_id)
        if isinstance(top, Refusal):
            return top
        below = await self._reach.descendants(top.session_id) if body.cascade else []
        busy = [state for state in below if cancelling.is_busy(state)]
        begun = await self._begin_close(top.session_id, _below(top, busy), who.from_now, body.cascade, who)
        if isinstance(begun.decision, Refusal):
            return begun.decision
        for state in below:
            await self._begin_close(state.session_id, _below(state, busy), who.from_now, cascade=True)
        if body.cascade:
            await self._close_below(top.session_id, who.from_now)
        closed = await self._close(top.session_id, who.from_now)
        return {"session": closed.state.record().to_wire()}

    async def _begin_close(
        self, session_id: str, below: list[str], now: int, cascade: bool, who: Asked | None = None
    ) -> Outcome:
        async def decide(state: SessionState | None) -> Decision:
            if state is None:
                return refusals.unknown_session(session_id)
            return closing.begin_close(state, below, now, cascade=cascade, asked=who)

        return await self._sessions.change(session_id, decide, who)

    async def _close_below(self, session_id: str, now: int) -> None:
        """Everything below, those included that were being spawned when the close began."""
        for state in reversed(await self._reach.descendants(session_id)):
            if state.closed_at is None:
                await self._begin_close(state.session_id, [], now, cascade=True)
                await self._close(state.session_id, now)

    async def _close(self, session_id: str, now: int) -> Outcome:
        async def decide(state: SessionState | None) -> Decision:
            return closing.close(state, now) if state is not None else None

        return await self._sessions.change(session_id, decide)

    # A child that was being spawned or continued while its parent was being cancelled or closed

    async def catch_up(self, parent_id: str, child: SessionState, now: int) -> None:
        """Cancel or close a child that has begun behind the back of a cascade."""
        parent = await self._reach.session(parent_id)
        if parent is None or not parent.cascade:
            return
        if parent.closing or parent.closed_at is not None:
            await self._close_below(child.session_id, now)
            await self._begin_close(child.session_id, [], now, cascade=True)
            await self._close(child.session_id, now)
        elif parent.cancelling:
            await self._cancel_below(child, Cancel(parent.cancel_reason, [], cascade=True), now)


def _below(state: SessionState, busy: list[SessionState]) -> list[str]:
    return [each.session_id for each in busy if state.session_id in each.ancestors]


def _remembered(known: Repeated) -> tuple[int, list[str]]:
    runs = str(known.result.get("runs") or "")
    return int(known.result.get("at") or 0), runs.split(",") if runs else []
