"""OpenTelemetry's part of tracing: imported only where it is switched on.

Spans follow the conventions for messaging. A command, and what the services do about an entry of the log,
goes on in the trace that it came with; what was set for later, a deadline, begins a trace of its own that is
linked to it. No span is held open while somebody waits.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Final

from nats.aio.msg import Msg
from opentelemetry import context, trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from upcall_contracts import log, subjects
from upcall_contracts.tracing import Trace

_W3C: Final = TraceContextTextMapPropagator()
"""Whatever OTEL_PROPAGATORS says: headers go into the log, and baggage doesn't belong there."""
_LATER: Final = "timers."


class Spans:
    """Makes spans of deliveries."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("upcall")

    @contextmanager
    def process(self, consumer: str, message: Msg, found: Trace | None) -> Iterator[Trace]:
        """A span around the work on a delivery; its context."""
        come_from = _span_context(found)
        later = message.subject.startswith(_LATER)
        command = subjects.parse_command(message.subject)
        attributes: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.subject,
            "messaging.consumer.group.name": consumer,
            "upcall.delivered": message.metadata.num_delivered,
        }
        with self._tracer.start_as_current_span(
            f"process {f'{command.noun}.{command.verb}' if command is not None else consumer}",
            context.Context() if come_from is None or later else _within(come_from),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(come_from)] if come_from is not None and later else [],
        ) as span:
            yield _headers(span.get_span_context())

    def link(self, to: Trace) -> None:
        """Link the span in hand to a context."""
        found = _span_context(to)
        span = trace.get_current_span()
        if found is not None and span.get_span_context().span_id != found.span_id:
            span.add_link(found)

    def stored(self, subject: str) -> None:
        """Note an entry of the log on the span in hand, and the ids by which one looks for it."""
        span = trace.get_current_span()
        if span.is_recording():
            span.add_event("stored", {"messaging.destination.name": subject})
            span.set_attributes({f"upcall.{name}": id_ for name, id_ in log.ids(subject).items()})

    def answered(self, code: str) -> None:
        """Note what came of a command."""
        trace.get_current_span().set_attribute("upcall.code", code)

    def query(self, name: str, subject: str, found: Trace, began_ns: int, code: str) -> None:
        """A span, over at once, for a query that was answered; of one that waits it shows only the end."""
        come_from = _span_context(found)
        if come_from is None:
            return
        attributes: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.destination.name": subject,
            "upcall.code": code,
        }
        waits = name.endswith(".wait")
        if waits:
            attributes["upcall.waited_ms"] = (time.time_ns() - began_ns) // 1_000_000
        span = self._tracer.start_span(
            f"answer {name}",
            _within(come_from),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=None if waits else began_ns,
        )
        span.end()


def _span_context(found: Trace | None) -> trace.SpanContext | None:
    if not found:
        return None
    read = trace.get_current_span(_W3C.extract(found, context.Context())).get_span_context()
    return read if read.is_valid else None


def _within(parent: trace.SpanContext) -> context.Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), context.Context())


def _headers(own: trace.SpanContext) -> Trace:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, _within(own))
    return carrier


def configured(service: str) -> Spans | None:
    """Spans as the OTEL_… variables describe them; None where they name no exporter.

    Raises LookupError for an exporter that is not installed, and whatever the exporter raises. Sampler,
    batches, resource and endpoint are read from the environment by the SDK itself.
    """
    name = _exporter_name()
    if name is None:
        return None
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise LookupError(f"no exporter {name} is installed")
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create() if named else Resource.create({SERVICE_NAME: f"upcall-{service}"})
    # Not at the interpreter's exit: there a collector that is away would hold the process up.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(found[0].load()()))
    return Spans(provider)


def _exporter_name() -> str | None:
    named = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip()
    if named != "otlp":
        return named if named != "none" else None
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    return "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
