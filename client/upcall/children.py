"""What a parent holds of its children: a handle, and results that count failures."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from upcall_contracts.records import (
    Admitted,
    HistoryMessage,
    Outcome,
    QuestionRecord,
    QuestionStatus,
    ReportRecord,
    ReportResult,
    ReportStatus,
    RunRecord,
    RunStatus,
    SessionRecord,
)
from upcall_contracts.texts import report_item_text
from upcall_contracts.tools import ToolResult, spawn_agent_result

from .errors import ChildrenFailedError, NotFoundError
from .items import Question

if TYPE_CHECKING:
    from .parent import Parent
    from .run import Run

_WAIT_MS: Final = 30_000
_PAUSES: Final = (0.02, 0.05, 0.1, 0.25, 0.5)  # then every second

Answerer = Callable[[Question], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Result:
    """A child has come to rest: what came of it."""

    record: ReportRecord
    """Its report."""

    @property
    def ok(self) -> bool:
        """Whether its last run completed."""
        return self.record.result is ReportResult.COMPLETED

    @property
    def outcome(self) -> Outcome | None:
        """How its last run ended."""
        return self.record.outcome

    @property
    def answer(self) -> str:
        """What its last run produced."""
        return self.record.answer or ""

    @property
    def error(self) -> str | None:
        """Why its last run failed."""
        return self.record.error

    @property
    def session_id(self) -> str:
        """The child."""
        return self.record.session_id

    @property
    def text(self) -> str:
        """What a model reads."""
        return report_item_text(self.record)


@dataclass(frozen=True, slots=True)
class Results:
    """What came of several children, in the order in which they were named."""

    results: Sequence[Result]

    @property
    def ok(self) -> bool:
        """Whether every one completed."""
        return all(result.ok for result in self.results)

    @property
    def succeeded(self) -> int:
        """How many completed."""
        return sum(result.ok for result in self.results)

    @property
    def failed(self) -> int:
        """How many did not."""
        return len(self.results) - self.succeeded

    @property
    def text(self) -> str:
        """What a model reads: the count first, so that a failure is not overlooked."""
        head = f"{self.succeeded} of {len(self.results)} subagents completed, {self.failed} did not."
        return "\n\n".join([head, *(result.text for result in self.results)])

    def check(self) -> "Results":
        """Itself, or ChildrenFailedError if any did not complete."""
        if not self.ok:
            raise ChildrenFailedError(self.text)
        return self

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Result:
        return self.results[index]


class Child:
    """A child session, with the run that was started last through this handle."""

    def __init__(self, parent: "Parent", admitted: Admitted) -> None:
        self.parent = parent
        self.admitted = admitted
        self.session_id = admitted.session_id
        self.run_id = admitted.run_id
        self.period_id = admitted.period_id or ""

    def __repr__(self) -> str:
        return f"Child(session_id={self.session_id!r}, run_id={self.run_id!r}, period_id={self.period_id!r})"

    async def wait(self, *, within: float | None = None) -> Result | Question:
        """The result, once the child has come to rest; or its question, as soon as it asks one.

        After answering, wait again. The result is taken by this: it does not stand in the inbox any more.
        `within` is in seconds, and ends in TimeoutError. Giving up a wait loses nothing: the result comes
        through the inbox, or through a later wait.
        """
        async with _waiting([self], within):
            seen = await self._until_seen()
            return seen if isinstance(seen, Question) else (await _take([self], [seen]))[0]

    async def result(self, answer: Answerer | None = None, *, within: float | None = None) -> Result:
        """The result, past any questions: each is given to `answer`, or left to whoever reads the inbox.

        See wait about `within`.
        """
        async with _waiting([self], within):
            return (await _take([self], [await self.until_decided(answer)]))[0]

    async def until_decided(self, answer: Answerer | None = None) -> ReportRecord:
        """The report, past any questions, as `result` waits for it. It is not taken: the inbox has it too."""
        while True:
            seen = await self._until_seen()
            if isinstance(seen, ReportRecord):
                return seen
            if answer:
                await answer(seen)
            await self._until_ended(seen.request_id)

    async def _until_seen(self) -> ReportRecord | Question:
        run_id = self.run_id
        for pause in _pauses():
            state, question = await self._wait_for_run(run_id)
            if question:
                return Question(question, self.parent)
            if report := await self._decided_report():
                return report
            if state != RunStatus.SETTLED:
                continue
            # The period is still open: its work runs, or a further run of it does.
            run_id = (await self.session()).run_id or run_id
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def continue_(self, task: str, **options: Any) -> "Child":
        """Give it a further task; the options are those of Parent.continue_."""
        return await self.parent.continue_(self.session_id, task, **options)

    async def cancel(self, reason: str | None = None, *, cascade: bool = True) -> list[str]:
        """Cancel what it is doing, and with cascade what its descendants are doing; the runs' ids."""
        return await self.parent.cancel(self.session_id, reason, cascade=cascade)

    async def close(self, *, cascade: bool = True) -> SessionRecord:
        """Close it for good."""
        return await self.parent.close(self.session_id, cascade=cascade)

    async def background(self) -> RunRecord:
        """Turn its foreground run into a background one: its result will be an item of the inbox."""
        body = {"run_id": self.run_id}
        return RunRecord.model_validate((await self.parent.command("session.background", body))["run"])

    async def release(self, reason: str | None = None) -> ReportRecord:
        """Have its held report delivered now; what still runs is named in it."""
        body = {"session_id": self.session_id, "reason": reason}
        return ReportRecord.model_validate((await self.parent.command("report.release", body))["report"])

    async def session(self) -> SessionRecord:
        """Its session, as it stands now."""
        result = await self.parent.query("session.get", {"session_id": self.session_id})
        return SessionRecord.model_validate(result["session"])

    async def run(self) -> RunRecord:
        """Its run, as it stands now."""
        return RunRecord.model_validate((await self.parent.query("run.get", {"run_id": self.run_id}))["run"])

    async def report(self) -> ReportRecord | None:
        """The report of its period as it stands now; None before there is any."""
        try:
            result = await self.parent.query("report.get", {"period_id": self.period_id})
        except NotFoundError:
            return None
        return ReportRecord.model_validate(result["report"])

    async def history(self) -> list[HistoryMessage]:
        """All its messages."""
        return await self.parent.history(self.session_id)

    async def carry_out(self) -> "Run":
        """The run of a `self` child, to be carried out here: `async with await child.carry_out() as run`."""
        from .run import Run

        return await Run.of_self(self.parent.wire, self.session_id, self.run_id)

    async def tool_result(self) -> ToolResult:
        """What `spawn_agent` gives back in the foreground: the result, or the question."""
        seen = await self.wait()
        return spawn_agent_result(self.session_id, seen.record)

    async def _wait_for_run(self, run_id: str) -> tuple[str, QuestionRecord | None]:
        body = {"run_id": run_id, "timeout_ms": _WAIT_MS}
        seen = await self.parent.query("run.wait", body, waits=_WAIT_MS / 1000)
        self.period_id = self.period_id or RunRecord.model_validate(seen["run"]).period_id or ""
        question = seen["question"] if seen["state"] == "question" else None
        return seen["state"], QuestionRecord.model_validate(question) if question else None

    async def _decided_report(self) -> ReportRecord | None:
        report = await self.report()
        return None if report is None or report.status is ReportStatus.HELD else report

    async def _until_ended(self, request_id: str) -> None:
        body = {"request_id": request_id, "timeout_ms": _WAIT_MS}
        while True:
            result = await self.parent.query("question.wait", body, waits=_WAIT_MS / 1000)
            if QuestionRecord.model_validate(result["question"]).status is not QuestionStatus.WAITING:
                return


