"""Wait until the server has seen all that a connection has sent."""

from nats.aio.client import Client


async def settle(nc: Client) -> None:
    """Return when everything sent on `nc` so far has been taken in by the server, subscriptions included.

    nats-py writes a PING past what it still buffers, so one flush may come back before the server has seen
    it; the second one can't, since the buffer was written while the first was on its way.
    """
    await nc.flush()
    await nc.flush()
