"""What counts as a difference, and which differences are not mended in place; pure functions, no server."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from upcall_deploy.differences import (
    ADD_A_SOURCE_INSTEAD,
    FIT_INSTEAD,
    MOVE_INSTEAD,
    Difference,
    consumer_differences,
    stream_differences,
    stream_hindrance,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE_NS = 60 * 10**9
CHILD = {"name": "LOG", "subject_transforms": [{"src": "log.*", "dest": "run.{{wildcard(1)}}"}]}
PARENT = {"name": "LOG", "subject_transforms": [{"src": "log.*", "dest": "run.{{wildcard(1)}}.child"}]}

AS_THE_SERVER_ANSWERS: dict[str, Any] = {
    "name": "S",
    "subjects": ["b", "a"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": False,
    "consumer_limits": {},
    "metadata": {"_nats.level": "5", "_nats.ver": "2.15.1"},
}


@pytest.mark.parametrize(
    ("meaning", "current", "wanted", "expected"),
    [
        ("defaults that the server fills in", {}, {"subjects": ["a", "b"]}, []),
        ("defaults given outright", {}, {"subjects": ["a", "b"], "max_msgs": 0, "allow_direct": False}, []),
        ("a window that follows from max_age", {"max_age": MINUTE_NS, "duplicate_window": MINUTE_NS},
         {"subjects": ["a", "b"], "max_age": MINUTE_NS}, []),
        ("rollup headers that follow from schedules",
         {"allow_msg_schedules": True, "allow_rollup_hdrs": True},
         {"subjects": ["a", "b"], "allow_msg_schedules": True}, []),
        ("sources in another order", {"sources": [CHILD, PARENT]},
         {"subjects": ["a", "b"], "sources": [PARENT, CHILD]}, []),
        ("a subject more", {}, {"subjects": ["a", "b", "c"]}, ["subjects ['a', 'b'] -> ['a', 'b', 'c']"]),
        ("a limit that is wanted no more", {"max_age": 5}, {"subjects": ["a", "b"]},
         ["max_age 5 -> (not set)"]),
        ("a flag", {}, {"subjects": ["a", "b"], "allow_direct": True}, ["allow_direct (not set) -> true"]),
        ("a field that nobody here has heard of", {"new_in_3_0": "x"}, {"subjects": ["a", "b"]},
         ["new_in_3_0 x -> (not set)"]),
        ("metadata of ours", {}, {"subjects": ["a", "b"], "metadata": {"v": "1"}},
         ["metadata (not set) -> {'v': '1'}"]),
    ],
)  # fmt: skip
def test_stream_differences(
    meaning: str, current: dict[str, Any], wanted: dict[str, Any], expected: list[str]
) -> None:
    found = stream_differences({**AS_THE_SERVER_ANSWERS, **current}, {"name": "S", **wanted})
    assert [str(difference) for difference in found] == expected, meaning


def test_consumer_differences() -> None:
    """The server's defaults are none; a changed filter is one."""
    wanted = {"durable_name": "c", "ack_policy": "explicit", "filter_subjects": ["a", "b"]}
    current = {
        "name": "c",
        "durable_name": "c",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * 10**9,
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_waiting": 512,
        "max_ack_pending": 1000,
        "num_replicas": 0,
        "filter_subjects": ["b", "a"],
    }
    assert consumer_differences(current, wanted) == []
    assert consumer_differences({**current, "filter_subjects": ["a"]}, wanted) == [
        Difference("filter_subjects", ["a"], ["a", "b"])
    ]


def _info(**state: Any) -> dict[str, Any]:
    """Ten messages of 100 bytes each, the oldest one hour old, in a stream that discards old ones."""
    oldest = (NOW - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    full = {"messages": 10, "bytes": 1000, "last_seq": 10, "first_ts": oldest}
    return {"config": {"discard": state.pop("discard", "old")}, "state": {**full, **state}}


@pytest.mark.parametrize(
    ("meaning", "difference", "info", "expected"),
    [
        ("storage never", Difference("storage", "file", "memory"), _info(), MOVE_INSTEAD),
        ("retention never", Difference("retention", "limits", "interest"), _info(), MOVE_INSTEAD),
        ("a subject more", Difference("subjects", ["a"], ["a", "b"]), _info(), None),
        ("a source more", Difference("sources", [CHILD], [CHILD, PARENT]), _info(), None),
        ("a source changed", Difference("sources", [CHILD], [PARENT]), _info(), ADD_A_SOURCE_INSTEAD),
        ("a source changed, nothing derived yet", Difference("sources", [CHILD], [PARENT]),
         _info(messages=0, last_seq=0), None),
        ("an age that the oldest has not", Difference("max_age", None, 61 * MINUTE_NS), _info(), None),
        ("an age that the oldest has", Difference("max_age", None, 59 * MINUTE_NS), _info(), FIT_INSTEAD),
        ("no age any more", Difference("max_age", 59 * MINUTE_NS, None), _info(), None),
        ("as many as there are", Difference("max_msgs", None, 10), _info(), None),
        ("one less than there are", Difference("max_msgs", None, 9), _info(), FIT_INSTEAD),
        ("one less, where new ones are refused", Difference("max_msgs", None, 9), _info(discard="new"), None),
        ("one byte less", Difference("max_bytes", 2000, 999), _info(), FIT_INSTEAD),
        ("one byte less, where new ones are refused", Difference("max_bytes", 2000, 999),
         _info(discard="new"), None),
        ("one a subject", Difference("max_msgs_per_subject", None, 1), _info(), FIT_INSTEAD),
        ("one a subject of nothing", Difference("max_msgs_per_subject", None, 1), _info(messages=0), None),
    ],
)  # fmt: skip
def test_stream_hindrance(
    meaning: str, difference: Difference, info: dict[str, Any], expected: str | None
) -> None:
    assert stream_hindrance(difference, info, NOW) == expected, meaning
