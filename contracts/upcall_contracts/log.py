"""The log: the subjects under which decisions are stored, their guards, and the body of an entry.

Internal to the services. An aggregate's subjects begin alike, so that a compare-and-set has a literal prefix;
what the public names are made of stands at the end (DESIGN.md section 9, `streams.py` has the transforms):

    log.session.<S>.<R>.<family>.<id>.<event>[.<PR>.<PS>]   guard log.session.<S>.>
    log.session.<S>.<note>                                  what concerns no run: opened, closed, …
    log.session.<S>.child.<C>                               a spawn or continue, decided on the parent first
    log.session.<S>.history.<from>                          an append
    log.question.<R>.<Q>.<event>.<S>[.<PR>].<PS>            guard log.question.<R>.>
    log.report.<period>.<event>.<R>.<S>[[.<PR>].<PS>]       guard log.report.<period>.>

<PR> is left away where there is no parent run, or where it is the run itself; then there is no copy.
"""

from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pydantic import Field

from .base import Record
from .events import Event, Family
from .ids import is_token

LOG_ALL: Final = "log.>"
"""Everything that was ever decided."""

H_EVENT_ID: Final = "Upcall-Event-Id"
"""The entry's own id: after a publish whose outcome is unknown, it tells whether the entry is ours."""

H_EXPECTED_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
H_EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"

SESSION_GUARD_ALL: Final = "log.session.>"
QUESTION_GUARD_ALL: Final = "log.question.>"
REPORT_GUARD_ALL: Final = "log.report.>"


class Note(StrEnum):
    """Decisions of a session that concern no run; they match no transform."""

    OPENED = "opened"  # opened, opened again, or spawned
    CLOSED = "closed"  # takes nothing any more
    GONE = "gone"  # its host is gone
    LIVE = "live"  # a host has it again
    COUNTED = "counted"  # a child's report was counted
    UNCOUNTED = "uncounted"  # a spawn or continue that was decided here was refused by the child
    HANDLED = "handled"  # items of the inbox were handled
    RELEASED = "released"  # the hold was ended by report.release or by its bound
    LET_GO = "let_go"  # a host that was cancelled has let go
    NOTED = "noted"  # any other change of the state


def _path(*tokens: str | None) -> str:
    kept = [t for t in tokens if t is not None]
    for token in kept:
        if not is_token(token):
            raise ValueError(f"not a token of a subject: {token[:80]!r}")
    return ".".join(("log", *kept))


def session_guard(session_id: str) -> str:
    """The filter that covers all decisions on a session."""
    return _path("session", session_id) + ".>"


def question_guard(run_id: str) -> str:
    """The filter that covers all decisions on a run's questions."""
    return _path("question", run_id) + ".>"


def question_filter(run_id: str, request_id: str) -> str:
    """The filter for one question's entries; the last one's data is its record."""
    return _path("question", run_id, request_id) + ".>"


def report_guard(period_id: str) -> str:
    """The filter that covers all decisions on a period's report."""
    return _path("report", period_id) + ".>"


def run_filter(session_id: str, run_id: str, family: str = Family.LIFECYCLE) -> str:
    """The filter for a run's entries of a family; the last of lifecycle has the run's record as its data."""
    return _path("session", session_id, run_id, family) + ".>"


def last_run_filter(session_id: str) -> str:
    """The filter for the lifecycle of all runs of a session; the last entry is of the last run."""
    return _path("session", session_id) + f".*.{Family.LIFECYCLE}.>"


def run_anywhere_filter(run_id: str) -> str:
    """The filter that finds a run whose session is not known. Slow: only where the index has lost it."""
    if not is_token(run_id):
        raise ValueError("not a token")
    return f"log.session.*.{run_id}.lifecycle.>"


def question_anywhere_filter(request_id: str) -> str:
    """The filter that finds a question whose run is not known. Slow: only where the index has lost it."""
    if not is_token(request_id):
        raise ValueError("not a token")
    return f"log.question.*.{request_id}.>"


