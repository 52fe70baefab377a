"""The session service's index in Redis: from runs to sessions, histories, commands, leases.

All of it follows from the log, and whoever reads it falls back on the log.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import structlog
from redis.asyncio import Redis

from upcall_contracts import keys, log
from upcall_contracts.states import SessionState
from upcall_shell.command_index import CommandIndex, add_from_log
from upcall_shell.indexing import IndexKeeper
from upcall_shell.redis_gate import RedisGate

from .clock import now_ms
from .decisions.liveness import is_leased, is_unfinished
from .decisions.results import Decided
from .log_store import Recent, SessionLog, read_mark, read_state

logger = structlog.get_logger()

SERVICE: Final = "session"
_RUNS_CACHED: Final = 100_000
_BATCH: Final = 500

Write = Callable[[Any], Any]
"""What is to be written, within a pipeline."""


class SessionIndex:
    """Finds a run's session, where a history begins, and where a command was tried before."""

    def __init__(self, gate: RedisGate, sessions: SessionLog) -> None:
        self._gate = gate
        self._sessions = sessions
        self._run_sessions: Recent[str] = Recent(_RUNS_CACHED)
        self.keeper = IndexKeeper(gate, SERVICE, self._rebuild)
        self.commands = CommandIndex(gate, SERVICE)

    # Runs

    async def session_of_run(self, run_id: str) -> str | None:
        """The session of a run; None if there is no such run."""
        known = self._run_sessions.get(run_id)
        if known is not None:
            return known
        found = await self._gate.attempt(lambda redis: redis.get(keys.run_session(run_id)))
        session_id = cast(bytes, found).decode() if found else await self._sessions.find_run(run_id)
        return self._run_sessions.put(run_id, session_id) if session_id else None

    # Entries

    async def note(self, decided: Decided, seq: int) -> None:
        """Bring the index up to an entry."""
        state = decided.state
        run, history = state.run, decided.history
        new_run = run is not None and run.run_id not in self._run_sessions
        if run is not None:
            self._run_sessions.put(run.run_id, state.session_id)
        if not new_run and not history and state.updated_at != state.created_at:
            return

        async def write(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=False) as pipe:
                if run is not None and new_run:
                    pipe.set(keys.run_session(run.run_id), state.session_id)
                if history:
                    pipe.zadd(keys.history(state.session_id), {str(seq): int(history[0]["index"])})
                pipe.zadd(keys.sessions_all(), {state.session_id: state.created_at})
                return await pipe.execute()

        await self.keeper.write(write)

    async def history_from(self, session_id: str, index: int) -> int:
        """A sequence of the log at or before which the history's message of this index stands."""

        async def look(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=True) as pipe:
                self._gate.look_if_ready(pipe, SERVICE)
                pipe.zrevrangebyscore(keys.history(session_id), index, "-inf", start=0, num=1)
                return await pipe.execute()

        found = await self._look(look)
        return int(found[0]) if found else 1

    async def all_sessions(self) -> list[str]:
        """Every session, oldest first."""

        async def look(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=True) as pipe:
                self._gate.look_if_ready(pipe, SERVICE)
                pipe.zrange(keys.sessions_all(), 0, -1)
                return await pipe.execute()

        found = await self._look(look)
        if found is not None:
            return [cast(bytes, each).decode() for each in found]
        sessions: dict[str, None] = {}
        async for stored, _ in self._sessions.scan([log.SESSION_GUARD_ALL]):
            sessions[log.tokens(stored.subject)[1]] = None
        return list(sessions)

    async def forget(self, session_ids: Sequence[str], run_ids: Sequence[str]) -> None:
        """Take out what was purged."""

        async def write(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=False) as pipe:
                for session_id in session_ids:
                    pipe.zrem(keys.sessions_all(), session_id)
                    pipe.zrem(keys.leases(), session_id)
                    pipe.delete(keys.history(session_id))
                for run_id in run_ids:
                    pipe.delete(keys.run_session(run_id))
                return await pipe.execute()

        for run_id in run_ids:
            self._run_sessions.pop(run_id, None)
        await self.keeper.write(write)

    async def _look(self, look: Callable[[Redis], Awaitable[list[Any]]]) -> list[Any] | None:
        """Use Redis for what an index that is whole says; None where it is not, or Redis is away."""
        found = None if self.keeper.doubtful else await self._gate.attempt(look)
        if found is None:
            return None
        mark, server, answer = found
        return answer if self._gate.was_ready(mark, server) else None

    # The whole of it

    async def _rebuild(self) -> None:
        states: dict[str, SessionState] = {}
        batch: list[Write] = []
        async for stored, entry in self._sessions.scan([log.SESSION_GUARD_ALL]):
            session_id = str(entry["session_id"])
            states[session_id] = read_state(entry)
            batch += _writes(session_id, stored.seq, entry)
            if len(batch) >= _BATCH:
                await self._write(batch)
                batch = []
        now = now_ms()
        for state in states.values():
            batch.append(_in_order(keys.sessions_all(), {state.session_id: state.created_at}))
            if is_leased(state) or is_unfinished(state):
                # A whole lease from now on: whoever beats has the time to be heard.
                batch.append(_in_order(keys.leases(), {state.session_id: now + state.lease_ms}))
        await self._write(batch)

    async def _write(self, batch: Sequence[Write]) -> None:
        async def write(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=False) as pipe:
                for each in batch:
                    each(pipe)
                return await pipe.execute()

        await self._gate.attempt(write)


def _in_order(name: str, members: dict[str, int]) -> Write:
    return lambda pipe: pipe.zadd(name, members)


def _writes(session_id: str, seq: int, entry: dict[str, Any]) -> list[Write]:
    """What an entry adds to the index."""
    found: list[Write] = []
    mark = read_mark(entry)
    if mark is not None:
        found.append(lambda pipe: add_from_log(pipe, mark, session_id, seq))
    if entry.get("history"):
        found.append(_in_order(keys.history(session_id), {str(seq): int(entry["history"][0]["index"])}))
    run_id = str(entry["run_id"] or "")
    if run_id:
        found.append(lambda pipe: pipe.set(keys.run_session(run_id), session_id))
    return found
