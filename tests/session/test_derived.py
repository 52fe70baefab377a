"""When a stream that sources the log is taken for stalled, and which one is to have another leader."""

from typing import Any

import pytest

from upcall_session.decisions.derived import STALLED_MS, Seen, has_stalled, helped, is_replicated, look

MS = 1_000_000

LED: dict[str, Any] = {"config": {"num_replicas": 3}, "cluster": {"leader": "n1"}}
WELL: dict[str, Any] = {"sources": [{"name": "LOG", "active": 500 * MS}]}
STALLED: dict[str, Any] = {"sources": [{"name": "LOG", "active": (STALLED_MS + 1) * MS}]}
AWAY: dict[str, Any] = {"error": {"code": 503, "description": "no leader"}}


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


@pytest.mark.parametrize(
    ("info", "replicated"),
    [({"config": {"num_replicas": 3}}, True), ({"config": {}}, False), (AWAY, False)],
    ids=["three", "alone", "away"],
)
def test_only_a_replicated_stream_has_another_leader(info: dict[str, Any], replicated: bool) -> None:
    assert is_replicated(info) is replicated


NOW = 100_000.0
LONG_AGO = NOW - STALLED_MS


@pytest.mark.parametrize(
    ("log", "topics", "inbox", "before", "since", "overdue"),
    [
        pytest.param(LED, WELL, WELL, {}, {}, [], id="all is well"),
        pytest.param(LED, WELL, STALLED, {}, {"INBOX": NOW}, [], id="stalled for the first time: noted"),
        pytest.param(
            LED, WELL, STALLED, {"INBOX": LONG_AGO + 1}, {"INBOX": LONG_AGO + 1}, [], id="not for long enough"
        ),
        pytest.param(
            LED, WELL, STALLED, {"INBOX": LONG_AGO}, {"INBOX": LONG_AGO}, ["INBOX"], id="for long enough"
        ),
        pytest.param(
            LED,
            STALLED,
            STALLED,
            {"INBOX": LONG_AGO},
            {"TOPICS": NOW, "INBOX": LONG_AGO},
            ["INBOX"],
            id="each by itself",
        ),
        pytest.param(
            LED,
            STALLED,
            STALLED,
            {"TOPICS": LONG_AGO, "INBOX": LONG_AGO},
            {"TOPICS": LONG_AGO, "INBOX": LONG_AGO},
            ["TOPICS", "INBOX"],
            id="both",
        ),
        pytest.param(LED, WELL, WELL, {"INBOX": LONG_AGO}, {}, [], id="well again by itself"),
        pytest.param(
            LED,
            STALLED,
            None,
            {"INBOX": LONG_AGO},
            {"TOPICS": NOW, "INBOX": LONG_AGO},
            [],
            id="nothing heard of it",
        ),
        pytest.param(
            LED, WELL, AWAY, {"INBOX": LONG_AGO}, {}, [], id="it has no leader: it chooses one just now"
        ),
        pytest.param(
            {"config": {"num_replicas": 3}, "cluster": {}},
            STALLED,
            STALLED,
            {"INBOX": LONG_AGO},
            {},
            [],
            id="nor has the log",
        ),
        pytest.param(AWAY, STALLED, STALLED, {"INBOX": LONG_AGO}, {}, [], id="nothing is known of the log"),
        pytest.param(
            {"config": {"num_replicas": 1}}, STALLED, STALLED, {"INBOX": LONG_AGO}, {}, [], id="a lone server"
        ),
    ],
)
def test_a_stream_that_stays_stalled_is_to_have_another_leader(
    log: dict[str, Any],
    topics: dict[str, Any] | None,
    inbox: dict[str, Any] | None,
    before: dict[str, float],
    since: dict[str, float],
    overdue: list[str],
) -> None:
    infos = {"TOPICS": topics, "INBOX": inbox}
    heard = {name: info for name, info in infos.items() if info is not None}
    seen = look(log, heard, Seen(before), NOW)
    assert (seen.stalled_since, list(seen.overdue)) == (since, overdue)


def test_the_next_leader_has_as_much_time() -> None:
    """Only of the stream that was helped, it is forgotten since when it was stalled."""
    seen = look(LED, {"TOPICS": STALLED, "INBOX": STALLED}, Seen({"TOPICS": LONG_AGO, "INBOX": NOW - 1}), NOW)
    after = helped(seen, "TOPICS")
    assert after.stalled_since == {"INBOX": NOW - 1}
    assert look(LED, {"TOPICS": STALLED, "INBOX": STALLED}, after, NOW).overdue == []
