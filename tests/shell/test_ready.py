"""Ready means ready: who asks a service as soon as it says so is answered, however slow its link to NATS."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client

from tests.in_process import serving, settings_for
from tests.question_broker.place import Place
from upcall_shell.process import Service
from upcall_shell.queries import Query
from upcall_shell.settings import ShellSettings

LATE_S = 0.1


@asynccontextmanager
async def slow_link(nats_url: str) -> AsyncIterator[str]:
    """The URL of a way to NATS on which all that a client says arrives LATE_S later."""
    port = urlsplit(nats_url).port
    links: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late_s: float) -> None:
        while chunk := await reader.read(65536):
            await asyncio.sleep(late_s)
            writer.write(chunk)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        links.add(asyncio.create_task(carry(reader, far_writer, LATE_S)))
        links.add(asyncio.create_task(carry(far_reader, writer, 0)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


async def test_a_ready_service_hears_the_first_query(servers: Place, nc: Client) -> None:
    """Its subscriptions have reached the server before it says that it serves."""

    async def answer(_: Query[Any]) -> dict[str, Any]:
        return {"heard": True}

    async with slow_link(servers.nats.url) as url:
        settings: dict[str, Any] = settings_for(servers) | {"nats_url": url}
        service = Service("ready", ShellSettings(**settings))
        service.on_queries({("report", "get"): answer})
        async with serving(service):
            reply = await nc.request("query.P.report.get", b'{"period_id": "p1"}', timeout=5)
    assert json.loads(reply.data)["result"] == {"heard": True}
