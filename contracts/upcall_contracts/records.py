"""The records that replies and events carry, with the values that their fields may have.

Times are epoch milliseconds here and RFC 3339 on the wire; durations are milliseconds. A field that is null
says: not yet, or not given. Only the id is required, so that a test may build part of a record.
"""

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field, JsonValue

from .base import Record
from .times import WireTime


class Host(StrEnum):
    """Who carries out a session's runs."""

    SELF = "self"  # the program that opened or spawned the session
    RUNNER = "runner"  # any runner that serves the agent's name


class SessionStatus(StrEnum):
    """What a session is doing."""

    IDLE = "idle"  # no active run; a held session is idle too
    BUSY = "busy"  # a run is active, or a cancelled host has not let go
    CLOSED = "closed"  # for good


class RunStatus(StrEnum):
    """Where a run is between its start and its settling."""

    QUEUED = "queued"  # dispatched, and not claimed yet
    RUNNING = "running"  # somebody carries it out
    INTERRUPTED = "interrupted"  # its holder stopped beating; it will be queued again or be lost
    SETTLED = "settled"  # over; see its outcome


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"  # by itself
    FAILED = "failed"  # with an error
    CANCELLED = "cancelled"  # on request
    HALTED = "halted"  # its step budget was used up
    TIMED_OUT = "timed_out"  # its time limit passed
    LOST = "lost"  # its host is gone; said by a service, never by a host


class Trigger(StrEnum):
    """What started a run."""

    SPAWN = "spawn"  # session.spawn
    CONTINUE = "continue"  # session.continue
    PROMPT = "prompt"  # a self host, because a person typed something
    WAKE = "wake"  # a waking item found the session idle
    SELF = "self"  # a self host, of its own accord


class QuestionStatus(StrEnum):
    """A question waits, or has come to one of four ends."""

    WAITING = "waiting"  # open
    ANSWERED = "answered"  # accepted or declined by the parent or an operator
    TIMED_OUT = "timed_out"  # expires_at passed
    CANCELLED = "cancelled"  # by the child, or because its run or session ended
    ERROR = "error"  # the parent is gone


class EndReason(StrEnum):
    """Why a question ended without an answer, where no text was given."""

    CHILD = "child"  # cancelled by the child
    RUN_SETTLED = "run_settled"  # cancelled by the end of its run
    SESSION_CANCELLED = "session_cancelled"  # cancelled with its session
    PARENT_UNAVAILABLE = "parent_unavailable"  # error: the parent session closed, or its host is gone


class Action(StrEnum):
    """What an answer does."""

    ACCEPT = "accept"  # decides the question
    DECLINE = "decline"  # says that the parent won't decide


class AnswererKind(StrEnum):
    """Who answered."""

    AGENT = "agent"  # a session, or the runner that holds its run
    HUMAN = "human"  # an operator


class ReportStatus(StrEnum):
    """Where a report is."""

    HELD = "held"  # the period is open after its first settled run
    DELIVERED = "delivered"  # in the parent's inbox
    SUPPRESSED = "suppressed"  # decided that nobody is told


class ReportResult(StrEnum):
    """The state that a parent is shown."""

    COMPLETED = "completed"  # the last run completed
    CANCELLED = "cancelled"  # the last run was cancelled
    ERROR = "error"  # any other outcome


def result_of(outcome: Outcome) -> ReportResult:
    """The state that a parent is shown for the outcome of a period's last run."""
    match outcome:
        case Outcome.COMPLETED:
            return ReportResult.COMPLETED
        case Outcome.CANCELLED:
            return ReportResult.CANCELLED
        case _:
            return ReportResult.ERROR


class HeldReason(StrEnum):
    """What a held report waits for; the first that holds."""

    RUN_ACTIVE = "run_active"  # a run of the period is active
    WORK_PENDING = "work_pending"  # work that the period's runs left running
    CHILDREN_PENDING = "children_pending"  # a child whose report is not decided
    ITEMS_WAITING = "items_waiting"  # a waking item in the session's inbox


