"""The W3C trace context in headers: of a command, of what it causes, and of all that derives from that."""

import re
from collections.abc import Mapping
from typing import Final

H_TRACEPARENT: Final = "traceparent"
"""The header that names a trace and a span of it."""
H_TRACESTATE: Final = "tracestate"
"""The header with what the tracing system keeps beside it."""

Trace = Mapping[str, str]
"""The two headers of a context, or the first alone."""

_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_STATE: Final = re.compile(r"[\x20-\x7e]{1,512}")


def trace_of(headers: Mapping[str, str] | None) -> Trace | None:
    """The context in a message's headers; None where there is none, or none that is well-formed.

    It is copied into the log, so nothing else of what anybody may send is let through.
    """
    parent = headers.get(H_TRACEPARENT) if headers else None
    if headers is None or parent is None or _PARENT.fullmatch(parent) is None:
        return None
    state = headers.get(H_TRACESTATE)
    if state is None or _STATE.fullmatch(state) is None:
        return {H_TRACEPARENT: parent}
    return {H_TRACEPARENT: parent, H_TRACESTATE: state}
