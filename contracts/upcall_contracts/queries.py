"""Queries: one strict model for each body, with the keys that its result has. They change nothing."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo

from . import limits
from .base import CLOSED, StrictBody
from .fields import Cursor, PageLimit, Positive, WaitMs, one_of, problem
from .ids import Token
from .records import QuestionStatus, ReportStatus, SessionStatus


class QueryBody(StrictBody):
    """The body of a query. Null is the same as absent wherever absent means none."""


class Page(QueryBody):
    """A query that answers page by page."""

    cursor: Cursor | None = None
    """Where the last page ended, as its reply gave it; absent, from the beginning."""
    limit: PageLimit = limits.PAGE_DEFAULT
    """At most how many."""


class SessionGet(QueryBody):
    """One session."""

    session_id: Token
    """The session."""


class SessionList(Page):
    """The children of a session, or its whole tree."""

    session_id: Token | None = None
    """The session; absent, the caller's own."""
    scope: Literal["children", "tree"] = "children"
    """Its children only, or the session and all its descendants."""
    status: SessionStatus | None = None
    """Only those in this status."""


class SessionHistory(QueryBody):
    """The messages of a session."""

    session_id: Token
    """The session."""
    from_: Positive = Field(1, validation_alias="from", serialization_alias="from")
    """The index of the first message wanted."""
    limit: PageLimit = limits.PAGE_DEFAULT
    """At most how many."""


class RunGet(QueryBody):
    """One run."""

    run_id: Token
    """The run."""


class RunWait(QueryBody):
    """Wait until a run is settled, or asks a question."""

    run_id: Token
    """The run."""
    timeout_ms: WaitMs
    """How long to wait at most."""


class QuestionGet(QueryBody):
    """One question."""

    request_id: Token
    """The question."""


class QuestionWait(QueryBody):
    """Wait for the end of a question."""

    request_id: Token
    """The question."""
    timeout_ms: WaitMs
    """How long to wait at most."""


class QuestionList(Page):
    """The questions put to the caller, oldest first."""

    status: QuestionStatus = QuestionStatus.WAITING
    """Only those in this status."""
    scope: Literal["mine", "tree"] = "mine"
    """Those put to the caller, or to any session of its tree."""


class ReportGet(QueryBody):
    """One report."""

    period_id: Token
    """The report."""


class ReportList(Page):
    """The reports of a session, or of the caller's children."""

    session_id: Token | None = None
    """The session reported on; absent, all of the caller's children."""
    status: ReportStatus | None = None
    """Only those in this status."""


class InboxList(QueryBody):
    """What waits in an inbox, oldest first, without what is over."""

    session_id: Token | None = None
    """Whose inbox; absent, the caller's own."""


def _exactly_one(root_session_id: str | None, info: ValidationInfo) -> str | None:
    names = ("run_id", "session_id")
    if all(name in info.data for name in names):
        given = [info.data[name] for name in names] + [root_session_id]
        if sum(value is not None for value in given) != 1:
            raise problem("give exactly one of run_id, session_id and root_session_id")
    return root_session_id


class LogIntrospect(Page):
    """The events of a run, a session or a tree, in order, without copies."""

    model_config = ConfigDict(
        json_schema_extra={**CLOSED, **one_of("run_id", "session_id", "root_session_id")}
    )

    run_id: Token | None = None
    """The events of this run."""
    session_id: Token | None = None
    """The events of this session."""
    root_session_id: Annotated[Token | None, AfterValidator(_exactly_one)] = Field(
        None, validate_default=True
    )
    """The events of this tree."""


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """A row of the query table."""

    model: type[QueryBody]
    result_keys: tuple[str, ...]  # what the result of the reply holds


QUERIES: Final[dict[tuple[str, str], QuerySpec]] = {
    ("session", "get"): QuerySpec(SessionGet, ("session",)),
    ("session", "list"): QuerySpec(SessionList, ("sessions", "cursor")),
    ("session", "history"): QuerySpec(SessionHistory, ("messages", "next")),
    ("run", "get"): QuerySpec(RunGet, ("run",)),
    ("run", "wait"): QuerySpec(RunWait, ("state", "run", "question")),
    ("question", "get"): QuerySpec(QuestionGet, ("question",)),
    ("question", "wait"): QuerySpec(QuestionWait, ("question",)),
    ("question", "list"): QuerySpec(QuestionList, ("questions", "cursor")),
    ("report", "get"): QuerySpec(ReportGet, ("report",)),
    ("report", "list"): QuerySpec(ReportList, ("reports", "cursor")),
    ("inbox", "list"): QuerySpec(InboxList, ("items",)),
    ("log", "introspect"): QuerySpec(LogIntrospect, ("events", "cursor")),
}
"""Every query by (noun, verb)."""
