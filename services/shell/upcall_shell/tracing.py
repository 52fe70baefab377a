"""Traces: the context of what is in hand, from the message that brought it to all that is published for it.

Whatever is stored while a message is worked on carries that message's W3C context in its headers, and so
does what JetStream derives from it. That holds without OpenTelemetry too: harnesses can trace through
services that don't. With it (`configure`, the standard OTEL_… variables) each delivery is a span, and what is
published carries that span's context. Nothing here can fail a message: a context that can't be read is none.

The work on a message is a task of its own, and the context is the task's.
"""

import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import structlog
from nats.aio.msg import Msg

from upcall_contracts.tracing import H_TRACEPARENT, Trace, trace_of

if TYPE_CHECKING:
    from .spans import Spans

logger = structlog.get_logger()
_carried: ContextVar[Trace | None] = ContextVar("carried", default=None)
_spans: "Spans | None" = None  # None: switched off
_NOTHING: Final = nullcontext()
_END_S: Final = 2.0
_NAME_AN_EXPORTER: Final = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


def configure(service: str) -> None:
    """Make spans, if the standard OTEL_… variables name where they go; by default there are none."""
    wanted = any(os.environ.get(name) for name in _NAME_AN_EXPORTER)
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    try:
        from .spans import configured

        use(configured(service))
    except Exception:  # a service that can't trace still serves
        logger.exception("no traces: OpenTelemetry could not be set up")


def end() -> None:
    """Send what spans there are, or give up after some seconds: a collector that is away holds nothing up."""
    if _spans is not None:
        sending = threading.Thread(target=_spans.provider.force_flush, daemon=True)
        sending.start()
        sending.join(_END_S)


def use(spans: "Spans | None") -> None:
    """Make spans with this from now on; None for none."""
    global _spans  # noqa: PLW0603 - one switch for the process, as OpenTelemetry's own
    _spans = spans


def is_on() -> bool:
    """Whether spans are made."""
    return _spans is not None


def current() -> Trace | None:
    """The context of what is in hand; None where there is none."""
    return _carried.get()


def outgoing(headers: dict[str, str] | None) -> dict[str, str] | None:
    """The headers of a message that is published for what is in hand; a context among them stays."""
    carried = _carried.get()
    if not carried or (headers is not None and H_TRACEPARENT in headers):
        return headers
    return {**carried, **(headers or {})}


def processing(consumer: str, message: Msg) -> AbstractContextManager[object]:
    """The work on a delivery, from here to the end of the block."""
    found = trace_of(message.headers)
    if _spans is None:
        return carrying(found)
    return _spanned(_spans, consumer, message, found)


@contextmanager
def _spanned(spans: "Spans", consumer: str, message: Msg, found: Trace | None) -> Iterator[None]:
    with spans.process(consumer, message, found) as own, carrying(own):
        yield


def carrying(trace: Trace | None) -> AbstractContextManager[object]:
    """Go on in the context of an entry, unless what is in hand has brought one."""
    return _carry(trace) if trace and not _carried.get() else _NOTHING


@contextmanager
def _carry(trace: Trace) -> Iterator[None]:
    token = _carried.set(trace)
    try:
        yield
    finally:
        _carried.reset(token)


def resting_on(trace: Trace | None) -> AbstractContextManager[object]:
    """Decide on something that began with this entry: the span is linked to it, and without a context of its
    own the decision goes on in the entry's."""
    link(trace)
    return carrying(trace)


def link(trace: Trace | None) -> None:
    """Link what is in hand to an entry."""
    if _spans is not None and trace:
        _spans.link(trace)


def stored(subject: str) -> None:
    """Say which entry of the log was stored."""
    if _spans is not None:
        _spans.stored(subject)


def answered(code: str) -> None:
    """Say what came of a command: ok, or the refusal's code."""
    if _spans is not None:
        _spans.answered(code)


def answered_query(name: str, message: Msg, began_ns: int, code: str) -> None:
    """Say what came of a query, by name (`session.get`), that was taken in hand at epoch ns `began_ns`.

    Whoever asks decides: a query without a context has no span.
    """
    if _spans is not None and (found := trace_of(message.headers)):
        _spans.query(name, message.subject, found, began_ns, code)


def name_trace(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For structlog: a line names the trace that it belongs to."""
    carried = _carried.get()
    if carried:
        line["trace_id"] = carried[H_TRACEPARENT].split("-")[1]
    return line
