"""session.spawn: the parent counts the child, then the child is made."""

from collections.abc import Awaitable, Callable

from upcall_contracts import refusals
from upcall_contracts.commands import SessionSpawn
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import RunRecord
from upcall_contracts.states import SessionState
from upcall_session.decisions import access, counting, spawning
from upcall_session.decisions.results import Asked, Repeated
from upcall_session.decisions.spawning import NewIds
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Sessions
from upcall_shell.commands import Command

from .cascade import Cascade
from .common import Reply, asked, unless_full


class Spawning:
    """Spawns sessions."""

    def __init__(
        self, sessions: Sessions, reach: Reach, cascade: Cascade, overloaded: Callable[[], Awaitable[bool]]
    ) -> None:
        self._sessions = sessions
        self._reach = reach
        self._cascade = cascade
        self._overloaded = overloaded

    async def spawn(self, command: Command[SessionSpawn]) -> Reply:
        """session.spawn: a child session with its first run."""
        caller = await self._speaker(command.caller, command.body.run_id)
        if isinstance(caller, Refusal):
            return caller
        parent, named = caller
        who, ids = asked(command), NewIds(command.derive_id("s_"), command.derive_id("r_"))
        overloaded = await self._overloaded()

        async def count(state: SessionState | None) -> Decision:
            if state is None:
                return refusals.unknown_session(command.caller)
            decided = spawning.count_child(state, named, command.body, who, ids, self._sessions.rules)
            return unless_full(decided, overloaded=overloaded)

        counted = await self._sessions.change(parent.session_id, count, who)
        if isinstance(counted.decision, Refusal):
            return counted.decision
        return await self._make(parent.session_id, named, command.body, who, ids)

    async def _speaker(
        self, caller: str, run_id: str | None
    ) -> tuple[SessionState, RunRecord | None] | Refusal:
        """The session that spawns, and the run that is named: the caller's own, or one that it holds."""
        if run_id is None or caller == OPERATOR:
            state = await self._reach.session(caller)
            return (state, None) if state is not None else refusals.unknown_session(caller)
        found = await self._reach.run(run_id)
        if found is None or not access.spoke_for(caller, found.state, found.run):
            return refusals.unknown_run(run_id)
        return found.state, found.run

    async def _make(
        self, parent_id: str, named: RunRecord | None, body: SessionSpawn, who: Asked, ids: NewIds
    ) -> Reply:
        async def make(state: SessionState | None) -> Decision:
            if state is not None and state.parent_session_id != parent_id:
                return refusals.command_id_reused(who.command_id or "")
            if state is not None:
                return Repeated({"run_id": ids.run_id})
            parent = await self._reach.session(parent_id)
            if parent is None or parent.closed_at is not None or parent.closing:
                return refusals.session_closed(parent_id)
            return spawning.make_child(parent, named, body, who, ids, self._sessions.rules)

        made = await self._sessions.change(ids.session_id, make)
        if isinstance(made.decision, Refusal):
            await self._uncount(parent_id, ids, who.now)
            return made.decision
        await self._cascade.catch_up(parent_id, made.state, who.now)
        run = await self._sessions.log.run(made.state, ids.run_id)
        if run is None:
            raise LookupError(f"run {ids.run_id} of {ids.session_id} is not in the log")
        return {
            "session_id": ids.session_id,
            "run_id": ids.run_id,
            "period_id": run.period_id,
            "status": run.status.value,
        }

    async def _uncount(self, parent_id: str, ids: NewIds, now: int) -> None:
        async def decide(state: SessionState | None) -> Decision:
            return counting.uncount(state, ids.session_id, ids.run_id, now) if state is not None else None

        await self._sessions.change(parent_id, decide)
