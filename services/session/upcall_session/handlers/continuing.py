"""session.continue and session.background."""

from collections.abc import Awaitable, Callable

from upcall_contracts import refusals
from upcall_contracts.commands import SessionBackground, SessionContinue
from upcall_contracts.errors import Refusal
from upcall_contracts.states import SessionState
from upcall_session.decisions import access, continuing, counting, repeating, running
from upcall_session.decisions.continuing import ContinueFacts
from upcall_session.decisions.results import Asked, Repeated
from upcall_session.reach import FoundRun, Reach
from upcall_session.sessions import Decision, Outcome, Sessions
from upcall_shell.commands import Command

from .cascade import Cascade
from .common import Reply, asked, run_id_of, unless_full


class Continuing:
    """Continues sessions."""

    def __init__(
        self, sessions: Sessions, reach: Reach, cascade: Cascade, overloaded: Callable[[], Awaitable[bool]]
    ) -> None:
        self._sessions = sessions
        self._reach = reach
        self._cascade = cascade
        self._overloaded = overloaded

    async def continue_(self, command: Command[SessionContinue]) -> Reply:
        """session.continue: checked on the session, counted on its parent, begun on the session."""
        who, run_id = asked(command), command.derive_id("r_")
        checked = await self._check(command.body, who)
        if isinstance(checked.decision, Refusal):
            return checked.decision
        if isinstance(checked.decision, Repeated):
            return await self._receipt(checked.state, run_id_of(checked))
        parent = await self._parent(checked.state)
        counts = access.is_for_parent(who.caller, checked.state, parent)
        overloaded = await self._overloaded()
        if counts and parent is not None:
            counted = await self._count(parent, command.body, run_id, who, overloaded=overloaded)
            overloaded = False  # what is counted is begun
            if isinstance(counted.decision, Refusal):
                return counted.decision
        begun = await self._begin(command.body, run_id, who, overloaded=overloaded)
        if isinstance(begun.decision, Refusal):
            if counts and parent is not None:
                await self._uncount(parent, command.body, run_id, who)
            return begun.decision
        if parent is not None and counts:
            await self._cascade.catch_up(parent.session_id, begun.state, who.now)
        return await self._receipt(begun.state, run_id)

    async def background(self, command: Command[SessionBackground]) -> Reply:
        """session.background: a foreground run becomes a background one."""
        who = asked(command)
        found = await self._waited_for(command.body.run_id, who)
        if isinstance(found, Refusal):
            return found

        async def decide(state: SessionState | None) -> Decision:
            run = await self._sessions.log.run(state or found.state, found.run.run_id) or found.run
            return running.background(state or found.state, run, who)

        outcome = await self._sessions.change(found.state.session_id, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        run = await self._sessions.log.run(outcome.state, found.run.run_id) or found.run
        return {"run": run.to_wire()}

    async def _waited_for(self, run_id: str, who: Asked) -> FoundRun | Refusal:
        """A run that the caller may see, or did this very command to when it could."""
        found = await self._reach.visible_run(who.caller, run_id)
        anyway = await self._reach.run(run_id) if isinstance(found, Refusal) else None
        if anyway is not None and await self._sessions.remembers(anyway.state.session_id, who):
            return anyway
        return found

    async def _check(self, body: SessionContinue, who: Asked) -> Outcome:
        async def decide(state: SessionState | None) -> Decision:
            known = repeating.repeated(state, who) if state is not None else None
            if known is not None:
                return known
            facts = await self._facts(state)
            refused = continuing.refuse(state, facts, body, who.caller)
            return refused or await self._check_run(body.run_id, who.caller, facts.parent)

        return await self._sessions.change(body.session_id, decide, who)

    async def _check_run(
        self, run_id: str | None, caller: str, parent: SessionState | None
    ) -> Refusal | None:
        """A run that is named is the parent's, and the caller's."""
        if run_id is None:
            return None
        found = await self._reach.run(run_id)
        mine = found is not None and parent is not None and found.state.session_id == parent.session_id
        if found is None or not mine or not access.carries_out(caller, found.state, found.run):
            return refusals.unknown_run(run_id)
        return None

    async def _count(
        self, parent: SessionState, body: SessionContinue, run_id: str, who: Asked, *, overloaded: bool
    ) -> Outcome:
        async def decide(state: SessionState | None) -> Decision:
            decided = continuing.count_again(state or parent, body, run_id, who)
            return unless_full(decided, overloaded=overloaded)

        return await self._sessions.change(parent.session_id, decide, who)

    async def _uncount(self, parent: SessionState, body: SessionContinue, run_id: str, who: Asked) -> None:
        async def decide(state: SessionState | None) -> Decision:
            return counting.uncount(state or parent, body.session_id, run_id, who.now)

        await self._sessions.change(parent.session_id, decide)

    async def _begin(self, body: SessionContinue, run_id: str, who: Asked, *, overloaded: bool) -> Outcome:
        async def decide(state: SessionState | None) -> Decision:
            if state is None:
                return refusals.unknown_session(body.session_id)
            facts = await self._facts(state)
            decided = continuing.admit(state, facts, body, who, run_id, self._sessions.rules)
            return unless_full(decided, overloaded=overloaded)

        return await self._sessions.change(body.session_id, decide, who)

    async def _facts(self, state: SessionState | None) -> ContinueFacts:
        parent = await self._parent(state) if state is not None else None
        run = state.run if state is not None else None
        question = await self._sessions.log.open_question(run.run_id) if run is not None else None
        return ContinueFacts(parent, question)

    async def _parent(self, state: SessionState) -> SessionState | None:
        return await self._reach.session(state.parent_session_id)

    async def _receipt(self, state: SessionState, run_id: str) -> Reply:
        run = await self._sessions.log.run(state, run_id)
        if run is None:
            raise LookupError(f"run {run_id} of {state.session_id} is not in the log")
        return {
            "session_id": state.session_id,
            "run_id": run_id,
            "period_id": run.period_id,
            "status": run.status.value,
        }
