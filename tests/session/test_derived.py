"""When a stream that sources the log is taken for stalled."""

from typing import Any

import pytest

from upcall_session.decisions.derived import STALLED_MS, has_stalled, is_replicated

MS = 1_000_000


@pytest.mark.parametrize(
    ("active", "stalled"),
    [
        ([0], False),
        ([1_000 * MS, STALLED_MS * MS], False),
        ([1_000 * MS, (STALLED_MS + 1) * MS], True),
        ([-1], True),
        ([], False),
    ],
    ids=["just now", "at the limit", "one of two", "never heard", "no source"],
)
def test_source_that_is_silent_for_too_long_has_stalled(active: list[int], stalled: bool) -> None:
    assert has_stalled({"sources": [{"name": "LOG", "active": each} for each in active]}) is stalled


@pytest.mark.parametrize(("config", "replicated"), [({"num_replicas": 3}, True), ({}, False)])
def test_only_a_replicated_stream_has_another_leader(config: dict[str, Any], replicated: bool) -> None:
    assert is_replicated({"config": config}) is replicated
