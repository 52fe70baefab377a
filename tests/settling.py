"""Wait until a server has all that was said to it."""

from nats.aio.client import Client
from redis.asyncio import Redis


async def settle(nc: Client) -> None:
    """Return when everything sent on `nc` so far has been taken in by the server, subscriptions included.

    nats-py writes a PING past what it still buffers, so one flush may come back before the server has seen
    it; the second one can't, since the buffer was written while the first was on its way.
    """
    await nc.flush()
    await nc.flush()


async def on_disk(redis_url: str) -> None:
    """Return when all that Valkey was told so far is in its file: while one flush is on its way it holds
    back what comes next, and a kill loses that."""
    async with Redis.from_url(redis_url) as redis:
        await redis.set("tests:written-last", 1)
        assert await redis.waitaof(1, 0, 15_000) == [1, 0]
