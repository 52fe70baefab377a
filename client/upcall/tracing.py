"""Spans, where the extra `upcall[otel]` is installed and the application has set up OpenTelemetry.

A command is a span whose context travels in its headers. What comes later, an item of the inbox or the end of
a question, is a short span of its own, linked to where it came from: none is held open while somebody waits.
The rest of the package imports nothing of OpenTelemetry.
"""

# What the extra brings is used only where it is installed.
# pyright: reportPossiblyUnboundVariable=false

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upcall_contracts.tracing import Trace, trace_of

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

try:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    _installed = False
else:
    _installed = True
    _tracer: Final = trace.get_tracer("upcall")
    _w3c: Final = TraceContextTextMapPropagator()

_IDS: Final = ("run_id", "session_id", "request_id", "period_id", "work_id", "agent")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where something came from: what is sent because of it is linked to it."""

    sent: "SpanContext | None"
    """Of the span that it was sent from, or decided in."""
    received: "SpanContext | None" = None
    """Of the span in which it was received here."""


_because: ContextVar[Origin | None] = ContextVar("because", default=None)


def origin_of(headers: Mapping[str, str] | None) -> Origin | None:
    """The origin that a message's headers name; None where there is none, or nobody would look at it."""
    found = trace_of(headers) if _installed else None
    if found is None:
        return None
    sent = trace.get_current_span(_w3c.extract(found, context.Context())).get_span_context()
    return Origin(sent) if sent.is_valid else None


@contextmanager
def sending(name: str, caller: str, body: Mapping[str, Any]) -> Iterator[Trace]:
    """A span around a command (`question.ask`) until its reply; the headers to send."""
    if not _installed:
        yield {}
        return
    origin = _because.get()
    with _tracer.start_as_current_span(
        f"send {name}",
        _context_of(origin),
        kind=trace.SpanKind.PRODUCER,
        attributes={**_messaging("send", name), "upcall.caller": caller, **_ids(body)},
        links=_links(origin),
    ):
        headers: dict[str, str] = {}
        _w3c.inject(headers)
        yield headers


def asking() -> dict[str, str] | None:
    """The headers of a query: it is answered in the caller's own span, where there is one."""
    if not _installed:
        return None
    headers: dict[str, str] = {}
    _w3c.inject(headers)
    return headers or None


def received(
    name: str,
    ids: Mapping[str, Any],
    *origins: Origin | None,
    attributes: Mapping[str, str | int] | None = None,
    begins: bool = False,
) -> Origin | None:
    """A span, over at once, for what was waited for and is here; the origin of what is done about it.

    `begins`: a trace of its own, whatever span the caller is in.
    """
    if not _installed:
        return None
    span = _tracer.start_span(
        f"receive {name}",
        context.Context() if begins else None,
        kind=trace.SpanKind.CONSUMER,
        attributes={**_messaging("receive", name), **_ids(ids), **(attributes or {})},
        links=[link for origin in origins for link in _links(origin)],
    )
    span.end()
    sent = next((origin.sent for origin in origins if origin is not None), None)
    return Origin(sent, span.get_span_context())


def origin() -> Origin | None:
    """The origin of what is handled: of a message, in the function that hears it."""
    return _because.get()


def within(origin: Origin | None) -> AbstractContextManager[object]:
    """Let what the block does belong to the trace in which something was received."""
    if origin is None or origin.received is None:
        return nullcontext()
    return trace.use_span(trace.NonRecordingSpan(origin.received))


@contextmanager
def because_of(origin: Origin | None) -> Iterator[None]:
    """Link the commands of the block to an origin.

    Without a span of the caller's own they belong to the trace in which it was received.
    """
    token = _because.set(origin)
    try:
        yield
    finally:
        _because.reset(token)


def _context_of(origin: Origin | None) -> "context.Context | None":
    if origin is None or origin.received is None or trace.get_current_span().get_span_context().is_valid:
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(origin.received))


def _links(origin: Origin | None) -> "list[trace.Link]":
    return [] if origin is None or origin.sent is None else [trace.Link(origin.sent)]


def _messaging(operation: str, name: str) -> dict[str, str]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": name,
    }


def _ids(record: Mapping[str, Any]) -> dict[str, str]:
    return {f"upcall.{name}": str(record[name]) for name in _IDS if record.get(name)}
