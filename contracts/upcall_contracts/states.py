"""What stands beside `data` in an entry of the log: the state that the next decision on an aggregate needs.

Internal to the services. A state is small: texts that an aggregate's other entries hold (a run's task and
answer, an ended question) are not in it.
"""

from pydantic import Field

from .base import Record
from .records import (
    Host,
    ItemKind,
    Outcome,
    PendingItem,
    QuestionStatus,
    RunRecord,
    SessionRecord,
    SessionStatus,
    WorkItem,
    WorkKind,
)

# Questions of one run


class QuestionBrief(Record):
    """One question of a run, without its texts."""

    request_id: str
    status: QuestionStatus = QuestionStatus.WAITING
    command_key: str = ""
    """The ask command's key."""
    fingerprint: str = ""
    """The ask command's fingerprint."""
    created_at: int
    """Epoch ms."""
    expires_at: int
    """Epoch ms."""
    ended_at: int | None = None
    """Epoch ms; null while it waits."""
    end_key: str | None = None
    """The key of the answer or cancel command that ended it; null where no command did."""
    end_fingerprint: str | None = None
    """That command's fingerprint."""
    late_keys: list[str] = Field(default_factory=list[str])
    """The keys of the late answers that were kept."""


class QuestionsState(Record):
    """All questions of a run, oldest first; at most the last one waits."""

    run_id: str
    session_id: str
    parent_session_id: str
    parent_run_id: str | None = None
    questions: list[QuestionBrief] = Field(default_factory=list[QuestionBrief])

    def waiting(self) -> QuestionBrief | None:
        """The open question, if there is one."""
        last = self.questions[-1] if self.questions else None
        return last if last is not None and last.status is QuestionStatus.WAITING else None

    def paused_ms(self, now: int, since: int = 0) -> int:
        """For how many ms, from `since` until `now`, a question waited: the run's own time stood still."""
        total = 0
        for q in self.questions:
            end = min(now, q.ended_at if q.ended_at is not None else now)
            total += max(0, end - max(since, q.created_at))
        return total


# Sessions


class ChildLink(Record):
    """A child that was spawned or continued in a period, and whose report is not decided yet."""

    session_id: str
    run_id: str
    """The child's run that was asked for."""
    period_id: str | None = None
    """The child's period whose report lets go; null until the child has decided."""
    label: str | None = None
    """The run's description."""
    command_key: str = ""
    """The command that asked for it."""


class WorkLink(Record):
    """What a run left running."""

    work_id: str
    run_id: str
    period_id: str
    kind: WorkKind
    label: str | None = None
    wakes: bool = False
    started_at: int = 0
    """Epoch ms."""


class InboxEntry(Record):
    """A report or finished work in the session's inbox that is not handled."""

    item_id: str
    kind: ItemKind
    wakes: bool = False
    for_run: str | None = None
    from_session_id: str | None = None
    text: str | None = None
    """Only of waking items of runner-hosted sessions: what a wake run is told."""
    event_id: str = ""
    """The entry that put it there."""
    at: int = 0
    """Epoch ms."""


class RunBrief(Record):
    """A settled run of a period."""

    run_id: str
    outcome: Outcome


class Period(Record):
    """The open busy period of a session: one or more runs, then one report."""

    period_id: str
    ordinal: int
    opened_at: int
    """Epoch ms."""
    held_since: int | None = None
    """Epoch ms; when its first run settled and it stayed open."""
    foreground: bool = False
    """The caller of its run waits for it: it closes at that run's settling."""
    for_run: str | None = None
    """The caller's run that waits."""
    runs: list[str] = Field(default_factory=list[str])
    """Its runs, in order; the last is the one that is reported."""
    settled: list[RunBrief] = Field(default_factory=list[RunBrief])
    """Those that have settled."""
    work: list[WorkItem] = Field(default_factory=list[WorkItem])
    """Work and children of it that have ended."""


class ClosedPeriod(Record):
    """A period that this entry closed: what the reporter decides the report from."""

    period_id: str
    run_id: str
    """Its last run; that run's settled entry holds answer and error."""
    runs: list[str] = Field(default_factory=list[str])
    outcome: Outcome
    notify: bool = True
    foreground: bool = False
    for_run: str | None = None
    wakes: bool = True
    """False where it was closed by a cancel or a close: that wakes nobody."""
    work: list[WorkItem] = Field(default_factory=list[WorkItem])
    pending: list[PendingItem] = Field(default_factory=list[PendingItem])
    """What was still running when it closed."""
    cancelled: list[str] = Field(default_factory=list[str])
    """Session ids of descendants that were cancelled with it."""
    opened_at: int
    held_since: int | None = None
    closed_at: int


class HeldPeriod(Record):
    """A period that this entry left open after a settled run: its report is held."""

    period_id: str
    run_id: str
    """The last run so far."""
    runs: list[str] = Field(default_factory=list[str])
    outcome: Outcome
    reason: str
    """What it waits for, in a sentence of a few words (a HeldReason value first)."""
    pending: list[PendingItem] = Field(default_factory=list[PendingItem])
    held_since: int


