"""Where commands with a command_id were tried, in Redis: so that one id of a caller's verb is one command.

An aggregate knows the commands that were carried out on it. That the same id was used for something else, on
another aggregate, is noticed here, and refused once the log says so too. All of it follows from the log.
"""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.asyncio import Redis

from upcall_contracts import keys
from upcall_contracts.log import CommandMark

from .redis_gate import RedisGate

KEPT_S: Final = 40 * 86_400
"""How long a command is remembered, in seconds: longer than a tree in which nothing happens is kept."""
IN_HAND_MS: Final = 3_000
"""A try that the log does not show may be under way for so long; after that it came to nothing."""

_TRY: Final = """
local mark = redis.call('GET', KEYS[2])
local whole = mark and string.find(redis.call('INFO', 'server'), 'run_id:' .. mark, 1, true)
local tries = redis.call('HGETALL', KEYS[1])
local place = ''
if ARGV[1] ~= '' then
  local before = redis.call('HGET', KEYS[1], ARGV[1])
  place = before and string.match(before, '^%d+ %d+')
    or redis.call('HINCRBY', KEYS[1], '', 1) .. ' ' .. ARGV[2]
  redis.call('HSET', KEYS[1], ARGV[1], place .. ' ' .. ARGV[3])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return {whole and 1 or 0, place, tries}
"""
"""A field for each try, and one without a name that counts them."""


@dataclass(frozen=True, slots=True)
class Try:
    """A command of this id that was tried before."""

    place: str
    """The aggregate that it was tried on."""
    fingerprint: str
    order: int
    """Which of the tries it was; 0 for one that was read from the log."""
    since: int
    """The sequence of the log behind which its entry stands, if it was carried out."""
    at: int
    """Epoch ms at which it was tried last; 0 for one that was read from the log."""


@dataclass(frozen=True, slots=True)
class Tries:
    """What is known of a command's id."""

    whole: bool
    """Whether all is known; if not, anything may have been tried before."""
    order: int
    """Which of the tries is this one; 0 where it only looks."""
    tries: list[Try]
    """Those that were there before."""

    def on(self, place: str) -> list[Try]:
        """Those on an aggregate."""
        return [each for each in self.tries if each.place == place]

    def of_others(self, place: str, mark: CommandMark) -> list[Try]:
        """Those that would make this command one whose id was used already: elsewhere, for something else."""
        return [each for each in self.tries if each.place != place and each.fingerprint != mark.fingerprint]

    def in_hand(self, other: Try) -> bool:
        """Whether another try came first, and may be under way just now: then this one waits for it."""
        return other.order < self.order and _now_ms() - other.at < IN_HAND_MS


class CommandIndex:
    """Notes and finds tries for one service."""

    def __init__(self, gate: RedisGate, service: str) -> None:
        self._gate = gate
        self._service = service

    async def look(self, mark: CommandMark) -> Tries | None:
        """The tries of a command's id so far; None while Redis is away."""
        return await self._eval(mark, "", 0)

    async def tried(self, mark: CommandMark, place: str, seq: int) -> Tries | None:
        """The same, and note that it is tried on an aggregate now, whose last entry stands at `seq`."""
        return await self._eval(mark, _field(mark, place), seq)

    async def refused(self, mark: CommandMark, place: str) -> None:
        """Forget a try that was refused: a refusal is not remembered."""
        await self._gate.attempt(lambda redis: _delete(redis, mark, place))

    async def _eval(self, mark: CommandMark, field: str, seq: int) -> Tries | None:
        names = [keys.command(mark.key), keys.ready(self._service)]
        values = [field, str(seq), str(_now_ms()), str(KEPT_S)]

        async def run(redis: Redis) -> list[Any]:
            return await cast(Awaitable[list[Any]], redis.eval(_TRY, len(names), *names, *values))

        found = await self._gate.attempt(run)
        if found is None:
            return None
        order = int(cast(bytes, found[1]).decode().partition(" ")[0] or 0)
        flat = [cast(bytes, each).decode() for each in found[2]]
        tries = [_read(*pair) for pair in zip(flat[::2], flat[1::2], strict=True) if pair[0]]
        return Tries(bool(found[0]), order, tries)


def add_from_log(pipe: Any, mark: CommandMark, place: str, seq: int) -> None:
    """Note within a pipeline what an entry of the log at `seq` has carried out."""
    pipe.hset(keys.command(mark.key), _field(mark, place), f"0 {seq - 1} 0")
    pipe.expire(keys.command(mark.key), KEPT_S)


def _field(mark: CommandMark, place: str) -> str:
    return f"{place} {mark.fingerprint}"


async def _delete(redis: Redis, mark: CommandMark, place: str) -> int:
    return await cast(Awaitable[int], redis.hdel(keys.command(mark.key), _field(mark, place)))


def _read(field: str, value: str) -> Try:
    place, _, fingerprint = field.partition(" ")
    order, since, at = value.split(" ")
    return Try(place, fingerprint, int(order), int(since), int(at))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
