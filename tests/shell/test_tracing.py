"""The context that is carried: what is let through, what it is given to, and how spans are switched on."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from nats.aio.client import Client
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tests.question_broker.world import eventually
from tests.settling import settle
from upcall_contracts import log, refusals, streams, subjects
from upcall_contracts.errors import Refusal
from upcall_contracts.tracing import trace_of
from upcall_shell import tracing
from upcall_shell.dead_letters import DeadLetters
from upcall_shell.delivery import Again, Deliveries
from upcall_shell.jetstream import StreamClient
from upcall_shell.queries import Query, QueryDesk
from upcall_shell.spans import Spans
from upcall_shell.timers import Timers

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = {"traceparent": PARENT, "tracestate": "vendor=1"}


@pytest.fixture(autouse=True)
def switched_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    tracing.use(None)
    yield
    tracing.use(None)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (None, None),
        ({}, None),
        ({"reply_to": "_INBOX.x"}, None),
        ({"traceparent": PARENT, "reply_to": "_INBOX.x"}, {"traceparent": PARENT}),
        (TRACE, TRACE),
        ({"traceparent": PARENT, "tracestate": "x" * 513}, {"traceparent": PARENT}),  # W3C keeps 512
        ({"traceparent": PARENT, "tracestate": "a=\u00fc"}, {"traceparent": PARENT}),  # not ASCII
        ({"traceparent": PARENT, "tracestate": "a=1\r\nNats-Rollup: all"}, {"traceparent": PARENT}),
        ({"traceparent": PARENT.upper()}, None),
        ({"traceparent": PARENT + "\r\nNats-Rollup: all"}, None),
        ({"traceparent": "00-" + "0" * 32 + PARENT[35:]}, None),  # no trace
        ({"traceparent": "ff" + PARENT[2:]}, None),  # no version
        ({"tracestate": "vendor=1"}, None),
    ],
)
def test_only_a_well_formed_context_is_let_through(
    headers: dict[str, str] | None, found: dict[str, str] | None
) -> None:
    assert trace_of(headers) == found


async def _delivered(nc: Client, stream: str, subject: str, headers: dict[str, str] | None) -> dict[str, str]:
    """What a handler's own entry carries that is stored while such a message is worked on."""
    js, client = nc.jetstream(), StreamClient(lambda: nc, streams.LOG)
    sub = await js.subscribe(subject, stream=stream, ordered_consumer=True)
    entry = log.session_note(f"traced-{time.time_ns()}", log.Note.NOTED)
    done = asyncio.Event()

    async def handle(_: object) -> Again | None:
        await client.append(entry, b"{}", guard=entry, expected=0, event_id="e")
        done.set()
        return None

    deliveries = Deliveries("traced", handle, DeadLetters(StreamClient(lambda: nc, streams.DEAD), "traced"))
    await js.publish(subject, b"{}", headers=headers)
    await deliveries.accept(await sub.next_msg(timeout=30))
    async with asyncio.timeout(30):
        await done.wait()
    await deliveries.drain(5)
    await sub.unsubscribe()
    message = await js.get_last_msg(streams.LOG, entry)
    stored = await client.last(entry)
    assert stored is not None
    assert stored.trace == trace_of(message.headers)
    return message.headers or {}


async def test_what_a_handler_stores_carries_the_context_of_what_it_handles(nc: Client) -> None:
    """And nothing else of that message's headers."""
    subject = log.session_note("traced-one", log.Note.NOTED)
    carried = await _delivered(nc, streams.LOG, subject, {**TRACE, "other": "x"})

    assert carried["traceparent"] == PARENT
    assert carried["tracestate"] == "vendor=1"
    assert "other" not in carried


async def test_without_a_context_none_is_stored(nc: Client) -> None:
    subject = log.session_note("traced-none", log.Note.NOTED)
    assert "traceparent" not in await _delivered(nc, streams.LOG, subject, None)


async def test_with_spans_it_carries_the_span(nc: Client) -> None:
    """The entry names the span that stored it; the span names the entry, and the ids in it."""
    exporter = _spans()
    subject = log.session_note("traced-spans", log.Note.NOTED)
    carried = await _delivered(nc, streams.LOG, subject, TRACE)

    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.attributes is not None
    assert carried["traceparent"] == f"{PARENT[:36]}{span.context.span_id:016x}-01"
    assert carried["tracestate"] == "vendor=1"
    assert str(span.attributes["upcall.session_id"]).startswith("traced-")
    assert [event.name for event in span.events] == ["stored"]


