"""Whether a part can serve: one short question to its port, and True or False for an answer."""

import asyncio
from collections.abc import Awaitable, Callable

from upcall_deploy.ports import HOST

Probe = Callable[[int], Awaitable[bool]]
TIMEOUT = 2.0


async def nats_answers(port: int) -> bool:
    """nats-server opens its port after JetStream has recovered its streams, and greets with INFO."""
    return (await _first_line(port, b"")).startswith(b"INFO ")


async def redis_answers(port: int) -> bool:
    """While Redis reads its append-only file it answers PING with -LOADING."""
    return (await _first_line(port, b"PING\r\n")).startswith(b"+PONG")


async def service_is_ready(port: int) -> bool:
    """GET /readyz is 200 while the service can reach all it needs."""
    request = f"GET /readyz HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n"
    return b" 200" in (await _first_line(port, request.encode()))


async def _first_line(port: int, question: bytes) -> bytes:
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(question)
                return await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return b""