class SuppressedReason(StrEnum):
    """Why nobody is told; of several the first that holds."""

    NO_PARENT = "no_parent"  # a top-level session
    PARENT_CLOSED = "parent_closed"  # the parent takes nothing any more
    SILENT = "silent"  # notify is false


class WorkKind(StrEnum):
    """What a run left running."""

    SHELL = "shell"  # a process of the host; it ends as lost with its host
    OTHER = "other"  # anything else that the host finishes with work.finish
    SESSION = "session"  # a child whose report is not decided; never named by a host


class WorkOutcome(StrEnum):
    """How background work ended."""

    COMPLETED = "completed"  # by itself
    FAILED = "failed"  # with an error
    CANCELLED = "cancelled"  # on request
    LOST = "lost"  # its host is gone; said by a service, never by a host


class ItemKind(StrEnum):
    """What stands in an inbox."""

    QUESTION = "question"  # of a child
    REPORT = "report"  # of a child
    WORK = "work"  # the session's own, finished


class PendingItem(Record):
    """Something that a session waits for, or that a report did not wait for."""

    id: str
    """The work_id, or the child's session_id."""
    kind: WorkKind = WorkKind.OTHER
    """What it is."""
    label: str | None = None
    """What to call it; of a child its description."""


class WorkItem(Record):
    """A piece of work of a period, as its report names it."""

    id: str
    """The work_id, or the child's session_id."""
    kind: WorkKind = WorkKind.OTHER
    """What it is."""
    label: str | None = None
    """What to call it; of a child its description."""
    outcome: Outcome | None = None
    """How it ended; of a child the outcome in its report."""


class AnsweredBy(Record):
    """Who answered a question."""

    kind: AnswererKind = AnswererKind.AGENT
    """`human` for an operator, else `agent`."""
    id: str
    """The caller's token."""


class SessionRecord(Record):
    """One conversation of one agent."""

    session_id: str
    """Its id."""
    parent_session_id: str | None = None
    """The session that spawned it; null at the top."""
    root_session_id: str | None = None
    """The top of its tree; its own id at the top."""
    depth: int = 0
    """Steps from the root."""
    agent: str = ""
    """The agent's name."""
    host: Host = Host.SELF
    """Who carries out its runs."""
    title: str | None = None
    """What people call it."""
    model: str | None = None
    """The model that its runs use, where one was named."""
    variant: str | None = None
    """The model's variant, where one was named."""
    notify: bool = True
    """False: its reports are suppressed as silent."""
    status: SessionStatus = SessionStatus.IDLE
    """What it is doing."""
    live: bool = True
    """False once its host is gone."""
    lease_ms: int = 0
    """How long it may go without a heartbeat; 0 is for ever."""
    run_id: str | None = None
    """The active run."""
    runs: int = 0
    """How many runs it has had."""
    period_id: str | None = None
    """The open period."""
    pending: list[PendingItem] = Field(default_factory=list[PendingItem])
    """What the open period still waits for."""
    history_seq: int = 0
    """The index of the last message of its history; 0 when there is none."""
    created_at: WireTime | None = None
    """When it was opened or spawned."""
    updated_at: WireTime | None = None
    """When its record last changed."""
    meta: dict[str, JsonValue] | None = None
    """What its opener wanted to keep with it."""


