"""The public subjects: the only place where they are spelled. A builder refuses a part that is no token."""

from dataclasses import dataclass
from typing import Final

from .ids import is_token
from .limits import REPLY_SUBJECT_MAX_CHARS

REPLY_PREFIX: Final = "_INBOX."
"""Replies are published under this prefix and nowhere else."""

H_REPLY_TO: Final = "reply_to"
"""The header that names where the reply to a command goes."""

HEARTBEAT_ALL: Final = "heartbeat.*"
"""Every session's heartbeats."""

TOPIC_ALL: Final = "run.>"
"""Every run's events."""

INBOX_ALL: Final = "inbox.>"
"""Every session's inbox."""

DISPATCH_ALL: Final = "dispatch.*"
"""Runs dispatched to any agent."""

DEAD_ALL: Final = "dead.*"
"""Dead letters of every service."""

COMMAND_NOUNS: Final = ("session", "run", "work", "inbox", "question", "report")
"""The nouns of commands; publishing any other fails at once, since no stream takes it."""

QUERY_NOUNS: Final = ("session", "run", "question", "report", "inbox", "log")
"""The nouns of queries."""

COMMAND_FILTERS: Final[dict[str, str]] = {noun: f"cmd.*.{noun}.*" for noun in COMMAND_NOUNS}
"""The filter for all commands of a noun."""


@dataclass(frozen=True, slots=True)
class CommandAddress:
    """What the subject of a command or query says. The caller is not checked to be a token."""

    caller: str
    noun: str
    verb: str


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """What the subject of an event says."""

    run_id: str  # the run that the event is of
    family: str
    id: str
    event: str
    parent_run_id: str | None = None  # set on the copy on the parent's topic


def command(caller: str, noun: str, verb: str) -> str:
    """The subject on which a caller publishes a command."""
    return _join("cmd", caller, noun, verb)


def parse_command(subject: str) -> CommandAddress | None:
    """Read a command's subject; None if it has another shape."""
    return _parse_address("cmd", subject)


def query(caller: str, noun: str, verb: str) -> str:
    """The subject on which a caller sends a query."""
    return _join("query", caller, noun, verb)


def parse_query(subject: str) -> CommandAddress | None:
    """Read a query's subject; None if it has another shape."""
    return _parse_address("query", subject)


def query_filter(noun: str) -> str:
    """The filter for all queries of a noun."""
    _check(noun)
    return f"query.*.{noun}.*"


def run_topic(run_id: str) -> str:
    """Every event of a run, and the copies of its children's."""
    return _join("run", run_id) + ".>"


def run_event(run_id: str, family: str, id_: str, event: str) -> str:
    """The subject of an event on its run's topic."""
    return _join("run", run_id, family, id_, event)


def child_event(parent_run_id: str, child_run_id: str, family: str, id_: str, event: str) -> str:
    """The subject of the copy on the parent run's topic."""
    return _join("run", parent_run_id, "child", child_run_id, family, id_, event)


def parse_topic(subject: str) -> TopicAddress | None:
    """Read the subject of an event or of its copy; None if it has another shape."""
    match subject.split("."):
        case ["run", run_id, family, id_, event]:
            return TopicAddress(run_id, family, id_, event)
        case ["run", parent, "child", run_id, family, id_, event]:
            return TopicAddress(run_id, family, id_, event, parent)
        case _:
            return None


def inbox_item(session_id: str, item_id: str) -> str:
    """The subject of one item of a session's inbox."""
    return _join("inbox", session_id, item_id)


def inbox_all(session_id: str) -> str:
    """The whole inbox of a session."""
    return _join("inbox", session_id) + ".>"


def parse_inbox(subject: str) -> tuple[str, str] | None:
    """Read an item's subject as (session_id, item_id); None if it has another shape."""
    match subject.split("."):
        case ["inbox", session_id, item_id]:
            return session_id, item_id
        case _:
            return None


def heartbeat(session_id: str) -> str:
    """Where a session's host beats."""
    return _join("heartbeat", session_id)


def parse_heartbeat(subject: str) -> str | None:
    """Read the session_id of a heartbeat's subject; None if it has another shape."""
    match subject.split("."):
        case ["heartbeat", session_id]:
            return session_id
        case _:
            return None


def dispatch(agent: str) -> str:
    """Where runs for an agent's runners are dispatched."""
    return _join("dispatch", agent)


def dead(service: str) -> str:
    """Where a service writes its dead letters."""
    return _join("dead", service)


def is_reply_subject(subject: str) -> bool:
    """Say whether a reply may be published here: a literal subject under `_INBOX.`."""
    if not subject.startswith(REPLY_PREFIX) or len(subject) > REPLY_SUBJECT_MAX_CHARS:
        return False
    if not subject.isascii() or not subject.isprintable():
        return False
    tokens = subject.split(".")
    return all(tokens) and not any(c in subject for c in " *>")


def _join(*tokens: str) -> str:
    for token in tokens:
        _check(token)
    return ".".join(tokens)


def _check(token: str) -> None:
    if not is_token(token):
        raise ValueError(f"a part of a subject is 1 to 64 characters of A-Z a-z 0-9 _ -: {token[:80]!r}")


def _parse_address(kind: str, subject: str) -> CommandAddress | None:
    match subject.split("."):
        case [first, caller, noun, verb] if first == kind:
            return CommandAddress(caller, noun, verb)
        case _:
            return None