async def wait_all(
    children: Sequence[Child], answer: Answerer | None = None, *, within: float | None = None
) -> Results:
    """The results of all; see Child.result. If one wait fails, the others are given up, and none is taken."""
    async with _waiting(children, within):
        tasks = [asyncio.create_task(child.until_decided(answer)) for child in children]
        try:
            reports = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return Results(await _take(children, reports))


@asynccontextmanager
async def _waiting(children: Sequence[Child], within: float | None) -> AsyncIterator[None]:
    """While in here, their reports don't come through the inbox: TimeoutError after so many seconds."""
    with ExitStack() as waits:
        for child in children:
            waits.enter_context(child.parent.waits.of(child.run_id))
        async with asyncio.timeout(within):
            yield


async def _take(children: Sequence[Child], reports: Sequence[ReportRecord]) -> list[Result]:
    """The children's reports as results. The last step of a wait: before it, nothing is taken."""
    theirs: dict[Parent, list[ReportRecord]] = {}
    for child, report in zip(children, reports, strict=True):
        theirs.setdefault(child.parent, []).append(report)
    try:
        for parent, found in theirs.items():
            await parent.take(found)
    except BaseException:  # cancelled, mostly
        for parent, found in theirs.items():
            parent.waits.give_up(found)
        raise
    for parent, found in theirs.items():
        parent.waits.returns(found)
    return [Result(report) for report in reports]


def _pauses() -> Iterator[float]:
    yield from _PAUSES
    while True:
        yield 1.0
