"""Commands as they come: replies and where they go, bad input, and what is ours to blame."""

import asyncio
import base64
import json

import pytest

from tests.question_broker.place import Place
from tests.question_broker.world import Json, World, eventually, uid
from upcall_contracts import log, streams
from upcall_contracts.ids import OPERATOR

pytestmark = pytest.mark.xdist_group("question_broker")


async def raw(place: Place, lines: bytes) -> None:
    """Say something to the server as it stands; returns when the server has read it."""
    host, _, port = place.nats.url.removeprefix("nats://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    hello = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n" + lines + b"PING\r\n")
    await writer.drain()
    assert await reader.readline() == b"PONG\r\n"
    writer.close()


# Replies


async def test_one_reply_and_it_is_the_answer(w: World, place: Place) -> None:
    """Nothing else comes to the inbox, neither before the reply nor after it."""
    _, child = await w.family()
    heard: list[bytes] = []
    inbox = w.nc.new_inbox()

    async def hear(message: object) -> None:
        heard.append(getattr(message, "data", b""))

    subscription = await w.nc.subscribe(inbox, cb=hear)
    body = {"run_id": child.run_id, "question": "Which database?", "why_blocked": "w", "command_id": "c"}
    await w.publish(f"cmd.{child.id}.question.ask", json.dumps(body).encode(), {"reply_to": inbox})
    await eventually(lambda: _value(heard))
    await w.nc.publish(f"query.{OPERATOR}.question.list", b"{}", reply=inbox)
    await eventually(lambda: _value(heard), lambda h: len(h) > 1)
    await child.ask(why_blocked="w", command_id="c")  # whatever was under way to the inbox has come by now
    assert [json.loads(each)["ok"] for each in heard] == [True, True]
    await subscription.unsubscribe()


async def _value(it: list[bytes]) -> list[bytes]:
    return it


@pytest.mark.parametrize(
    "to",
    [
        "evil.subject",
        "_INBOX",
        "_INBOX.",
        "_INBOX.*",
        "_INBOX.>",
        "_INBOX.a b",
        "_inbox.a",
        "log.question.R.Q.x.S.P",
        "",
    ],
)
async def test_reply_to_outside_the_inboxes_gets_nothing(w: World, to: str) -> None:
    """The command is carried out, and nothing is published where its sender may not publish himself."""
    _, child = await w.family()
    heard: list[str] = []

    async def hear(message: object) -> None:
        heard.append(str(getattr(message, "subject", "")))

    for subject in ("evil.>", "_inbox.>", "log.question.R.>"):
        await w.nc.subscribe(subject, cb=hear)
    body = {"run_id": child.run_id, "question": "Which database?", "why_blocked": "w", "command_id": "c"}
    await w.publish(f"cmd.{child.id}.question.ask", json.dumps(body).encode(), {"reply_to": to})
    await eventually(lambda: w.in_log(child.run_id))
    await child.ask(why_blocked="w", command_id="c")
    assert heard == []


async def test_without_reply_to_it_is_carried_out(w: World) -> None:
    parent, child = await w.family()
    body = {"run_id": child.run_id, "question": "Which database?", "why_blocked": "w"}
    await w.publish(f"cmd.{child.id}.question.ask", json.dumps(body).encode())
    [request_id] = await eventually(parent.listed)
    await w.publish(
        f"cmd.{parent.id}.question.answer", json.dumps({"request_id": request_id, "answer": "y"}).encode()
    )
    await w.until_ended(request_id, "answered")


async def test_the_sequence_serves_where_no_command_id_is_given(w: World) -> None:
    """Two commands that say the same are two."""
    _, child = await w.family()
    first = await child.ask()
    again = await child.ask_reply()
    assert again["error"]["code"] == "duplicate_question"
    await w.do(child.id, "question.cancel", run_id=child.run_id)
    assert (await child.ask())["request_id"] != first["request_id"]


# Bad input


