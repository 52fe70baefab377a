"""What differs between a configuration that JetStream holds and the one that is wanted. No I/O here.

The server answers with every field filled in, a definition names only what it cares about. So both are
brought to one form: the server's defaults are put in, what means "not set" is left out, and so is the
server's own metadata. A field that this module has never heard of is compared like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

Config = Mapping[str, Any]

STREAM_DEFAULTS: Config = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "compression": "none",
    "persist_mode": "default",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
}
CONSUMER_DEFAULTS: Config = {
    "deliver_policy": "all",
    "ack_policy": "none",
    "replay_policy": "instant",
    "priority_policy": "none",
    "ack_wait": 30_000_000_000,
    "max_ack_pending": 1000,
    "max_waiting": 512,
}
# 0 and -1 both mean "no limit" for these, and the server answers with -1.
UNLIMITED = frozenset(
    {"max_consumers", "max_msgs", "max_bytes", "max_msg_size", "max_msgs_per_subject", "max_deliver"}
)
# Fields in which an order carries no meaning.
UNORDERED = frozenset({"subjects", "sources", "filter_subjects"})

# What to do where a difference can't be mended in place; each goes on after "this".
MOVE_INSTEAD = (
    "can't be changed in place; set it back, or move the messages to a new stream that has this one as its "
    "source, remove this one, and run provisioning again"
)
ADD_A_SOURCE_INSTEAD = (
    "would make JetStream derive everything from the changed source once more, so that each message comes "
    "twice; leave that source as it was and add what is new as a further source, or, with the services "
    "stopped, remove the stream and run provisioning again: it is then derived from the beginning, and what "
    "only this stream knew is lost"
)
FIT_INSTEAD = (
    "would make JetStream delete messages that are there now; set the limit so that they fit, or purge the "
    "stream yourself (`nats stream purge`), and run provisioning again"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, as it is and as it is wanted; None is "not set"."""

    field: str
    current: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.field} {_shown(self.current)} -> {_shown(self.wanted)}"


def stream_differences(current: Config, wanted: Config) -> list[Difference]:
    """The fields of a stream that differ, in alphabetical order."""
    implied: dict[str, Any] = {}
    if wanted.get("allow_msg_schedules") or wanted.get("allow_msg_counter"):
        # The server turns it on with schedules.
        implied["allow_rollup_hdrs"] = True
    return _differences(current, {**implied, **wanted}, _stream_defaults(wanted))


def consumer_differences(current: Config, wanted: Config) -> list[Difference]:
    """The fields of a consumer that differ, in alphabetical order."""
    return _differences(current, {"name": wanted.get("durable_name"), **wanted}, CONSUMER_DEFAULTS)


def stream_hindrance(difference: Difference, info: Config, now: datetime) -> str | None:
    """Why this difference must not be mended in place, and what to do instead; None where it may be.

    `info` is the server's answer to STREAM.INFO: the configuration and the state.
    """
    if difference.field in ("storage", "retention"):
        return MOVE_INSTEAD
    if difference.field == "sources" and info["state"]["last_seq"] > 0 and _loses_a_source(difference):
        return ADD_A_SOURCE_INSTEAD
    if _deletes_messages(difference, info, now):
        return FIT_INSTEAD
    return None


def _stream_defaults(wanted: Config) -> Config:
    # The window for duplicates can't be longer than messages live, so the server shortens its default.
    max_age = wanted.get("max_age") or 0
    if 0 < max_age < STREAM_DEFAULTS["duplicate_window"]:
        return {**STREAM_DEFAULTS, "duplicate_window": max_age}
    return STREAM_DEFAULTS


def _differences(current: Config, wanted: Config, defaults: Config) -> list[Difference]:
    old, new = _normal_form(current, defaults), _normal_form(wanted, defaults)
    return [
        Difference(field, old.get(field), new.get(field))
        for field in sorted(old.keys() | new.keys())
        if old.get(field) != new.get(field)
    ]


def _normal_form(config: Config, defaults: Config) -> dict[str, Any]:
    normal = {**defaults, **_set_fields(config)}
    for field in UNLIMITED & normal.keys():
        if normal[field] == -1:
            del normal[field]
    for field in UNORDERED & normal.keys():
        normal[field] = sorted(normal[field], key=repr)
    return normal


def _set_fields(value: Any) -> Any:
    """The same without what means "not set", at every depth, and without the server's metadata."""
    if isinstance(value, Mapping):
        pruned = {key: _set_fields(item) for key, item in value.items() if not str(key).startswith("_nats.")}
        return {key: item for key, item in sorted(pruned.items()) if item or item is True}
    if isinstance(value, list | tuple):
        return [_set_fields(item) for item in value]
    return value


def _loses_a_source(difference: Difference) -> bool:
    return any(source not in (difference.wanted or []) for source in difference.current or [])


def _deletes_messages(difference: Difference, info: Config, now: datetime) -> bool:
    limit = difference.wanted
    state, discards_old = info["state"], info["config"].get("discard", "old") == "old"
    if limit is None or not state["messages"]:
        return False
    match difference.field:
        case "max_age":
            oldest = datetime.fromisoformat(state["first_ts"])
            return now - oldest > timedelta(microseconds=limit / 1000)
        case "max_msgs_per_subject":
            # How many each subject has would have to be counted; one subject could have them all.
            return state["messages"] > limit
        case "max_msgs":
            return discards_old and state["messages"] > limit
        case "max_bytes":
            return discards_old and state["bytes"] > limit
        case _:
            return False


def _shown(value: Any) -> str:
    if value is None:
        return "(not set)"
    return str(value).lower() if isinstance(value, bool) else str(value)
