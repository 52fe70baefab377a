"""Commands are sent until they are answered, whatever breaks on the way."""

import asyncio
import logging

import nats.errors
import pytest

import upcall
from upcall import wire
from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.records import QuestionRecord

from .conftest import Reply, Server, Services


async def test_command_is_published_to_jetstream_and_answered_at_the_inbox_in_its_header(
    up: upcall.Upcall, services: Services
) -> None:
    services.script = lambda name, body: {"session": {"session_id": "p", "title": body["title"]}}

    session = await up.open_session("p", agent="a", title="äöü", command_id="c1")

    assert session.session_id == "p"
    assert services.seen == [
        (
            "session.open",
            {"agent": "a", "title": "äöü", "host": "self", "lease_ms": 0, "command_id": "c1"},
        )
    ]
    info = await up.wire.nc.jetstream().stream_info("COMMANDS")
    assert info.state.last_seq == 1


async def test_no_reply_and_the_same_command_id_again(
    up: upcall.Upcall, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_RESEND_AFTER", (0.2,))
    services.script = lambda name, body: {"cancelled": []} if len(services.seen) == 3 else None

    assert await up.session("p").cancel() == []

    assert len({body["command_id"] for _, body in services.seen}) == 1
    assert len(services.seen) == 3


async def test_never_a_reply_says_that_it_is_stored_and_what_to_do(
    up: upcall.Upcall, services: Services
) -> None:
    services.script = lambda name, body: None

    with pytest.raises(upcall.NoReplyError, match=r"stored.*command_id='c9'") as caught:
        await up.wire.command("p", "session.cancel", {"session_id": "p"}, command_id="c9", within=0.3)

    assert caught.value.stored


async def test_nobody_listens(up: upcall.Upcall) -> None:
    """NATS runs and nothing else: a query is told so, with what to do. A command is stored, and waits."""
    with pytest.raises(upcall.NoReplyError) as query:
        await up.wire.query("p", "session.get", {"session_id": "p"}, within=1)

    assert str(query.value) == (
        "query.p.session.get got no reply within 1 s. "
        "NATS runs, but Upcall does not: nobody listens there. Start it (`make up`)."
    )

    with pytest.raises(upcall.NoReplyError) as command:
        await up.wire.command("p", "session.cancel", {"session_id": "p"}, command_id="c9", within=1)

    assert str(command.value) == (
        "cmd.p.session.cancel got no reply within 1 s. "
        "It is stored, and is carried out once the services are back. "
        "Send it again with command_id='c9' to learn the outcome."
    )


async def test_nobody_stores_a_command(bare_server: Server) -> None:
    """A NATS on which Upcall was never set up."""
    async with upcall.connect(bare_server.url) as up:
        with pytest.raises(upcall.NoReplyError) as caught:
            await up.wire.command("p", "session.cancel", {"session_id": "p"}, command_id="c9", within=1)

    assert not caught.value.stored
    assert str(caught.value) == (
        "cmd.p.session.cancel got no reply within 1 s. "
        "NATS runs, but Upcall does not: nobody listens there. Start it (`make up`). "
        "Send it again with command_id='c9' to learn the outcome."
    )


@pytest.mark.parametrize(
    ("before", "error", "had_s", "told"),
    [
        (None, nats.errors.TimeoutError(), 0.001, "error"),
        (nats.errors.NoRespondersError(), nats.errors.TimeoutError(), 0.001, "before"),
        (nats.errors.NoRespondersError(), nats.errors.TimeoutError(), 5.0, "error"),
        (nats.errors.TimeoutError(), nats.errors.NoRespondersError(), 0.001, "error"),
    ],
    ids=["nothing else", "cut short by the deadline", "somebody listened, and was slow", "heard at once"],
)
def test_what_a_missing_reply_is_told_with(
    before: Exception | None, error: Exception, had_s: float, told: str
) -> None:
    assert wire._telling(before, error, had_s) is (error if told == "error" else before)


async def test_command_over_a_restart_of_nats(up: upcall.Upcall, services: Services, server: Server) -> None:
    """What is said while the server is away is carried out once it is back."""
    services.script = lambda name, body: {"cancelled": ["r1"]}
    await server.stop()
    cancelling = asyncio.create_task(up.session("p").cancel())
    await asyncio.sleep(0.3)
    await server.start()

    assert await asyncio.wait_for(cancelling, 20) == ["r1"]


async def test_query_over_a_restart_of_nats(up: upcall.Upcall, services: Services, server: Server) -> None:
    services.script = lambda name, body: None
    asking = asyncio.create_task(up.session("p").session())
    async with asyncio.timeout(5):
        await services.asked.wait()
    services.script = lambda name, body: {"session": {"session_id": "p"}}
    await server.stop()
    await server.start()

    assert (await asyncio.wait_for(asking, 20)).session_id == "p"


@pytest.mark.parametrize(
    ("refusal", "error", "retryable"),
    [
        (refusals.unknown_session("x"), upcall.NotFoundError, False),
        (refusals.session_busy("r"), upcall.SessionBusyError, True),
        (refusals.question_open(QuestionRecord(request_id="q1")), upcall.QuestionOpenError, True),
        (refusals.stale_attempt("r", 2), upcall.StaleAttemptError, False),
        (refusals.duplicate_question("q1", 1), upcall.AlreadyAskedError, False),
        (refusals.parent_unavailable(), upcall.ParentUnavailableError, False),
        (refusals.not_held("s"), upcall.RefusedError, False),
        (refusals.internal(), upcall.RefusedError, True),
    ],
    ids=lambda value: value.code.value if isinstance(value, Refusal) else "",
)
async def test_a_refusal_is_an_exception_with_the_code_and_the_message_of_the_service(
    up: upcall.Upcall,
    services: Services,
    refusal: Reply,
    error: type[upcall.RefusedError],
    retryable: bool,
) -> None:
    services.script = lambda name, body: refusal

    with pytest.raises(error) as caught:
        await up.session("p").continue_("c", "go on")

    assert type(caught.value) is error
    assert caught.value.refusal == refusal
    assert str(caught.value) == caught.value.message
    assert caught.value.retryable is retryable


async def test_too_large_is_refused_before_it_is_sent(up: upcall.Upcall, services: Services) -> None:
    with pytest.raises(upcall.InvalidError, match="bytes"):
        await up.session("p").spawn("a", "x" * 600_000)

    assert services.seen == []


async def test_no_server_says_where_and_what_to_do() -> None:
    with pytest.raises(upcall.ConnectError, match=r"No NATS.*127\.0\.0\.1:9 .*UPCALL_NATS_URL"):
        await upcall.connect("nats://127.0.0.1:9", timeout=0.5)


async def test_a_closed_connection_says_so_at_once(server: Server) -> None:
    up = await upcall.connect(server.url)
    await up.close()

    with pytest.raises(upcall.UpcallError, match="closed"):
        await up.session("p").cancel()


async def test_heartbeats_come_at_least_three_times_a_lease(up: upcall.Upcall, services: Services) -> None:
    """And none without a lease."""
    beats: list[str] = []
    services.script = lambda name, body: {"session": {"session_id": "x", "lease_ms": body["lease_ms"]}}

    await up.wire.subscribe("heartbeat.*", lambda subject, _: beats.append(subject))
    await up.open_session("with", agent="a", lease_ms=1000)
    await up.open_session("without", agent="a")
    await asyncio.sleep(1.1)

    assert beats.count("heartbeat.with") >= 4
    assert "heartbeat.without" not in beats


async def test_one_subscription_for_all_replies(
    up: upcall.Upcall, services: Services, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    services.script = lambda name, body: {"cancelled": [body["reason"]]}

    said = await asyncio.gather(*(up.session("p").cancel(reason=str(n)) for n in range(200)))

    assert said == [[str(n)] for n in range(200)]
    assert len(up.wire.nc._subs) == 2  # replies, and nats-py's own for requests
