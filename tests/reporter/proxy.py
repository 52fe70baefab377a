"""A TCP proxy between a client and NATS that stops the traffic at a sign of the test's choice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Forwards until a sign is seen in what the client sends; from then on nothing passes, either way.

    `let_sign_through` decides whether the server still gets what holds the sign; its answer is lost anyhow.
    """

    def __init__(self, upstream: int, sign: bytes, *, let_sign_through: bool) -> None:
        self._upstream = upstream
        self._sign = sign
        self._let_through = let_sign_through
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._clients: list[asyncio.StreamWriter] = []
        self.seen = asyncio.Event()
        self.port = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        serving = asyncio.current_task()
        assert serving is not None
        self._tasks.add(serving)
        self._writers.append(writer)
        self._clients.append(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._writers.append(up_writer)
        await asyncio.gather(self._up(reader, up_writer), self._down(up_reader, writer))

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        with suppress(ConnectionError):
            while (chunk := await reader.read(65536)) and not self.seen.is_set():
                if self._sign in tail + chunk:
                    if self._let_through:
                        writer.write(chunk)
                        await writer.drain()
                    self.seen.set()
                    return
                tail = chunk[-len(self._sign) :]
                writer.write(chunk)
                await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while (chunk := await reader.read(65536)) and not self.seen.is_set():
                writer.write(chunk)
                await writer.drain()

    def say(self, line: bytes) -> None:
        """Say something to all clients, as the server might."""
        for client in self._clients:
            client.write(line)

    async def close(self) -> None:
        """Cut all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@asynccontextmanager
async def proxy(upstream: int, sign: bytes, *, let_sign_through: bool) -> AsyncIterator[Proxy]:
    """A proxy on a free port."""
    made = Proxy(upstream, sign, let_sign_through=let_sign_through)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.close()
