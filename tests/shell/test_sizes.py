"""What is too large for a message, on a real server: whoever wants it sent hears so, and all goes on."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.aio.client import Client

from tests.in_process import serving, settings_for
from tests.question_broker.place import Place
from tests.question_broker.world import eventually
from upcall_contracts import limits, log, streams, subjects
from upcall_contracts.errors import ok
from upcall_shell.commands import Command
from upcall_shell.errors import TooLarge
from upcall_shell.process import Service
from upcall_shell.queries import Query
from upcall_shell.settings import ShellSettings

LONGEST = limits.REPLY_MAX_BYTES - len(json.dumps(ok({"text": ""}), separators=(",", ":")))
"""Characters of the longest text that a reply may hold."""

TRACED = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=" + "1" * 500,
}
"""What a caller's command has, the reply has too, and a message's headers count as its body does."""


@pytest.fixture
async def service(servers: Place) -> AsyncIterator[Service]:
    """Answers a claim and a history with a text as long as the id of the run or session says."""

    async def claim(command: Command[Any]) -> dict[str, Any]:
        return {"text": "x" * int(command.body.run_id)}

    async def history(query: Query[Any]) -> dict[str, Any]:
        return {"text": "x" * int(query.body.session_id)}

    settings: dict[str, Any] = settings_for(servers)
    service = Service("sizes", ShellSettings(**settings))
    service.on_commands("session", {("run", "claim"): claim})
    service.on_queries({("session", "history"): history})
    async with serving(service):
        yield service


async def claimed(nc: Client, length: int, headers: dict[str, str]) -> dict[str, Any]:
    inbox = nc.new_inbox()
    replies = await nc.subscribe(inbox)
    body = json.dumps({"run_id": str(length)}).encode()
    command = subjects.command("S", "run", "claim")
    await nc.jetstream().publish(command, body, headers={**headers, subjects.H_REPLY_TO: inbox})
    return json.loads((await replies.next_msg(timeout=20)).data)


async def asked(nc: Client, length: int, headers: dict[str, str]) -> dict[str, Any]:
    body = json.dumps({"session_id": str(length)}).encode()
    query = subjects.query("S", "session", "history")
    return json.loads((await nc.request(query, body, timeout=20, headers=headers)).data)


@pytest.mark.parametrize("headers", [{}, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("say", [claimed, asked])
async def test_too_large_a_reply_is_internal(
    service: Service, nc: Client, say: Any, headers: dict[str, str]
) -> None:
    """Whatever its size, there is a reply, and the connection that brings it stays."""
    for length in (LONGEST + 1, limits.PAYLOAD_MAX_BYTES, 3 * limits.PAYLOAD_MAX_BYTES):
        reply = await say(nc, length, headers)
        assert reply["error"]["code"] == "internal"
        assert reply["error"]["retryable"]
    assert len((await say(nc, LONGEST, headers))["result"]["text"]) == LONGEST
    assert service.connection().is_connected
    assert service.connection().stats["reconnects"] == 0


async def test_a_command_whose_reply_was_too_large_is_done(service: Service, nc: Client) -> None:
    """It was carried out, and does not come again."""

    async def left() -> int:
        return (await nc.jetstream().stream_info(streams.COMMANDS)).state.messages

    await claimed(nc, LONGEST + 1, {})
    assert await eventually(left, lambda count: count == 0) == 0


async def test_an_entry_that_its_headers_make_too_large(service: Service) -> None:
    """The server would end the connection, and nats-py with it all that the service does."""
    subject, event_id = "log.question.R.Q.requested.S", "e_1"
    guard = log.question_guard("R")
    named = {log.H_EXPECTED_SEQ: "0", log.H_EXPECTED_SUBJECT: guard, log.H_EVENT_ID: event_id}
    headers = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in named.items()) + "\r\n"
    fits = limits.PAYLOAD_MAX_BYTES - len(headers)
    with pytest.raises(TooLarge):
        await service.log.append(subject, b"x" * (fits + 1), guard=guard, expected=0, event_id=event_id)
    assert service.connection().is_connected
    await service.log.append(subject, b"x" * fits, guard=guard, expected=0, event_id=event_id)
