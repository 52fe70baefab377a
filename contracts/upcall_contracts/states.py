"""What stands beside `data` in an entry of the log: the state that the next decision on an aggregate needs.

Internal to the services. A state is small: texts that an aggregate's other entries hold (a run's task and
answer, an ended question) are not in it.
"""

from pydantic import Field, JsonValue

from .base import Record
from .records import (
    Host,
    ItemKind,
    Outcome,
    PendingItem,
    QuestionStatus,
    ReportStatus,
    RunRecord,
    SessionRecord,
    SessionStatus,
    WorkItem,
    WorkKind,
    WorkOutcome,
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
    parent_host: Host | None = None
    """Who carries out the parent's runs: a question wakes a session that runners host."""
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
    """A child that was spawned or continued in the open period, and whose report is not decided yet."""

    session_id: str
    run_id: str
    """The child's run that was asked for: the report whose runs name it lets go."""
    label: str | None = None
    """The run's description."""


class EarlyWork(Record):
    """A work.finish that came before the settle that names the work."""

    outcome: WorkOutcome
    summary: str | None = None
    finished_at: int
    """Epoch ms."""


class WorkLink(Record):
    """What a run left running."""

    work_id: str
    run_id: str
    period_id: str
    """Its run's period; work of a period that has closed runs on, and nothing waits for it."""
    kind: WorkKind
    label: str | None = None
    wakes: bool = False
    holder: str | None = None
    """The runner that left it, and may say that it has finished."""
    parent_run_id: str | None = None
    """Of its run: where the copy of its end goes."""
    task_id: str | None = None
    """Of its run."""
    early: EarlyWork | None = None
    """It had finished before the settle: its end is still to be told."""
    lost: bool = False
    """Its host is gone: its end as lost is still to be told."""


class InboxEntry(Record):
    """An item in the session's inbox that is not handled, and that something here depends on.

    Only of reports and finished work, and only of those that wake or that a run waits for.
    """

    item_id: str
    kind: ItemKind
    wakes: bool = False
    for_run: str | None = None
    """The run that waits for it as the result of its call."""
    may_wake: bool = True
    """Whether it will wake once it is an ordinary item; false where it comes of a cancel or a close."""
    rewrite: bool = False
    """Its for_run was taken away here, and the item in INBOX has to be written anew."""


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
    held_reason: str | None = None
    """The HeldReason that was told last."""
    held_pending: list[str] = Field(default_factory=list[str])
    """Ids of what was told last to be pending."""
    foreground: bool = False
    """The caller of its run waits for it: it closes at that run's settling."""
    for_run: str | None = None
    """The caller's run that waits."""
    runs: list[str] = Field(default_factory=list[str])
    """Its runs, in order."""
    settled: list[RunBrief] = Field(default_factory=list[RunBrief])
    """Those that have settled; the last is the one that is reported."""
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
    """The last settled run so far."""
    runs: list[str] = Field(default_factory=list[str])
    """The settled runs so far."""
    outcome: Outcome
    reason: str
    """What it waits for: a HeldReason."""
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
    """Who hosts it now: the runner that claimed its run and as long as work that it left runs here, or for a
    self session who opened, spawned or revived it. Null for a runner-hosted session that nobody holds."""
    former_holders: list[str] = Field(default_factory=list[str])
    """Runners that lost a run here, newest last: what they still say is stale, and not a stranger's."""
    title: str | None = None
    model: str | None = None
    variant: str | None = None
    notify: bool = True
    live: bool = True
    """False once the host of a self session is gone; a runner-hosted session counts as live."""
    lease_ms: int = 0
    """0: never gone."""
    meta: dict[str, JsonValue] | None = None
    created_at: int
    updated_at: int
    closing: bool = False
    """A close is under way: it takes nothing new, and will be closed when its descendants are."""
    closed_at: int | None = None

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
    """Epoch ms; the active run is being cancelled, and then settled by the service."""
    cancel_reason: str | None = None
    cancelled_children: list[str] = Field(default_factory=list[str])
    """Session ids of descendants that a running cancel or close took along."""
    cascade: bool = False
    """The running cancel or close takes descendants along, those included that are being spawned just now."""
    queue_deadline: int | None = None
    """Epoch ms; when a queued run that nobody claimed fails."""
    limit_from: int | None = None
    """Epoch ms from which the active run's time limit counts: when its first holder could begin."""

    period: Period | None = None
    work: list[WorkLink] = Field(default_factory=list[WorkLink])
    """What runs left running, those of closed periods included."""
    early_work: dict[str, EarlyWork] = Field(default_factory=dict[str, EarlyWork])
    """By work_id: ends that came before the settle of the active run."""
    has_children: bool = False
    """It has spawned: a child's question may stand in its inbox."""
    children: list[ChildLink] = Field(default_factory=list[ChildLink])
    """Children of the open period whose report is not decided."""
    inbox: list[InboxEntry] = Field(default_factory=list[InboxEntry])
    """Reports and finished work that are not handled, as far as something depends on them."""
    taken: list[str] = Field(default_factory=list[str])
    """Items of any kind that were handled, or became a run's cause, and that INBOX may still show."""

    wake_blocked: bool = False
    """It was cancelled: it wakes again only when it has been continued."""
    wake_failures: int = 0
    """How many wake runs failed in a row."""
    wake_not_before: int | None = None
    """Epoch ms; after a wake run that failed the next waits."""

    done: list[DoneCommand] = Field(default_factory=list[DoneCommand])
    """The last commands carried out here, newest last."""
    unwaking: list[str] = Field(default_factory=list[str])
    """The last periods that a cancel or a close closed: their reports wake nobody."""

    closed_period: ClosedPeriod | None = None
    """Set only by the entry that closes a period: the reporter decides from it."""
    held_period: HeldPeriod | None = None
    """Set only by an entry after which a report is held for another reason than before."""

    def carried(self) -> "SessionState":
        """The state for the next decision: without what only its own entry says."""
        if self.closed_period is None and self.held_period is None:
            return self
        return self.model_copy(update={"closed_period": None, "held_period": None})

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

    @property
    def cancelling(self) -> bool:
        """Whether its active run was asked to end."""
        return self.cancel_deadline is not None

    def pending(self) -> list[PendingItem]:
        """What the open period waits for besides runs and items."""
        if self.period is None:
            return []
        work = [w for w in self.work if w.period_id == self.period.period_id]
        return [PendingItem(id=w.work_id, kind=w.kind, label=w.label) for w in work] + [
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
            meta=self.meta,
        )


# Reports


class ReportState(Record):
    """The report of one period."""

    period_id: str
    session_id: str = ""
    ancestors: list[str] = Field(default_factory=list[str])
    """Of the session, from the root to the parent: who may read the report."""
    status: ReportStatus
    """Held, or decided for good."""
    reason: str | None = None
    pending: list[PendingItem] = Field(default_factory=list[PendingItem])
    created_at: int
    """Epoch ms."""
    entry_seq: int = 0
    """The session's entry that it was decided from: an older one that comes later says nothing new."""
