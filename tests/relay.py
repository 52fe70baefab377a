"""A way to a server that leads through the test, which may slow it down or cut it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from upcall_deploy.ports import HOST

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Meet = Callable[[Streams, Streams], Awaitable[bool]]
"""Given a client's and the server's ends of a new connection, whether to carry what they say."""


async def _always(_: Streams, __: Streams) -> bool:
    return True


@asynccontextmanager
async def relay(port: int | None, *, late_s: float = 0.0, meet: Meet = _always) -> AsyncIterator[int]:
    """A port of HOST that leads to `port`; what a client says arrives there `late_s` seconds later."""
    carrying: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late_s: float) -> None:
        while chunk := await reader.read(65536):
            await asyncio.sleep(late_s)
            writer.write(chunk)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        if not await meet((reader, writer), (far_reader, far_writer)):
            writer.close()
            far_writer.close()
            return
        carrying.add(asyncio.create_task(carry(reader, far_writer, late_s)))
        carrying.add(asyncio.create_task(carry(far_reader, writer, 0)))

    async with await asyncio.start_server(accept, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
