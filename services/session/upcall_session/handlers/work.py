"""work.finish and inbox.handle: what a host says of its own session."""

from upcall_contracts import refusals
from upcall_contracts.commands import InboxHandle, WorkFinish
from upcall_contracts.errors import Refusal
from upcall_contracts.records import WorkRecord
from upcall_contracts.states import SessionState
from upcall_session.decisions import access, inbox, work
from upcall_session.decisions.results import Asked, Decided, Repeated
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Sessions
from upcall_shell.commands import Command

from .common import Reply, asked


class Host:
    """What a host says of its session besides its runs."""

    def __init__(self, sessions: Sessions, reach: Reach) -> None:
        self._sessions = sessions
        self._reach = reach

    async def finish(self, command: Command[WorkFinish]) -> Reply:
        """work.finish: background work has ended."""
        who, work_id = asked(command), command.body.work_id
        session = await self._own(who, command.body.session_id)
        if isinstance(session, Refusal):
            return session

        async def decide(state: SessionState | None) -> Decision:
            finished = await self._sessions.log.work(session.session_id, work_id)
            return work.finish(state or session, command.body, finished, who)

        outcome = await self._sessions.change_in_order(session.session_id, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        if isinstance(outcome.decision, Decided) and isinstance(outcome.decision.data, WorkRecord):
            return {"work": outcome.decision.data.to_wire()}
        finished = await self._sessions.log.work(session.session_id, work_id)
        return {"work": work.record(outcome.state, work_id, finished).to_wire()}

    async def handle(self, command: Command[InboxHandle]) -> Reply:
        """inbox.handle: items are over for the session; what is unknown or handled already is skipped."""
        who = asked(command)
        session = await self._own(who, command.body.session_id)
        if isinstance(session, Refusal):
            return session
        handled: list[str] = []

        async def decide(state: SessionState | None) -> Decision:
            state = state or session
            present = await self._present(state, command.body.item_ids)
            handled[:] = inbox.untaken(state, present)
            return inbox.handle(state, present, await self._sessions.emptied(state), who)

        outcome = await self._sessions.change(session.session_id, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        if isinstance(outcome.decision, Repeated):
            return {"handled": await self._handled(session.session_id, command.body.item_ids)}
        if len(outcome.state.taken) >= inbox.TAKEN_KEPT:
            await self._sessions.forget_taken(session.session_id)
        return {"handled": handled}

    async def _own(self, who: Asked, session_id: str | None) -> SessionState | Refusal:
        """The session that the caller speaks for, or spoke for when it sent this very command before."""
        named = session_id if session_id is not None else who.caller
        state = await self._reach.session(named)
        if state is None:
            return refusals.unknown_session(named)
        if access.speaks_for(who.caller, state) or await self._sessions.remembers(named, who):
            return state
        return refusals.unknown_session(named)

    async def _present(self, state: SessionState, item_ids: list[str]) -> list[str]:
        """Those of the items that stand in the inbox unhandled, each once."""
        known = {entry.item_id for entry in state.inbox}
        present: list[str] = []
        for item_id in dict.fromkeys(item_ids):
            if item_id in known:
                await self._sessions.items.derived(state.session_id, item_id)
            item = await self._sessions.items.item(state.session_id, item_id)
            if item is not None and not item.is_over:
                present.append(item_id)
        return present

    async def _handled(self, session_id: str, item_ids: list[str]) -> list[str]:
        return [i for i in dict.fromkeys(item_ids) if await self._sessions.items.is_handled(session_id, i)]