def _spans() -> InMemorySpanExporter:
    """Switched on, with what has been exported."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(Spans(provider))
    return exporter


class Asked:
    """A query to a service of its own."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self.worked_on = (0, 0)
        """Epoch ns between which it was."""

    async def reply(self, name: str, body: dict[str, Any], headers: dict[str, str] | None) -> dict[str, Any]:
        noun, verb = name.split(".")
        desk = QueryDesk({(noun, verb): self._handle}, self._nc.publish)
        subscription = await self._nc.subscribe(subjects.query_filter(noun), cb=desk.accept)
        await settle(self._nc)
        subject = subjects.query("p", noun, verb)
        reply = await self._nc.request(subject, json.dumps(body).encode(), timeout=10, headers=headers)
        await desk.drain(10)
        await subscription.unsubscribe()
        return json.loads(reply.data)

    async def _handle(self, query: Query[Any]) -> dict[str, Any] | Refusal:
        began = time.time_ns()
        await asyncio.sleep(0.02)
        self.worked_on = (began, time.time_ns())
        refused = getattr(query.body, "session_id", None) == "theirs"
        return refusals.unknown_session("theirs") if refused else {}


def _times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


@pytest.mark.parametrize(("session_id", "code"), [("mine", "ok"), ("theirs", "unknown_session")])
async def test_a_query_that_is_traced_is_a_span(nc: Client, session_id: str, code: str) -> None:
    """Under who asked, from when it was taken in hand, with what came of it."""
    exporter, asked = _spans(), Asked(nc)
    await asked.reply("session.get", {"session_id": session_id}, TRACE)

    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind) == ("answer session.get", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" in PARENT
    assert span.attributes is not None
    assert span.attributes["upcall.code"] == code
    assert _times(span)[0] <= asked.worked_on[0] <= asked.worked_on[1] <= _times(span)[1]


async def test_of_a_query_that_waits_only_its_end_is_a_span(nc: Client) -> None:
    """None is held open; for how long it waited is said."""
    exporter, asked = _spans(), Asked(nc)
    await asked.reply("run.wait", {"run_id": "r", "timeout_ms": 1000}, TRACE)

    (span,) = exporter.get_finished_spans()
    assert span.name == "answer run.wait"
    assert span.attributes is not None
    waited, (began, ended) = span.attributes["upcall.waited_ms"], asked.worked_on
    assert isinstance(waited, int)
    assert waited >= (ended - began) // 1_000_000
    assert _times(span)[0] >= ended


@pytest.mark.parametrize(
    ("headers", "on"),
    [(None, True), ({"traceparent": "none"}, True), (TRACE, False)],
    ids=["nobody traces it", "no context", "switched off"],
)
async def test_other_queries_have_no_span(nc: Client, headers: dict[str, str] | None, on: bool) -> None:
    exporter = _spans()
    if not on:
        tracing.use(None)
    assert (await Asked(nc).reply("session.get", {"session_id": "mine"}, headers))["ok"]
    assert exporter.get_finished_spans() == ()


async def test_a_deadline_fires_in_the_context_in_which_it_was_set(nc: Client) -> None:
    """JetStream copies the headers from the schedule to what fires."""
    stream = StreamClient(lambda: nc, streams.TIMERS)
    schedule, due = streams.question_timer("traced-run", "traced")
    with tracing.carrying(TRACE):
        await Timers(stream).set((schedule, due), time.time_ns() // 1_000_000, {})

    fired = await eventually(lambda: stream.last(due))
    assert fired is not None
    assert fired.trace == TRACE


def test_a_message_that_has_a_context_keeps_it() -> None:
    """Both headers or neither: another's tracestate does not slip in beside it."""
    other = {"traceparent": PARENT.replace("0af7", "1af7")}
    with tracing.carrying(TRACE):
        assert tracing.outgoing({"x": "1"}) == {**TRACE, "x": "1"}
        assert tracing.outgoing(other) == other
        with tracing.carrying(other):
            assert tracing.current() == TRACE
    assert tracing.outgoing(None) is None


def test_log_lines_name_the_trace() -> None:
    with tracing.carrying(TRACE):
        assert tracing.name_trace(None, "", {})["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert tracing.name_trace(None, "", {}) == {}


@pytest.mark.parametrize(
    ("variables", "on"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_TRACES_EXPORTER": "no_such_exporter"}, False),  # said in the log; the service serves
    ],
)
def test_the_standard_variables_switch_spans_on(
    variables: dict[str, str], on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing.configure("test")
    assert tracing.is_on() is on


class Away(SpanExporter):
    """A collector that does not answer before it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.answers.wait()
        return SpanExportResult.SUCCESS


def test_a_collector_that_is_away_holds_up_no_stop() -> None:
    """`end` gives up."""
    away, provider = Away(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(away))
    tracing.use(Spans(provider))
    provider.get_tracer("test").start_span("test").end()

    tracing.end()
    away.answers.set()