DEEP = (
    b'{"run_id": "R", "question": "q", "why_blocked": "w", "meta": {"a": ' + b"[" * 180 + b"]" * 180 + b"}}"
)
BAD: list[tuple[str, bytes, str, bool]] = [
    ("question.ask", b"", "invalid_json", True),
    ("question.ask", b"not JSON", "invalid_json", True),
    ("question.ask", b"[]", "invalid_json", True),
    ("question.ask", b'"text"', "invalid_json", True),
    ("question.ask", b'{"run_id": "\xff\xfe"}', "invalid_json", True),
    ("question.ask", b'{"run_id": "\\ud800"}', "invalid_json", True),
    ("question.ask", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "too_large", True),
    ("question.ask", b"[" * 100_000, "invalid_json", True),
    ("question.ask", DEEP, "invalid_json", True),
    ("question.ask", b'{"timeout_ms": NaN}', "invalid_json", True),
    ("question.ask", b'{"question": "' + b"x" * (512 * 1024) + b'"}', "too_large", True),
    ("question.answer", b"x" * (3 * 1024 * 1024 + 512 * 1024), "too_large", True),
    ("question.cancel", b"{}", "invalid", False),
    ("question.answer", b'{"request_id": "a b", "answer": "x"}', "invalid_id", False),
    ("question.answer", b'{"request_id": "Q", "answer": "x", "by": "operator"}', "invalid", False),
    ("question.withdraw", b"{}", "unknown_verb", True),
    ("question.ASK", b"{}", "unknown_verb", True),
]


@pytest.mark.parametrize(
    ("command", "body", "code", "recorded"),
    BAD,
    ids=[f"{c}-{code}-{n}" for n, (c, _, code, _) in enumerate(BAD)],
)
async def test_bad_input_is_refused_and_recorded(
    w: World, command: str, body: bytes, code: str, recorded: bool
) -> None:
    caller = uid("S")
    to, reply = w.expect_reply()
    await w.publish(f"cmd.{caller}.{command}", body, {"reply_to": to, "x-note": "as sent"})
    error = (await asyncio.wait_for(reply, 30))["error"]
    assert (error["code"], error["retryable"]) == (code, False)
    letters = [d for d in await w.dead() if d["subject"] == f"cmd.{caller}.{command}"]
    assert len(letters) == recorded
    for letter in letters:
        assert (letter["code"], letter["attempts"]) == (code, 1)
        assert letter["reason"].startswith(error["message"])
        assert letter["headers"]["x-note"] == "as sent"
        kept = base64.b64decode(letter["body"])
        assert body == kept if len(body) <= 2 * 1024 * 1024 else body.startswith(kept)


async def test_after_bad_input_the_next_command_goes_through(w: World) -> None:
    parent, child = await w.family()
    for command, body, _, _ in BAD:
        await w.publish(f"cmd.{child.id}.{command}", body)
    question = await child.ask()
    assert (await parent.answer(question["request_id"]))["status"] == "answered"


SUBJECTS = [
    b"cmd.\xff\xfe.question.ask",
    b"cmd.S.question.\xff",
    b"cmd.\xe2\x80\xa8.question.ask",
    b"cmd.S.question.a\x0bb",
    b"cmd.S.question.\x0c",
    b"cmd.S\x1f.question.ask",
    b"cmd.S\x85.question.ask",
]
HEADERS = [
    b"x",
    b"NATS/1.0",
    b"NATS/1.0 \xff\xff\r\n\r\n",
    b"NATS/1.0\r\n\xff: \xff\r\nreply_to: \xff\r\n\r\n",
    b"\r\n\r\n",
]


async def test_no_bytes_that_the_server_takes_end_the_connection(w: World, place: Place) -> None:
    """A subject or header of any bytes, in a command or a query: the connection lives on."""
    parent, child = await w.family()
    lines = b"".join(b"PUB %s 2\r\n{}\r\n" % subject for subject in SUBJECTS)
    lines += b"".join(
        b"HPUB cmd.S.question.ask %d %d\r\n%s{}\r\n" % (len(header), len(header) + 2, header)
        for header in HEADERS
    )
    lines += (
        b"PUB query.S.question.\xff _INBOX.\xff 2\r\n{}\r\nPUB query.\x0c.question.get _INBOX.x 2\r\n{}\r\n"
    )
    connected = await _connected(place, w)
    await raw(place, lines)
    for _ in range(6):  # enough for each broker to have had its share
        question = await child.ask()
        assert (await parent.answer(question["request_id"]))["status"] == "answered"
    await eventually(lambda: _unhandled(w), lambda n: n == 0)
    assert await _connected(place, w) == connected
    assert len([d for d in await w.dead() if d["code"] == "unknown_verb" and "\ufffd" in d["subject"]]) >= 1