class RunRecord(Record):
    """One turn of a session, from its start until it settles."""

    run_id: str
    """Its id."""
    session_id: str = ""
    """Its session."""
    ordinal: int = 1
    """Its place among its session's runs, from 1."""
    trigger: Trigger = Trigger.SPAWN
    """What started it."""
    causes: list[str] = Field(default_factory=list[str])
    """The inbox items that it was started for; an item is the cause of one run at most."""
    parent_run_id: str | None = None
    """The run that its events are copied to."""
    parent_session_id: str | None = None
    """The parent of its session."""
    root_session_id: str | None = None
    """The top of its tree."""
    task_id: str | None = None
    """The caller's own id of the task."""
    description: str | None = None
    """The task in a few words; its first line, cut at 80 characters, where none was given."""
    task: str | None = None
    """What it was asked to do."""
    agent: str = ""
    """The agent's name."""
    model: str | None = None
    """The model it uses, where one was named."""
    variant: str | None = None
    """The model's variant, where one was named."""
    background: bool = True
    """False: its caller waits for the result."""
    notify: bool = True
    """False: its report is suppressed as silent."""
    status: RunStatus = RunStatus.QUEUED
    """Where it is."""
    outcome: Outcome | None = None
    """How it ended."""
    attempt: int = 1
    """Counts holders, from 1; what names an older one is refused."""
    holder: str | None = None
    """The runner, or the self host's session, that carries it out."""
    answer: str | None = None
    """What it produced."""
    error: str | None = None
    """Why it failed."""
    step_budget: int | None = None
    """How many steps it may take; null is no limit."""
    steps: int = 0
    """How many it has taken."""
    timeout_ms: int | None = None
    """How long it may run, not counting the time in which a question waits; null is no limit."""
    history_from: int | None = None
    """The index of its first message."""
    history_to: int | None = None
    """The index of its last message."""
    period_id: str | None = None
    """The period that it belongs to."""
    queued_at: WireTime | None = None
    """When it was dispatched, or started by a self host."""
    started_at: WireTime | None = None
    """When its first holder began."""
    settled_at: WireTime | None = None
    """When it ended."""


class QuestionRecord(Record):
    """What a child run asks its parent session."""

    request_id: str
    """Its id."""
    status: QuestionStatus = QuestionStatus.WAITING
    """Open, or the end it came to."""
    created_at: WireTime | None = None
    """When JetStream stored the ask."""
    updated_at: WireTime | None = None
    """When it last changed."""
    expires_at: WireTime | None = None
    """An answer stored at or after this time is late."""
    parent_run_id: str | None = None
    """The parent's run that its events are copied to."""
    parent_session_id: str | None = None
    """Who is asked."""
    child_run_id: str | None = None
    """The run that asks, and waits."""
    child_session_id: str | None = None
    """That run's session."""
    root_session_id: str | None = None
    """The top of the tree."""
    task_id: str | None = None
    """The caller's own id of the task."""
    agent: str = ""
    """The name of the agent that asks."""
    description: str | None = None
    """The asking run's task in a few words."""
    question: str = ""
    """What is asked."""
    why_blocked: str = ""
    """Why the child can't decide it."""
    options: list[str] = Field(default_factory=list[str])
    """The answers offered; empty when any text will do."""
    recommended_option: str | None = None
    """The one that the child would take."""
    can_continue_without_answer: bool = False
    """True: without an answer the child goes on with the fallback."""
    fallback: str | None = None
    """What the child does without an answer."""
    timeout_ms: int | None = None
    """How long it waits."""
    answer: str | None = None
    """What the parent decided: a text to read, never something to execute."""
    rationale: str | None = None
    """Why."""
    selected_option: str | None = None
    """The option chosen."""
    action: Action | None = None
    """Whether the answer decides or declines."""
    answered_at: WireTime | None = None
    """When JetStream stored the answer."""
    answered_by: AnsweredBy | None = None
    """Who answered."""
    reason: str | None = None
    """Why it was cancelled (an EndReason, or the text given) or ended as error."""
    meta: dict[str, JsonValue] | None = None
    """What the asker wanted to keep with it."""


class LateAnswer(Record):
    """An answer that came after the end of its question; the child never gets it."""

    answer: str | None = None
    """The text."""
    rationale: str | None = None
    """Why."""
    selected_option: str | None = None
    """The option chosen."""
    answered_by: AnsweredBy | None = None
    """Who sent it."""
    stored_at: WireTime | None = None
    """When JetStream stored it."""


