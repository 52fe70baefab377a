"""Whether what JetStream derives from the log has stopped coming: then a stream is to have another leader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

STALLED_MS: Final = 3_000
"""A source that is well hears of the log every second, if only that nothing has come (nats-server's
`sourceHealthHB`)."""

Info = Mapping[str, Any]
"""A stream as STREAM.INFO describes it, or its error."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a look at the streams."""

    stalled_since: Mapping[str, float]
    """By stream, when it was first found stalled, in ms of the clock that was handed in."""
    overdue: Sequence[str] = ()
    """Streams that have been stalled for so long that a leader has to be asked for."""


def look(log: Info, derived: Mapping[str, Info], before: Seen, now_ms: float) -> Seen:
    """Look at the streams that source the log, by name; one that nothing was heard of is as it was before.

    Nobody can hear of a log without a leader, and without replicas there is no other leader: then nothing is
    stalled. Who was made leader a moment ago has not heard of the log yet, so one look is not enough.
    """
    if not (is_replicated(log) and log.get("cluster", {}).get("leader")):
        return Seen({})
    stalled = [name for name, info in derived.items() if "error" not in info and has_stalled(info)]
    since = {name: before.stalled_since.get(name, now_ms) for name in stalled}
    unheard = {name: at for name, at in before.stalled_since.items() if name not in derived}
    return Seen({**unheard, **since}, [name for name in stalled if now_ms - since[name] >= STALLED_MS])


def helped(seen: Seen, name: str) -> Seen:
    """The same once a stream was asked for another leader, which gets as much time as the one before."""
    return Seen({other: since for other, since in seen.stalled_since.items() if other != name})


def is_replicated(info: Info) -> bool:
    """Whether a stream can have another leader; not where it can't be described."""
    return int(info.get("config", {}).get("num_replicas", 1)) > 1


def has_stalled(info: Info) -> bool:
    """Whether a stream has a source that is silent for too long, or was never heard."""
    sources: list[dict[str, Any]] = info.get("sources") or []
    silent_ms = [int(source.get("active", -1)) / 1e6 for source in sources]
    return any(silent < 0 or silent > STALLED_MS for silent in silent_ms)
