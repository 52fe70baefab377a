"""Events: what stands on a run's topic, on its parent's topic, and in an inbox."""

from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from .base import Record
from .records import ItemKind
from .times import WireTime


class Family(StrEnum):
    """What an event is about; it decides what the id in the subject is."""

    LIFECYCLE = "lifecycle"  # the run; the id is the attempt, from 1
    WORK = "work"  # background work; the id is the work_id
    QUESTION = "question"  # a question; the id is the request_id
    REPORT = "report"  # a report, on the topic of the period's last run; the id is the period_id


class EventType(StrEnum):
    """The `type` of an event."""

    RUN_QUEUED = "run_queued"
    RUN_STARTED = "run_started"
    RUN_INTERRUPTED = "run_interrupted"
    RUN_CANCEL_REQUESTED = "run_cancel_requested"
    RUN_BACKGROUNDED = "run_backgrounded"
    RUN_SETTLED = "run_settled"
    WORK_FINISHED = "work_finished"
    QUESTION_REQUESTED = "parent_question_requested"
    QUESTION_ANSWERED = "parent_question_answered"
    QUESTION_TIMED_OUT = "parent_question_timed_out"
    QUESTION_CANCELLED = "parent_question_cancelled"
    QUESTION_ERROR = "parent_question_error"
    QUESTION_LATE_ANSWER = "parent_question_late_answer"
    REPORT_HELD = "report_held"
    REPORT_DELIVERED = "report_delivered"
    REPORT_SUPPRESSED = "report_suppressed"


EVENT_TYPES: Final[dict[tuple[Family, str], EventType]] = {
    (Family.LIFECYCLE, "queued"): EventType.RUN_QUEUED,
    (Family.LIFECYCLE, "started"): EventType.RUN_STARTED,
    (Family.LIFECYCLE, "interrupted"): EventType.RUN_INTERRUPTED,
    (Family.LIFECYCLE, "cancel_requested"): EventType.RUN_CANCEL_REQUESTED,
    (Family.LIFECYCLE, "backgrounded"): EventType.RUN_BACKGROUNDED,
    (Family.LIFECYCLE, "settled"): EventType.RUN_SETTLED,
    (Family.WORK, "finished"): EventType.WORK_FINISHED,
    (Family.QUESTION, "requested"): EventType.QUESTION_REQUESTED,
    (Family.QUESTION, "answered"): EventType.QUESTION_ANSWERED,
    (Family.QUESTION, "timed_out"): EventType.QUESTION_TIMED_OUT,
    (Family.QUESTION, "cancelled"): EventType.QUESTION_CANCELLED,
    (Family.QUESTION, "error"): EventType.QUESTION_ERROR,
    (Family.QUESTION, "late"): EventType.QUESTION_LATE_ANSWER,
    (Family.REPORT, "held"): EventType.REPORT_HELD,
    (Family.REPORT, "delivered"): EventType.REPORT_DELIVERED,
    (Family.REPORT, "suppressed"): EventType.REPORT_SUPPRESSED,
}
"""The type of each event, by the family and event of its subject."""


class Item(Record):
    """What makes an event an item of an inbox."""

    item_id: str
    """The request_id, period_id or work_id; a reader that sees it twice knows."""
    kind: ItemKind
    """What it is."""
    text: str = ""
    """What a model reads."""
    wakes: bool = False
    """True: a run is started for it if the session is idle."""
    for_run: str | None = None
    """The run that takes it as the result of its call; null for an ordinary item."""


class Event(Record):
    """One decision, as its topic tells it. Delivery is at least once; the event_id is stable."""

    event_id: str
    """Its id."""
    type: EventType
    """What happened."""
    time: WireTime
    """When."""
    run_id: str
    """The run that it is of."""
    session_id: str
    """That run's session."""
    parent_run_id: str | None = None
    """The run on whose topic its copy stands."""
    parent_session_id: str | None = None
    """The session's parent."""
    root_session_id: str | None = None
    """The top of the tree."""
    agent: str = ""
    """The session's agent."""
    task_id: str | None = None
    """The caller's own id of the task."""
    data: dict[str, Any] = Field(default_factory=dict[str, Any])
    """The record as it stands after the decision, as JSON values."""
    item: Item | None = None
    """Only where the event is an item of an inbox."""

    def to_wire(self) -> dict[str, Any]:
        """The event as JSON values; without an item where it is none."""
        return self.model_dump(mode="json", exclude=None if self.item else {"item"})
