"""The session service's index in Redis: from runs to sessions, histories, commands, leases.

All of it follows from the log, and whoever reads it falls back on the log.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

import structlog
from redis.asyncio import Redis

from upcall_contracts import keys, log
from upcall_contracts.states import SessionState
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
_COMMAND_S: Final = 40 * 86_400
"""How long a command is remembered here, in seconds: longer than a tree in which nothing happens is kept."""
_CLAIM: Final = """
local before = redis.call('GET', KEYS[1])
if before then return tonumber(before) end
local whole = redis.call('EXISTS', KEYS[2]) == 1
redis.call('SET', KEYS[1], whole and ARGV[1] or '0', 'EX', ARGV[2])
return whole and -1 or 0
"""
"""Where the index may lack something, the command may have been tried at any time before."""


class SessionIndex:
    """Finds a run's session, where a history begins, and whether a command came before."""

    def __init__(self, gate: RedisGate, sessions: SessionLog) -> None:
        self._gate = gate
        self._sessions = sessions
        self._run_sessions: Recent[str] = Recent(_RUNS_CACHED)
        self.keeper = IndexKeeper(gate, SERVICE, self._rebuild)

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
                pipe.exists(keys.ready(SERVICE))
                pipe.zrevrangebyscore(keys.history(session_id), index, "-inf", start=0, num=1)
                return await pipe.execute()

        found = await self._gate.attempt(look)
        return int(found[1][0]) if found and found[0] and found[1] else 1

    async def all_sessions(self) -> list[str]:
        """Every session, oldest first."""

        async def look(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=True) as pipe:
                pipe.exists(keys.ready(SERVICE))
                pipe.zrange(keys.sessions_all(), 0, -1)
                return await pipe.execute()

        found = await self._gate.attempt(look)
        if found and found[0]:
            return [cast(bytes, each).decode() for each in found[1]]
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

    # Commands

    async def claim_command(self, key: str, session_id: str, seq: int) -> int | None:
        """Where to look for a command that may have been carried out on a session before.

        Notes that it is tried now, at sequence `seq` of the log. Returns the sequence at which it was first
        tried; 0 for: anywhere; None where this is the first time.
        """

        names = [keys.command(f"{key}/{session_id}"), keys.ready(SERVICE)]
        found = await self._gate.attempt(lambda redis: _claim(redis, names, seq))
        if found is None:
            await self.keeper.write(lambda redis: redis.ping())  # what was not noted makes it doubtful
            return 0
        return None if found < 0 else found

    # The whole of it

    async def _rebuild(self) -> None:
        states: dict[str, SessionState] = {}
        batch: list[tuple[str, Any, Any]] = []
        async for stored, entry in self._sessions.scan([log.SESSION_GUARD_ALL]):
            session_id = str(entry["session_id"])
            states[session_id] = read_state(entry)
            batch += _writes(session_id, stored.seq, entry)
            if len(batch) >= _BATCH:
                await self._write(batch)
                batch = []
        now = now_ms()
        for state in states.values():
            batch.append(("zadd", keys.sessions_all(), {state.session_id: state.created_at}))
            if is_leased(state) or is_unfinished(state):
                # A whole lease from now on: whoever beats has the time to be heard.
                batch.append(("zadd", keys.leases(), {state.session_id: now + state.lease_ms}))
        await self._write(batch)

    async def _write(self, batch: Sequence[tuple[str, Any, Any]]) -> None:
        async def write(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=False) as pipe:
                for verb, key, value in batch:
                    if verb == "zadd":
                        pipe.zadd(key, value)
                    else:
                        pipe.set(key, value, ex=_COMMAND_S if verb == "command" else None)
                return await pipe.execute()

        await self._gate.attempt(write)


async def _claim(redis: Redis, names: list[str], seq: int) -> int:
    answer: Any = redis.eval(_CLAIM, len(names), *names, str(seq), str(_COMMAND_S))
    return int(await answer)


def _writes(session_id: str, seq: int, entry: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """What an entry adds to the index."""
    found: list[tuple[str, Any, Any]] = []
    mark = read_mark(entry)
    if mark is not None:
        found.append(("command", keys.command(f"{mark.key}/{session_id}"), seq - 1))
    if entry.get("history"):
        found.append(("zadd", keys.history(session_id), {str(seq): int(entry["history"][0]["index"])}))
    if entry["run_id"]:
        found.append(("set", keys.run_session(str(entry["run_id"])), session_id))
    return found
