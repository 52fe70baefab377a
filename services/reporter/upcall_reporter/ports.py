"""What the reporter's handler needs from outside, and what it is told."""

from dataclasses import dataclass
from typing import Any, Protocol

from upcall_contracts.log import Entry, tokens
from upcall_contracts.records import RunRecord
from upcall_contracts.states import ReportState, SessionState

from .decisions import Decision

_FAMILY = 3  # session.<S>.<R>.<family>.…

Place = tuple[int, str]
"""Where a report stands in a list: created_at, and the period_id where two are of the same millisecond."""


@dataclass(frozen=True, slots=True)
class SaidBySession:
    """An entry of a session, with its place in the log."""

    seq: int
    subject: str
    entry: Entry[SessionState]

    @classmethod
    def read(cls, seq: int, subject: str, body: bytes) -> "SaidBySession":
        """Read a message of the log."""
        return cls(seq, subject, Entry[SessionState].model_validate_json(body))

    @property
    def family(self) -> str | None:
        """What the entry is about; None for what concerns no run."""
        parts = tokens(self.subject)
        return parts[_FAMILY] if len(parts) > _FAMILY else None

    @property
    def tells(self) -> bool:
        """Whether it tells of any period; most entries don't."""
        return self.entry.state.closed_period is not None or self.entry.state.held_period is not None

    def tells_of(self, period_id: str) -> bool:
        """Whether a report may have to be decided about a period because of this entry."""
        periods = (self.entry.state.closed_period, self.entry.state.held_period)
        return any(period is not None and period.period_id == period_id for period in periods)


@dataclass(frozen=True, slots=True)
class Report:
    """A report as the log has it: the last entry of its period."""

    seq: int
    state: ReportState
    data: dict[str, Any]
    """The record, as JSON values."""

    @property
    def parent_session_id(self) -> str | None:
        """Who is told."""
        return self.data["parent_session_id"]

    @property
    def line(self) -> list[str]:
        """The sessions from the root down to the one that is reported on."""
        return [*self.state.ancestors, self.state.session_id]

    @property
    def place(self) -> Place:
        """Where it stands in a list."""
        return self.state.created_at, self.state.period_id


class Reports(Protocol):
    """The log, as far as deciding a report needs it."""

    async def report(self, period_id: str) -> Report | None:
        """A period's report; None where nothing is decided about it."""
        ...

    async def run(self, session_id: str, run_id: str) -> RunRecord | None:
        """A run as it stands."""
        ...

    async def is_closed(self, session_id: str | None) -> bool:
        """Whether a session takes nothing any more."""
        ...

    async def is_active(self, session_id: str | None, run_id: str) -> bool:
        """Whether a run is a session's active one."""
        ...

    async def later(self, said: SaidBySession, period_id: str) -> SaidBySession | None:
        """The next entry of the same session that tells of a period, if there is one."""
        ...

    async def append(self, period_id: str, decision: Decision, expected: int) -> None:
        """Store a decision. Raises Conflict where another one about the period came first."""
        ...


class Index(Protocol):
    """Where lists are read from."""

    async def add(self, report: ReportState, parent_session_id: str | None) -> None:
        """Note a report; again does no harm."""
        ...
