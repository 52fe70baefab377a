"""Subjects are spelled as WIRE.md spells them, and read back."""

from collections.abc import Callable

import pytest

from upcall_contracts import subjects
from upcall_contracts.commands import COMMANDS
from upcall_contracts.queries import QUERIES
from upcall_contracts.subjects import CommandAddress, TopicAddress


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (subjects.command("s1", "question", "ask"), "cmd.s1.question.ask"),
        (subjects.query("operator", "run", "wait"), "query.operator.run.wait"),
        (subjects.query_filter("session"), "query.*.session.*"),
        (subjects.run_topic("r1"), "run.r1.>"),
        (subjects.run_event("r1", "lifecycle", "1", "queued"), "run.r1.lifecycle.1.queued"),
        (
            subjects.child_event("p1", "r1", "question", "q1", "requested"),
            "run.p1.child.r1.question.q1.requested",
        ),
        (subjects.inbox_item("s1", "q1"), "inbox.s1.q1"),
        (subjects.inbox_all("s1"), "inbox.s1.>"),
        (subjects.heartbeat("s1"), "heartbeat.s1"),
        (subjects.dispatch("coder"), "dispatch.coder"),
        (subjects.dead("session"), "dead.session"),
    ],
)
def test_builders(built: str, expected: str) -> None:
    assert built == expected


@pytest.mark.parametrize("bad", ["", "a.b", "*", ">", "a b", "x" * 65, "a\n"])
@pytest.mark.parametrize(
    "build",
    [
        lambda part: subjects.command(part, "run", "start"),
        subjects.run_topic,
        subjects.inbox_all,
        subjects.dispatch,
        subjects.heartbeat,
        subjects.query_filter,
        lambda part: subjects.run_event("r1", "work", part, "finished"),
    ],
)
def test_no_builder_lets_a_wildcard_or_a_second_token_in(build: Callable[[str], str], bad: str) -> None:
    with pytest.raises(ValueError, match="part of a subject"):
        build(bad)


def test_a_command_is_read_back() -> None:
    assert subjects.parse_command("cmd.s1.run.start") == CommandAddress("s1", "run", "start")
    assert subjects.parse_query("query.s1.run.get") == CommandAddress("s1", "run", "get")


@pytest.mark.parametrize("subject", ["", "cmd", "cmd.a.b", "cmd.a.b.c.d", "query.a.run.get", "CMD.a.b.c"])
def test_what_has_another_shape_is_no_command(subject: str) -> None:
    assert subjects.parse_command(subject) is None


def test_a_topic_is_read_back_with_the_parent_of_a_copy() -> None:
    assert subjects.parse_topic("run.r1.work.w1.finished") == TopicAddress("r1", "work", "w1", "finished")
    copy = subjects.child_event("p1", "r1", "work", "w1", "finished")
    assert subjects.parse_topic(copy) == TopicAddress("r1", "work", "w1", "finished", "p1")
    assert subjects.parse_topic("run.r1.work") is None


def test_an_inbox_item_and_a_heartbeat_are_read_back() -> None:
    assert subjects.parse_inbox("inbox.s1.q1") == ("s1", "q1")
    assert subjects.parse_inbox("inbox.s1") is None
    assert subjects.parse_heartbeat("heartbeat.s1") == "s1"
    assert subjects.parse_heartbeat("heartbeat.s1.x") is None


def test_every_noun_of_a_command_has_a_filter() -> None:
    assert {noun for noun, _ in COMMANDS} == set(subjects.COMMAND_NOUNS) == set(subjects.COMMAND_FILTERS)
    assert subjects.COMMAND_FILTERS["question"] == "cmd.*.question.*"
    assert {noun for noun, _ in QUERIES} == set(subjects.QUERY_NOUNS)


@pytest.mark.parametrize(
    ("subject", "allowed", "meaning"),
    [
        ("_INBOX.a.b", True, "what a client makes"),
        ("_INBOX.a", True, "one token is enough"),
        ("_INBOX.", False, "nothing under the prefix"),
        ("_INBOX", False, "the prefix itself"),
        ("_INBOXES.a", False, "another prefix"),
        ("run.r1.x", False, "a reply published there would pass for an event"),
        ("_INBOX.*", False, "a wildcard"),
        ("_INBOX.a.>", False, "a wildcard"),
        ("_INBOX.a..b", False, "an empty token"),
        ("_INBOX.a b", False, "white space would be read as another argument of the protocol"),
        ("_INBOX.a\r\nPUB x 0", False, "a line break would be a line of the protocol"),
        ("_INBOX." + "a" * 1017, True, "the longest"),
        ("_INBOX." + "a" * 1018, False, "just over: the server would cut the connection"),
        ("_INBOX.é", False, "ASCII only"),
    ],
)
def test_where_a_reply_may_go(subject: str, allowed: bool, meaning: str) -> None:
    assert subjects.is_reply_subject(subject) is allowed, meaning