def session_event(
    session_id: str,
    run_id: str,
    family: str,
    id_: str,
    event: str,
    parent_run_id: str | None = None,
    parent_session_id: str | None = None,
) -> str:
    """The subject of a session's decision about a run."""
    if parent_run_id is None or parent_session_id is None or parent_run_id == run_id:
        return _path("session", session_id, run_id, family, id_, event)
    return _path("session", session_id, run_id, family, id_, event, parent_run_id, parent_session_id)


def session_note(session_id: str, note: Note) -> str:
    """The subject of a session's decision that concerns no run."""
    return _path("session", session_id, note.value)


def session_child(session_id: str, child_session_id: str) -> str:
    """The subject of the decision, on the parent's session, that a child is spawned or continued."""
    return _path("session", session_id, "child", child_session_id)


def session_children(session_id: str) -> str:
    """The filter that lists a session's children: the last token of each subject."""
    return _path("session", session_id, "child") + ".*"


def session_history(session_id: str, from_: int) -> str:
    """The subject of an append whose first message has this index."""
    return _path("session", session_id, "history", str(from_))


def session_histories(session_id: str) -> str:
    """The filter for all appends of a session."""
    return _path("session", session_id, "history") + ".*"


def question_event(
    run_id: str,
    request_id: str,
    event: str,
    session_id: str,
    parent_run_id: str | None,
    parent_session_id: str,
) -> str:
    """The subject of a decision about a question."""
    parent_run = None if parent_run_id == run_id else parent_run_id
    return _path("question", run_id, request_id, event, session_id, parent_run, parent_session_id)


def report_event(
    period_id: str,
    event: str,
    run_id: str,
    session_id: str,
    parent_run_id: str | None,
    parent_session_id: str | None,
) -> str:
    """The subject of a decision about a period's report; run_id is the period's last run."""
    parent_run = None if parent_session_id is None or parent_run_id == run_id else parent_run_id
    return _path("report", period_id, event, run_id, session_id, parent_run, parent_session_id)


def tokens(subject: str) -> list[str]:
    """The parts of a log subject behind `log`: the aggregate's kind first."""
    return subject.split(".")[1:]


def ids(subject: str) -> dict[str, str]:
    """The ids that an entry's subject names, by the names they have in records: for logs and traces."""
    match tokens(subject):
        case ["session", session_id, "child", child_session_id]:
            return {"session_id": session_id, "child_session_id": child_session_id}
        case ["session", session_id, _] | ["session", session_id, "history", _]:
            return {"session_id": session_id}
        case ["session", session_id, run_id, *_]:
            return {"session_id": session_id, "run_id": run_id}
        case ["question", run_id, request_id, _, session_id, *_]:
            return {"request_id": request_id, "run_id": run_id, "session_id": session_id}
        case ["report", period_id, _, run_id, session_id, *_]:
            return {"period_id": period_id, "run_id": run_id, "session_id": session_id}
        case _:
            return {}


class CommandMark(Record):
    """The command that an entry carries out, so that the same command sent again is recognised."""

    key: str
    """`<caller>/<noun>.<verb>/<command_id>`."""
    fingerprint: str
    """body_fingerprint of its body."""


S = TypeVar("S")


class Entry(Event, Generic[S]):
    """The body of an entry: the public event, and beside it the aggregate's whole state after it.

    For entries that concern no run, `run_id` is empty and `type` is `note`.
    """

    type: str  # pyright: ignore[reportIncompatibleVariableOverride]
    """An EventType; `note` for what concerns no run."""
    run_id: str = ""
    """The run; empty for what concerns none."""
    state: S
    """What the next decision on this aggregate needs."""
    command: CommandMark | None = None
    """The command that caused it, where one did."""
    history: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Messages of the session's history that this entry adds, each with its index and run_id."""


NOTE_TYPE: Final = "note"