async def _connected(place: Place, w: World) -> list[str]:
    """How often each broker has connected, from its log."""
    return [
        line
        for broker in place.brokers
        for line in broker.log.read_text().splitlines()
        if "connected" in line
    ]


async def _unhandled(w: World) -> int:
    info = await w.js.consumer_info(streams.COMMANDS, "question_broker")
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


# What is ours to blame


async def test_a_command_that_fails_five_times_is_parked(w: World) -> None:
    """Its caller is told, the reason is kept, and everything else goes through meanwhile."""
    parent, poisoned = await w.family()
    good = await w.child(parent)
    subject = log.question_event(poisoned.run_id, "Q", "requested", poisoned.id, parent.run_id, parent.id)
    headers = {log.H_EXPECTED_SEQ: "0", log.H_EXPECTED_SUBJECT: log.question_guard(poisoned.run_id)}
    await w.publish(subject, b'{"state": "none of ours"}', headers)
    try:
        reply = await w.send(
            poisoned.id, "question.ask", run_id=poisoned.run_id, question="q", why_blocked="w"
        )
        question = await good.ask()
        assert (await parent.answer(question["request_id"]))["status"] == "answered"
        error = (await asyncio.wait_for(reply, 30))["error"]
        assert (error["code"], error["retryable"]) == ("internal", True)
        [letter] = [d for d in await w.dead() if d["subject"] == f"cmd.{poisoned.id}.question.ask"]
        assert (letter["code"], letter["attempts"]) == ("internal", 5)
        assert "ValidationError" in letter["reason"]
        assert json.loads(base64.b64decode(letter["body"]))["run_id"] == poisoned.run_id
        assert await good.listed() == []
        assert await w.listed(OPERATOR, scope="tree", status="answered")
    finally:
        await w.js.purge_stream(streams.LOG, subject=log.question_guard(poisoned.run_id))
    assert (await poisoned.ask())["status"] == "waiting"


async def test_a_query_about_what_cannot_be_read_is_answered(w: World) -> None:
    parent, child = await w.family()
    subject = log.question_event(
        child.run_id, "Q-unreadable", "requested", child.id, parent.run_id, parent.id
    )
    headers = {log.H_EXPECTED_SEQ: "0", log.H_EXPECTED_SUBJECT: log.question_guard(child.run_id)}
    await w.publish(subject, b"[]", headers)
    try:
        reply = await w.query_reply(OPERATOR, "question.get", request_id="Q-unreadable")
        assert reply["error"]["code"] == "internal"
    finally:
        await w.js.purge_stream(streams.LOG, subject=log.question_guard(child.run_id))


BAD_QUERIES: list[tuple[str, Json, str]] = [
    ("question.get", {}, "invalid"),
    ("question.get", {"request_id": "a b"}, "invalid_id"),
    ("question.get", {"request_id": "Q"}, "unknown_request"),
    ("question.wait", {"request_id": "Q", "timeout_ms": 60_001}, "invalid"),
    ("question.list", {"cursor": "x"}, "invalid"),
    ("question.list", {"cursor": base64.b64encode(b"[Infinity, 1]").decode()}, "invalid"),
    ("question.list", {"cursor": base64.b64encode(b"[" * 700).decode()}, "invalid"),
    ("question.list", {"limit": 501}, "invalid"),
    ("question.list", {"status": "open"}, "invalid"),
    ("question.shred", {}, "unknown_verb"),
]


@pytest.mark.parametrize(
    ("query", "body", "code"), BAD_QUERIES, ids=[f"{q}-{c}-{n}" for n, (q, _, c) in enumerate(BAD_QUERIES)]
)
async def test_bad_queries(w: World, query: str, body: Json, code: str) -> None:
    assert (await w.query_reply(uid("S"), query, **body))["error"]["code"] == code
