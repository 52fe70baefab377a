"""What stands in an inbox: questions and reports of children, and ends of background work."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from upcall_contracts.events import Event, EventType
from upcall_contracts.records import (
    Action,
    ItemKind,
    Outcome,
    QuestionRecord,
    ReportRecord,
    ReportResult,
    WorkRecord,
)
from upcall_contracts.texts import question_item_text

from . import tracing

if TYPE_CHECKING:
    from .children import Child
    from .parent import Parent


@dataclass(frozen=True, slots=True)
class Question:
    """A child waits for a decision. Answering it ends it; nothing else needs to be handled."""

    record: QuestionRecord
    """All there is to know."""
    parent: "Parent"
    """Who is asked."""
    origin: tracing.Origin | None = field(default=None, compare=False, repr=False)
    """Where it came from, for traces."""

    @property
    def item_id(self) -> str:
        """Its id, in the inbox and everywhere."""
        return self.record.request_id

    @property
    def request_id(self) -> str:
        """Its id."""
        return self.record.request_id

    @property
    def session_id(self) -> str:
        """The child that asks."""
        return self.record.child_session_id or ""

    @property
    def child(self) -> "Child":
        """A handle on the child: after answering, `await question.child.wait()`."""
        return self.parent.child(self.record)

    @property
    def question(self) -> str:
        """What is asked."""
        return self.record.question

    @property
    def options(self) -> list[str]:
        """The answers offered; none means that any text will do."""
        return self.record.options

    @property
    def recommended_option(self) -> str | None:
        """The one that the child would take."""
        return self.record.recommended_option

    @property
    def text(self) -> str:
        """What a model reads."""
        return question_item_text(self.record)

    async def answer(
        self,
        text: str | None = None,
        *,
        option: str | None = None,
        rationale: str | None = None,
        command_id: str | None = None,
    ) -> QuestionRecord:
        """Decide it. An option alone is an answer too."""
        with tracing.because_of(self.origin):
            return await self.parent.answer(
                self.request_id, text, option=option, rationale=rationale, command_id=command_id
            )

    async def decline(self, rationale: str | None = None, *, command_id: str | None = None) -> QuestionRecord:
        """Say that you won't decide it; the child learns that."""
        with tracing.because_of(self.origin):
            return await self.parent.answer(
                self.request_id, None, rationale=rationale, action=Action.DECLINE, command_id=command_id
            )

    def received_from(self, origin: tracing.Origin | None) -> tracing.Origin | None:
        """Note in the trace that it was read; the origin of what is done about it."""
        ids = {"request_id": self.request_id, "run_id": self.record.child_run_id}
        return tracing.received("inbox.question", ids, origin)


@dataclass(frozen=True, slots=True)
class Report:
    """A child has come to rest. It stays in the inbox until it is handled."""

    record: ReportRecord
    """All there is to know."""
    text: str
    """What a model reads."""
    parent: "Parent"
    """Who is told."""
    origin: tracing.Origin | None = field(default=None, compare=False, repr=False)
    """Where it came from, for traces."""

    @property
    def item_id(self) -> str:
        """Its id in the inbox: the period's."""
        return self.record.period_id

    @property
    def session_id(self) -> str:
        """The child."""
        return self.record.session_id

    @property
    def child(self) -> "Child":
        """A handle on the child, to continue it: `await report.child.continue_("now the tests")`."""
        return self.parent.child(self.record)

    @property
    def ok(self) -> bool:
        """Whether the child completed."""
        return self.record.result is ReportResult.COMPLETED

    @property
    def outcome(self) -> Outcome | None:
        """How its last run ended."""
        return self.record.outcome

    @property
    def answer(self) -> str:
        """What its last run produced."""
        return self.record.answer or ""

    async def handle(self) -> None:
        """Say that it has been dealt with."""
        with tracing.because_of(self.origin):
            await self.parent.handle(self.item_id)

    def received_from(self, origin: tracing.Origin | None) -> tracing.Origin | None:
        """Note in the trace that it was read; the origin of what is done about it."""
        ids = {"period_id": self.item_id, "session_id": self.session_id}
        return tracing.received("inbox.report", ids, origin)


@dataclass(frozen=True, slots=True)
class Work:
    """The session's own background work has ended. It stays in the inbox until it is handled."""

    record: WorkRecord
    """All there is to know."""
    text: str
    """What a model reads."""
    parent: "Parent"
    """Whose work it was."""
    origin: tracing.Origin | None = field(default=None, compare=False, repr=False)
    """Where it came from, for traces."""

    @property
    def item_id(self) -> str:
        """Its id, in the inbox and everywhere."""
        return self.record.work_id

    async def handle(self) -> None:
        """Say that it has been dealt with."""
        with tracing.because_of(self.origin):
            await self.parent.handle(self.item_id)

    def received_from(self, origin: tracing.Origin | None) -> tracing.Origin | None:
        """Note in the trace that it was read; the origin of what is done about it."""
        ids = {"work_id": self.item_id, "run_id": self.record.run_id}
        return tracing.received("inbox.work", ids, origin)


Item = Question | Report | Work


def read_item(event: Event, parent: "Parent") -> Item | None:
    """The item that an inbox event is; None if it is over, or of a kind that this reader doesn't know."""
    if event.item is None:
        return None
    match event.item.kind:
        case ItemKind.QUESTION:
            if event.type is not EventType.QUESTION_REQUESTED:
                return None  # an end replaces its question
            return Question(QuestionRecord.model_validate(event.data), parent)
        case ItemKind.REPORT:
            return Report(ReportRecord.model_validate(event.data), event.item.text, parent)
        case ItemKind.WORK:
            return Work(WorkRecord.model_validate(event.data), event.item.text, parent)
