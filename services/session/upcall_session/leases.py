"""Leases: who has to beat, and who was heard. In this process's memory, and in Redis for all instances."""

import time
from collections.abc import Awaitable
from typing import Any, Final, cast

from nats.aio.msg import Msg
from pydantic import ValidationError
from redis.asyncio import Redis

from upcall_contracts import keys
from upcall_contracts.records import Heartbeat
from upcall_contracts.states import SessionState
from upcall_contracts.subjects import parse_heartbeat
from upcall_shell.errors import Unavailable
from upcall_shell.indexing import IndexKeeper
from upcall_shell.redis_gate import RedisGate

from .clock import now_ms
from .decisions.liveness import Lease, is_leased, is_of_host, lease_of
from .log_store import Recent, SessionLog

# Who takes a run over the moment it is queued again has a lease before this one is dropped: that one stays.
_DROP = """
local expires = redis.call('ZSCORE', KEYS[1], ARGV[1])
if expires and tonumber(expires) <= tonumber(ARGV[2]) then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return 0
"""
_SESSIONS: Final = 100_000
_BELIEVED_MAX_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.2  # at the soonest, where a beat does not fit to what is believed
_SHARES: Final = 4  # so often within a lease is a beat told to Redis


class Leases:
    """Grants leases, and hears heartbeats."""

    def __init__(self, gate: RedisGate, keeper: IndexKeeper, sessions: SessionLog) -> None:
        self._gate = gate
        self._keeper = keeper
        self._sessions = sessions
        self._beats: Recent[float] = Recent(_SESSIONS)
        self._told: Recent[float] = Recent(_SESSIONS)
        self._known: Recent[tuple[float, Lease]] = Recent(_SESSIONS)

    async def follow(self, before: SessionState | None, after: SessionState) -> None:
        """Grant a lease from now on where an entry made somebody its host.

        One that is over is left to pass: then the sweep finds what is still owed, also after a crash.
        """
        was = before is not None and is_leased(before)
        if is_leased(after) and (before is None or not was or _host(before) != _host(after)):
            await self.grant(after)

    async def follow_again(self, state: SessionState) -> None:
        """Grant the lease that is missing: whoever stored the entry died before it was granted."""
        if is_leased(state):
            await self.grant(state, if_missing=True)

    async def grant(self, state: SessionState, *, if_missing: bool = False) -> None:
        """A whole lease from now on."""
        lease = {state.session_id: now_ms() + state.lease_ms}
        await self._keeper.write(lambda redis: redis.zadd(keys.leases(), lease, nx=if_missing))

    async def beat(self, message: Msg) -> None:
        """Hear a heartbeat."""
        session_id = parse_heartbeat(message.subject)
        if session_id is None:
            return
        now = time.monotonic()
        try:
            lease = await self._lease(session_id, _named(message.data), now)
        except Unavailable:
            self._beats.put(session_id, now)  # whose it is can't be told: better heard than gone
            raise
        if lease is None:
            return
        self._beats.put(session_id, now)
        length = lease.length_ms
        if length == 0 or now - self._told.get(session_id, 0.0) < length / 1000 / _SHARES:
            return
        self._told.put(session_id, now)
        expires = now_ms() + length
        # Only a lease that was granted is extended: a beat makes nobody a host.
        await self._gate.attempt(
            lambda redis: redis.zadd(keys.leases(), {session_id: expires}, xx=True, gt=True)
        )

    def silent_ms(self, session_id: str) -> float | None:
        """For how long this process has not heard a session; None if it never has."""
        heard = self._beats.get(session_id)
        return None if heard is None else (time.monotonic() - heard) * 1000

    async def due(self, now: int) -> list[str] | None:
        """Sessions whose lease has passed as Redis has it; None while Redis is away."""

        async def look(redis: Redis) -> list[Any]:
            return await redis.zrangebyscore(keys.leases(), "-inf", now)

        found = await self._gate.attempt(look)
        return None if found is None else [cast(bytes, each).decode() for each in found]

    async def postpone(self, session_id: str, until: int) -> None:
        """Look at a session again at epoch ms `until`: it was heard here."""
        await self._gate.attempt(
            lambda redis: redis.zadd(keys.leases(), {session_id: until}, xx=True, gt=True)
        )

    async def drop(self, session_id: str, now: int) -> None:
        """Nobody has to beat for a session whose lease had passed at epoch ms `now`; a later one stays."""

        async def remove(redis: Redis) -> Any:
            return await cast(Awaitable[Any], redis.eval(_DROP, 1, keys.leases(), session_id, str(now)))

        await self._gate.attempt(remove)

    async def _lease(self, session_id: str, beat: Heartbeat, now: float) -> Lease | None:
        """The lease that a beat extends; None where the beat is not of the session's host."""
        read_at, lease = self._known.get(session_id, (0.0, None))
        age = now - read_at
        if lease is not None and age <= _believed_s(lease) and is_of_host(lease, beat):
            return lease
        if lease is None or age > _LOOK_AGAIN_S:
            loaded = await self._sessions.load(session_id)
            if loaded is None:
                return None
            lease = lease_of(loaded.state)
            self._known.put(session_id, (now, lease))
        return lease if is_of_host(lease, beat) else None


def _believed_s(lease: Lease) -> float:
    """How long it is believed: another may hold the run meanwhile, or the length be another."""
    return min(lease.length_ms / 1000 / _SHARES or _BELIEVED_MAX_S, _BELIEVED_MAX_S)


def _named(body: bytes) -> Heartbeat:
    """What a beat says of itself; one that can't be read says nothing."""
    try:
        return Heartbeat.model_validate_json(body or b"{}")
    except ValidationError:
        return Heartbeat()


def _host(state: SessionState) -> tuple[Any, ...]:
    """What a lease is granted to: another host, attempt or length is a lease of its own."""
    run = (state.run.run_id, state.run.attempt, state.run.status) if state.run else None
    return state.holder, state.live, state.lease_ms, run
