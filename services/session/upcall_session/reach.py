"""Finding what a caller names, as far as it may see it. What it may not see is answered as not there."""

import asyncio
from dataclasses import dataclass

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import RunRecord
from upcall_contracts.states import SessionState

from .decisions import access
from .index import SessionIndex
from .log_store import SessionLog


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run, with its session."""

    state: SessionState
    run: RunRecord


class Reach:
    """Looks things up for a caller."""

    def __init__(self, sessions: SessionLog, index: SessionIndex) -> None:
        self._sessions = sessions
        self._index = index

    async def session(self, session_id: str | None) -> SessionState | None:
        """A session, whoever asks."""
        loaded = await self._sessions.load(session_id) if session_id is not None else None
        return loaded.state if loaded is not None else None

    async def run(self, run_id: str) -> FoundRun | None:
        """A run, whoever asks."""
        state = await self.session(await self._index.session_of_run(run_id))
        run = await self._sessions.run(state, run_id) if state is not None else None
        return FoundRun(state, run) if state is not None and run is not None else None

    async def sees(self, caller: str, state: SessionState) -> bool:
        """Whether the caller may see what belongs to a session."""
        if caller in {OPERATOR, *state.ancestors} or access.speaks_for(caller, state):
            return True
        above = await asyncio.gather(*[self.session(each) for each in state.ancestors])
        return access.sees(caller, [each for each in above if each is not None])

    async def visible_session(self, caller: str, session_id: str) -> SessionState | Refusal:
        """A session that the caller may see."""
        state = await self.session(session_id)
        if state is None or not await self.sees(caller, state):
            return refusals.unknown_session(session_id)
        return state

    async def visible_run(self, caller: str, run_id: str) -> FoundRun | Refusal:
        """A run that the caller may see: of a session that it may see, or one that it carried out."""
        found = await self.run(run_id)
        if found is None:
            return refusals.unknown_run(run_id)
        if caller == found.run.holder or await self.sees(caller, found.state):
            return found
        return refusals.unknown_run(run_id)

    async def descendants(self, session_id: str) -> list[SessionState]:
        """All sessions below one, parents before their children."""
        found: list[SessionState] = []
        level = [session_id]
        while level:
            ids = [child for each in level for child in await self._sessions.child_ids(each)]
            states = [s for s in await asyncio.gather(*[self.session(each) for each in ids]) if s is not None]
            found += states
            level = [state.session_id for state in states]
        return found