class LateQuestionRecord(QuestionRecord):
    """The data of a late event: the question as it ended, and the answer that came too late."""

    late: LateAnswer | None = None
    """What came too late."""


class ReportRecord(Record):
    """What a parent session is told about a closed period of a child."""

    period_id: str
    """Its id, and the item's."""
    session_id: str = ""
    """The child."""
    parent_session_id: str | None = None
    """Who is told."""
    parent_run_id: str | None = None
    """The parent's run that its event is copied to."""
    root_session_id: str | None = None
    """The top of the tree."""
    agent: str = ""
    """The child's agent."""
    description: str | None = None
    """The last run's task in a few words."""
    task_id: str | None = None
    """The caller's own id of the task."""
    result: ReportResult | None = None
    """The state that the parent is shown; null while held."""
    outcome: Outcome | None = None
    """The last run's outcome."""
    answer: str | None = None
    """The last run's answer."""
    error: str | None = None
    """The last run's error."""
    runs: list[str] = Field(default_factory=list[str])
    """The runs of the period."""
    work: list[WorkItem] = Field(default_factory=list[WorkItem])
    """The work of the period, and how it ended."""
    pending: list[PendingItem] = Field(default_factory=list[PendingItem])
    """What was not waited for; while held, what is still waited for."""
    cancelled: list[str] = Field(default_factory=list[str])
    """The session ids of descendants that were cancelled with it."""
    status: ReportStatus = ReportStatus.HELD
    """Held, delivered or suppressed."""
    reason: str | None = None
    """Of held: what it waits for (a HeldReason). Of suppressed: why (a SuppressedReason)."""
    for_run: str | None = None
    """The caller's run that waits for it in the foreground."""
    held_ms: int = 0
    """How long it was held."""
    created_at: WireTime | None = None
    """When it was first held or decided."""
    delivered_at: WireTime | None = None
    """When it was delivered."""


class WorkRecord(Record):
    """Background work that has finished."""

    work_id: str
    """Its id, and the item's."""
    session_id: str = ""
    """The session whose run left it running."""
    run_id: str | None = None
    """That run."""
    kind: WorkKind = WorkKind.OTHER
    """What it is."""
    label: str | None = None
    """What to call it."""
    wakes: bool = False
    """True: its end wakes the session."""
    outcome: WorkOutcome | None = None
    """How it ended."""
    summary: str | None = None
    """What came of it."""
    finished_at: WireTime | None = None
    """When it ended."""


class Admitted(Record):
    """The result of session.spawn and session.continue: a receipt, never the child's result."""

    session_id: str
    """The child."""
    run_id: str
    """Its run that was started or dispatched."""
    period_id: str | None = None
    """The period that the run belongs to; its report has this id."""
    status: RunStatus = RunStatus.QUEUED
    """Queued for a runner, or running at the caller."""


class HistoryMessage(Record):
    """One message of a session's history; what else the host put into it is kept."""

    model_config = ConfigDict(extra="allow")

    index: int
    """Its place in the session's history, from 1."""
    run_id: str
    """The run that it belongs to."""
    role: str
    """Who speaks."""
    content: JsonValue
    """What is said."""


class Heartbeat(Record):
    """The body of a heartbeat; it may also be empty."""

    run_id: str | None = None
    """The run that the sender carries out."""
    attempt: int | None = None
    """Its attempt."""


class DeadLetter(Record):
    """What is written to DEAD about a message that could not be handled."""

    subject: str
    """Where it was published."""
    code: str
    """The error code."""
    reason: str
    """Why it could not be handled."""
    attempts: int = 1
    """How often it was tried."""
    time: WireTime | None = None
    """When it was given up."""
    headers: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Its headers."""
    body: str = ""
    """Its body in base64."""
