"""What a decision comes to."""

from dataclasses import dataclass

from upcall_contracts.records import LateAnswer, QuestionRecord
from upcall_contracts.states import QuestionsState


@dataclass(frozen=True, slots=True)
class Decided:
    """One entry for the log."""

    event: str
    """requested, answered, timed_out, cancelled, error or late."""
    record: QuestionRecord
    """The question as it stands then."""
    state: QuestionsState
    """All questions of the run as they stand then."""
    late: LateAnswer | None = None
    """Only of a late event."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same command was carried out before: answer with the record as it stands now."""

    request_id: str


@dataclass(frozen=True, slots=True)
class EndFirst:
    """The open question has come to its end already: carry that out, and decide again."""

    end: Decided