class DoneCommand(Record):
    """A command that was carried out here, so that it is recognised when it is sent again."""

    key: str
    fingerprint: str
    result: dict[str, int | str | None] = Field(default_factory=dict[str, int | str | None])
    """Ids or numbers that its result is made of."""


class SessionState(Record):
    """One session: all that a decision about it needs."""

    session_id: str
    parent_session_id: str | None = None
    root_session_id: str
    ancestors: list[str] = Field(default_factory=list[str])
    """From the root to the parent."""
    depth: int = 0
    agent: str
    host: Host = Host.SELF
    holder: str | None = None
    """Who hosts it now: the runner that claimed its run, or for a self session the session that spawned or
    continued it, or itself. Null for a runner-hosted session that nobody holds."""
    title: str | None = None
    model: str | None = None
    variant: str | None = None
    notify: bool = True
    live: bool = True
    lease_ms: int = 0
    meta: dict[str, object] | None = None
    created_at: int
    updated_at: int
    closed_at: int | None = None
    fingerprint: str = ""
    """Of the command that created it."""
    created_by: str = ""
    """Key of the command that created it."""

    runs: int = 0
    """How many runs it has had."""
    periods: int = 0
    """How many periods it has had."""
    history_seq: int = 0
    """Index of the last message of its history."""
    run: RunRecord | None = None
    """The active run. Its task is left out in the log (`task` null) where the entry's data has it not."""
    last_parent_run_id: str | None = None
    letting_go: str | None = None
    """The run that was settled for a cancelled host which has not let go yet: the session stays busy."""
    cancel_deadline: int | None = None
    """Epoch ms; when the active run, being cancelled, is settled by the service."""
    cancel_reason: str | None = None
    cancelled_children: list[str] = Field(default_factory=list[str])
    """Session ids of descendants that a running cancel or close took along."""
    queue_deadline: int | None = None
    """Epoch ms; when a queued run that nobody claimed fails."""
    gone_at: int | None = None

    period: Period | None = None
    work: list[WorkLink] = Field(default_factory=list[WorkLink])
    """What runs of the open period left running."""
    early_work: dict[str, dict[str, object]] = Field(default_factory=dict[str, dict[str, object]])
    """work.finish that came before the settle that names the work, by work_id."""
    children: list[ChildLink] = Field(default_factory=list[ChildLink])
    """Children of the open period whose report is not decided."""
    inbox: list[InboxEntry] = Field(default_factory=list[InboxEntry])
    """Reports and finished work that are not handled."""

    wake_blocked: bool = False
    """It was cancelled: it wakes again only when it has been continued."""
    wake_failures: int = 0
    wake_not_before: int | None = None
    """Epoch ms; after a wake run that failed the next waits."""

    done: list[DoneCommand] = Field(default_factory=list[DoneCommand])
    """The last commands carried out here, newest last."""

    closed_period: ClosedPeriod | None = None
    """Set only by the entry that closes a period: the reporter decides from it."""
    held_period: HeldPeriod | None = None
    """Set only by an entry after which a report is held."""

    @property
    def status(self) -> SessionStatus:
        """Idle, busy or closed."""
        if self.closed_at is not None:
            return SessionStatus.CLOSED
        return SessionStatus.BUSY if self.run is not None or self.letting_go else SessionStatus.IDLE

    @property
    def reachable(self) -> bool:
        """Whether a question to this session can be heard: open, and its host not gone. A runner-hosted
        session can always be run again."""
        return self.closed_at is None and (self.host is Host.RUNNER or self.live)

    def pending(self) -> list[PendingItem]:
        """What the open period waits for besides runs and items."""
        return [PendingItem(id=w.work_id, kind=w.kind, label=w.label) for w in self.work] + [
            PendingItem(id=c.session_id, kind=WorkKind.SESSION, label=c.label) for c in self.children
        ]

    def record(self) -> SessionRecord:
        """The public record."""
        return SessionRecord(
            session_id=self.session_id,
            parent_session_id=self.parent_session_id,
            root_session_id=self.root_session_id,
            depth=self.depth,
            agent=self.agent,
            host=self.host,
            title=self.title,
            model=self.model,
            variant=self.variant,
            notify=self.notify,
            status=self.status,
            live=self.live,
            lease_ms=self.lease_ms,
            run_id=self.run.run_id if self.run else None,
            runs=self.runs,
            period_id=self.period.period_id if self.period else None,
            pending=self.pending(),
            history_seq=self.history_seq,
            created_at=self.created_at,
            updated_at=self.updated_at,
            meta=self.meta,  # pyright: ignore[reportArgumentType]
        )


# Reports


class ReportState(Record):
    """The report of one period."""

    period_id: str
    status: str
    """held, delivered or suppressed."""
    reason: str | None = None
    pending: list[PendingItem] = Field(default_factory=list[PendingItem])
    created_at: int
