"""Ready means ready: who asks a service as soon as it says so is answered, however slow its link to NATS."""

import json
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client

from tests.in_process import serving, settings_for
from tests.question_broker.place import Place
from tests.relay import relay
from upcall_shell.process import Service
from upcall_shell.queries import Query
from upcall_shell.settings import ShellSettings

LATE_S = 0.1
"""So much later arrives at NATS what the service says."""


async def test_a_ready_service_hears_the_first_query(servers: Place, nc: Client) -> None:
    """Its subscriptions have reached the server before it says that it serves."""

    async def answer(_: Query[Any]) -> dict[str, Any]:
        return {"heard": True}

    async with relay(urlsplit(servers.nats.url).port, late_s=LATE_S) as port:
        settings: dict[str, Any] = settings_for(servers) | {"nats_url": f"nats://127.0.0.1:{port}"}
        service = Service("ready", ShellSettings(**settings))
        service.on_queries({("report", "get"): answer})
        async with serving(service):
            reply = await nc.request("query.P.report.get", b'{"period_id": "p1"}', timeout=5)
    assert json.loads(reply.data)["result"] == {"heard": True}
