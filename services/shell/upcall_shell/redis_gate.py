"""Redis: a lock that is politeness, and an index that can be rebuilt. Nothing is refused for its sake alone.

Every use survives Redis being away: then the log is asked, which costs time and nothing else.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.lock import Lock
from redis.exceptions import LockError, RedisError

from upcall_contracts import keys

from .metrics import REDIS_DOWN

T = TypeVar("T")
logger = structlog.get_logger()

_FINISH = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""
_AWAY = (RedisError, OSError, TimeoutError)
_PAUSE_S = 1.0  # after a failure Redis is left alone for so long
_TRY_S = 5.0  # nobody else tries while the first one after a failure does
_LOCK_S = 5.0  # a holder that died lets go after so long
_LOCK_WAIT_S = 2.0  # then we go on without it: the guard on the log decides


RedisCommand = tuple[str | int, ...]
"""A command of Redis by its name, with its arguments."""


async def _pipelined(redis: Redis, batch: Iterable[tuple[Sequence[RedisCommand], Any]]) -> list[Any]:
    pipe = redis.pipeline(transaction=False)
    for commands, _ in batch:
        for command in commands:
            pipe.execute_command(*command)  # redis-py's methods for each cost as much again
    return await pipe.execute(raise_on_error=False)


class Turn:
    """Somebody's turn on an aggregate."""

    def __init__(self, gate: "RedisGate", aggregate: str) -> None:
        self._gate = gate
        self._aggregate = aggregate
        self._lock: Lock | None = None  # the most are alone, and need none
        self._held = False

    async def insist(self) -> None:
        """Another process got in first: wait for the lock in Redis, or for so long as is polite."""
        if self._lock is None:
            self._lock = lock = Lock(
                self._gate.redis,
                keys.lock(self._aggregate),
                timeout=_LOCK_S,
                blocking_timeout=_LOCK_WAIT_S,
                sleep=0.02,
            )
            self._held = bool(await self._gate.attempt(lambda _: lock.acquire()))

    async def end(self) -> None:
        """Let the next one in."""
        lock = self._lock
        if lock is not None and self._held:
            await self._gate.attempt(lambda _: self._release(lock))

    async def _release(self, lock: Lock) -> None:
        with suppress(LockError):  # it was held for too long, or Redis was emptied
            await lock.release()


