"""Whether a command came before: on its session, longer ago than the state remembers, or on another one."""

import asyncio
from typing import Final

from upcall_contracts import log, refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.log import CommandMark
from upcall_contracts.states import DoneCommand, SessionState
from upcall_shell.command_index import CommandIndex, Tries, Try
from upcall_shell.indexing import IndexKeeper

from .decisions.results import Asked, Repeated
from .log_store import SessionLog, read_mark, read_state
from .redelivery import is_redelivery

_LOOK_S: Final = 0.05


class Earlier:
    """Finds what a command has caused before. The index says where to look; what counts is the log."""

    def __init__(self, sessions: SessionLog, commands: CommandIndex, keeper: IndexKeeper) -> None:
        self._sessions = sessions
        self._commands = commands
        self._keeper = keeper

    async def find(self, session_id: str, asked: Asked, seq: int) -> Repeated | Refusal | None:
        """What to say of a command that the state of a session does not remember; None: it is new.

        `seq` is where the session's last entry stands. A command_id is noted as tried here, so that the same
        id for something else is noticed, also where that comes in this very moment.
        """
        if asked.command_id is None:
            return await self._redelivered(session_id, asked, seq)
        tries = await self._commands.tried(asked.mark, session_id, seq)
        if tries is None:
            await self._keeper.write(lambda redis: redis.ping())  # what was not noted makes it doubtful
        found = await self._on(session_id, asked, seq, tries) or await self._elsewhere(
            session_id, asked, tries
        )
        if isinstance(found, Refusal):
            await self.refused(session_id, asked)
        return found

    async def was_done(self, session_id: str, asked: Asked, seq: int) -> bool:
        """Whether a command was carried out on a session."""
        if asked.command_id is None:
            found = await self._redelivered(session_id, asked, seq)
        else:
            found = await self._on(session_id, asked, seq, await self._commands.look(asked.mark))
        return isinstance(found, Repeated)

    async def refused(self, session_id: str, asked: Asked) -> None:
        """A refusal is not remembered."""
        if asked.command_id is not None:
            await self._commands.refused(asked.mark, session_id)

    async def _redelivered(self, session_id: str, asked: Asked, seq: int) -> Repeated | Refusal | None:
        return await self._scan(session_id, asked, 0) if is_redelivery() and seq > 0 else None

    async def _on(
        self, session_id: str, asked: Asked, seq: int, tries: Tries | None
    ) -> Repeated | Refusal | None:
        """Where the index may lack something, the command may have been tried at any time before."""
        whole = tries is not None and tries.whole
        here = tries.on(session_id) if tries is not None else []
        if seq == 0 or (whole and not here):
            return None
        return await self._scan(session_id, asked, min(each.since for each in here) if whole else 0)

    async def _scan(self, session_id: str, asked: Asked, since: int) -> Repeated | Refusal | None:
        async for _, entry in self._sessions.scan([log.session_guard(session_id)], since + 1):
            mark = read_mark(entry)
            if mark is not None and mark.key == asked.mark.key:
                if mark.fingerprint != asked.mark.fingerprint:
                    return refusals.command_id_reused(asked.command_id or "")
                return Repeated(_result(read_state(entry), mark.key))
        return None

    async def _elsewhere(self, session_id: str, asked: Asked, tries: Tries | None) -> Refusal | None:
        for other in tries.of_others(session_id, asked.mark) if tries is not None else []:
            if tries is not None and await self._is_carried_out(other, asked.mark, tries):
                return refusals.command_id_reused(asked.command_id or "")
        return None

    async def _is_carried_out(self, other: Try, mine: CommandMark, tries: Tries) -> bool:
        """Whether another session's log has it, once nobody has it in hand any more."""
        while True:
            in_hand = tries.in_hand(other)
            async for _, entry in self._sessions.scan([log.session_guard(other.place)], other.since + 1):
                mark = read_mark(entry)
                if mark is not None and mark.key == mine.key and mark.fingerprint == other.fingerprint:
                    return True
            if not in_hand:
                return False
            await asyncio.sleep(_LOOK_S)


def _result(state: SessionState, key: str) -> dict[str, int | str | None]:
    found: DoneCommand | None = next((done for done in state.done if done.key == key), None)
    return found.result if found is not None else {}
