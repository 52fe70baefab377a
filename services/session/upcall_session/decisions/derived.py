"""Whether what JetStream derives from the log has stopped coming."""

from collections.abc import Mapping
from typing import Any, Final

STALLED_MS: Final = 3_000
"""A source that is well hears of the log every second, if only that nothing has come (nats-server's
`sourceHealthHB`)."""


def is_replicated(info: Mapping[str, Any]) -> bool:
    """Whether a stream, as STREAM.INFO describes it, can have another leader."""
    return int(info["config"].get("num_replicas", 1)) > 1


def has_stalled(info: Mapping[str, Any]) -> bool:
    """Whether a stream, as STREAM.INFO describes it, has a source that is silent for too long, or was never
    heard."""
    sources: list[dict[str, Any]] = info.get("sources") or []
    silent_ms = [int(source.get("active", -1)) / 1e6 for source in sources]
    return any(silent < 0 or silent > STALLED_MS for silent in silent_ms)