class RedisGate:
    """A connection to Redis that may be away."""

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=64,
            timeout=2,
            socket_timeout=2,
            socket_connect_timeout=1,
            redis_connect_func=self._connected,
        )
        self.redis = Redis(connection_pool=pool, decode_responses=False)
        self._server: str | None = None
        self._connections = 0
        self._away_until = 0.0
        self._suspect = False
        self.failures = 0
        """How often it was found to be away."""
        self.steady_since = time.monotonic()
        """When Redis was last found to be back, on the monotonic clock."""
        self._local: dict[str, tuple[asyncio.Lock, int]] = {}
        self._waiting: list[tuple[Sequence[RedisCommand], asyncio.Future[list[Any] | None]]] = []
        self._sending: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether Redis failed a moment ago."""
        return time.monotonic() < self._away_until

    async def attempt(self, use: Callable[[Redis], Awaitable[T]]) -> T | None:
        """Use Redis; None if it is away."""
        if self.away:
            return None
        if self._suspect:  # one tries; the others do without meanwhile, for it may take its time to fail
            self._away_until = time.monotonic() + _TRY_S
        try:
            result = await use(self.redis)
        except _AWAY as error:
            self._failed(error)
            return None
        if self._suspect:
            self._suspect, self._away_until, self.steady_since = False, 0.0, time.monotonic()
        REDIS_DOWN.set(0)
        return result

    async def run(self, *commands: RedisCommand) -> list[Any] | None:
        """Run a few commands, each a name and its arguments; their results, or None if Redis is away.

        Those who come while others are on their way share a pipeline: under load it costs a fraction of a
        round trip each. Not for what takes long, which the others would wait for.
        """
        if self.away:
            return None
        done: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, done))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            found: list[Any] | None = None
            try:
                found = await self.attempt(lambda redis, batch=batch: _pipelined(redis, batch))
            finally:  # whatever happens, nobody is left waiting
                at = 0
                for commands, done in batch:
                    mine = found[at : at + len(commands)] if found is not None else None
                    at += len(commands)
                    refused = next((each for each in mine or [] if isinstance(each, RedisError)), None)
                    if refused is not None:
                        self._failed(refused)
                    if not done.done():
                        done.set_result(None if refused is not None else mine)

    def _failed(self, error: BaseException) -> None:
        logger.warning("redis is away", error=repr(error))
        REDIS_DOWN.set(1)
        self.failures += 1
        self._suspect = True
        self._away_until = time.monotonic() + _PAUSE_S
        self.steady_since = self._away_until

    async def ping(self) -> bool:
        """Whether Redis answers."""
        return bool(await self.attempt(lambda r: r.ping()))

    @asynccontextmanager
    async def lock(self, aggregate: str) -> AsyncIterator["Turn"]:
        """Serialise those who would collide on an aggregate: at once within the process, between processes
        from `Turn.insist` on, for which a collision is the time: whoever is alone pays no round trip."""
        async with self._local_lock(aggregate):
            turn = Turn(self, aggregate)
            try:
                yield turn
            finally:
                await turn.end()

    @asynccontextmanager
    async def _local_lock(self, aggregate: str) -> AsyncIterator[None]:
        lock, users = self._local.get(aggregate) or (asyncio.Lock(), 0)
        self._local[aggregate] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._local[aggregate]
            if users == 1:
                del self._local[aggregate]
            else:
                self._local[aggregate] = (lock, users - 1)

    async def count_failure(self, consumer: str, seq: int) -> int:
        """Count that a message has failed, all instances together; 0 while Redis is away."""
        name = keys.failures(consumer, seq)

        async def count(redis: Redis) -> int:
            async with redis.pipeline(transaction=True) as pipe:
                pipe.incr(name)
                pipe.expire(name, 3600)
                return int((await pipe.execute())[0])

        return await self.attempt(count) or 0

    # The index's mark

    def look_if_ready(self, pipe: Any, service: str) -> None:
        """Ask within a pipeline whether a service's index is whole; two answers, for `was_ready`."""
        pipe.get(keys.ready(service))
        pipe.info("server")

    def was_ready(self, mark: bytes | None, server: Mapping[str, Any]) -> bool:
        """What the two answers say. Whole is what this very process of Redis has seen become whole: another
        one may have started from a file, or from a replica, that lacks the last writes."""
        return mark is not None and mark.decode() == server["run_id"]

    async def know_server(self) -> None:
        """Learn which process of Redis answers, for `is_of_this_server`; free where it is known."""
        for _ in range(2):  # the first may need a connection, and then says nothing about the others
            if self._server is not None:
                return
            connections = self._connections
            info = await self.attempt(lambda redis: redis.info("server"))
            if info is not None and connections == self._connections:
                self._server = str(info["run_id"])

    def is_of_this_server(self, mark: bytes | None) -> bool:
        """Whether a mark that was read after `know_server` is this process's of Redis, as `was_ready` says.

        Another process answers on another connection, and with a new connection nothing is known any more.
        """
        return mark is not None and mark.decode() == self._server

    async def _connected(self, connection: AbstractConnection) -> None:
        self._server = None
        self._connections += 1
        await connection.on_connect()

    async def is_ready(self, service: str) -> bool:
        """Whether a service's index is whole; False also while Redis is away."""
        await self.know_server()
        mark = await self.attempt(lambda redis: redis.get(keys.ready(service)))
        if self._server is not None:
            return self.is_of_this_server(cast(bytes | None, mark))

        async def look(redis: Redis) -> bool:  # a connection was made just now: ask both on the same one
            async with redis.pipeline(transaction=False) as pipe:
                self.look_if_ready(pipe, service)
                return self.was_ready(*await pipe.execute())

        return bool(await self.attempt(look))

    async def begin_rebuild(self, service: str) -> str | None:
        """Begin to rebuild an index; the token that `finish_rebuild` takes, or None while Redis is away.

        Those that rebuild at the same time share the token, lest each undo what the other has finished.
        """
        name = keys.rebuilding(service)

        async def begin(redis: Redis) -> str:
            run_id = str((await redis.info("server"))["run_id"])
            mine = f"{run_id}/{uuid.uuid4().hex}"
            await redis.set(name, mine, ex=3600, nx=True)
            shared = cast(bytes, await redis.get(name) or b"").decode()
            if not shared.startswith(run_id):
                await redis.set(name, mine, ex=3600)
                shared = mine
            return shared

        return await self.attempt(begin)

    async def finish_rebuild(self, service: str, token: str) -> bool:
        """Mark an index as whole, unless since `begin_rebuild` Redis lost anything or somebody doubted it."""
        names, run_id = [keys.rebuilding(service), keys.ready(service)], token.partition("/")[0]

        async def finish(redis: Redis) -> bool:
            if (await redis.info("server"))["run_id"] != run_id:
                return False
            return bool(await cast(Awaitable[Any], redis.eval(_FINISH, 2, *names, token, run_id)))

        return bool(await self.attempt(finish))

    async def doubt(self, service: str) -> bool:
        """Say that an index may lack something, so that it is rebuilt, also by who is at it already. False
        while Redis is away."""
        names = [keys.ready(service), keys.rebuilding(service)]
        return await self.attempt(lambda r: r.delete(*names)) is not None

    async def close(self) -> None:
        """Give the connections back."""
        await self.redis.aclose(close_connection_pool=True)
