"""Where commands with a command_id were tried, in Redis: so that one id of a caller's verb is one command.

An aggregate knows the commands that were carried out on it. That the same id was used for something else, on
another aggregate, is noticed here, and refused once the log says so too. All of it follows from the log.
"""

import time
from dataclasses import dataclass
from typing import Any, Final, cast

from upcall_contracts import keys
from upcall_contracts.log import CommandMark

from .redis_gate import RedisGate

KEPT_S: Final = 40 * 86_400
"""How long a command is remembered, in seconds: longer than a tree in which nothing happens is kept."""
IN_HAND_MS: Final = 3_000
"""A try that the log does not show may be under way for so long; after that it came to nothing."""

_TRY: Final = """
local tries, place, last = redis.call('HGETALL', KEYS[1]), '', 0
if ARGV[1] ~= '' then
  for i = 1, #tries, 2 do
    last = math.max(last, tonumber(string.match(tries[i + 1], '^%d+')))
    if tries[i] == ARGV[1] then place = string.match(tries[i + 1], '^%d+ %d+') end
  end
  if place == '' then place = (last + 1) .. ' ' .. ARGV[2] end
  redis.call('HSET', KEYS[1], ARGV[1], place .. ' ' .. ARGV[3])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return {place, tries, redis.call('GET', KEYS[2])}
"""
"""A field for each try: which of them it was, where its entry can stand, and when it was tried last."""


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
        await self._gate.run(("HDEL", keys.command(mark.key), _field(mark, place)))

    async def _eval(self, mark: CommandMark, field: str, seq: int) -> Tries | None:
        names = [keys.command(mark.key), keys.ready(self._service)]
        await self._gate.know_server()
        found = await self._gate.run(("EVAL", _TRY, len(names), *names, field, seq, _now_ms(), KEPT_S))
        if found is None:
            return None
        place, tries, ready = cast(tuple[bytes, list[bytes], bytes | None], found[0])
        flat = [each.decode() for each in tries]
        return Tries(
            whole=self._gate.is_of_this_server(ready),
            order=int(place.decode().partition(" ")[0] or 0),
            tries=[_read(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)],
        )


def add_from_log(pipe: Any, mark: CommandMark, place: str, seq: int) -> None:
    """Note within a pipeline what an entry of the log at `seq` has carried out."""
    pipe.hset(keys.command(mark.key), _field(mark, place), f"0 {seq - 1} 0")
    pipe.expire(keys.command(mark.key), KEPT_S)


def _field(mark: CommandMark, place: str) -> str:
    return f"{place} {mark.fingerprint}"


def _read(field: str, value: str) -> Try:
    place, _, fingerprint = field.partition(" ")
    order, since, at = value.split(" ")
    return Try(place, fingerprint, int(order), int(since), int(at))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
