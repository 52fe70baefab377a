"""A run: one turn of a session, from its start until it settles."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self
from uuid import uuid4

from upcall_contracts import tools
from upcall_contracts.records import (
    HistoryMessage,
    Outcome,
    QuestionRecord,
    RunRecord,
    SessionRecord,
    Trigger,
    WorkOutcome,
    WorkRecord,
)
from upcall_contracts.tools import ToolResult

from .asking import Answer, Asker, answer_of
from .errors import InvalidError, RefusedError, RunNotActiveError, StaleAttemptError, StepBudgetError
from .heartbeat import beating
from .parent import Parent
from .wire import Wire, log

_SETTLE_TIMEOUT: Final = 600.0
_SETTLE_WHEN_CANCELLED: Final = 10.0
WorkKindName = Literal["shell", "other"]


class Background:
    """Something that a run leaves running: `async with run.background("test suite") as work`.

    It counts from the call on. What has ended when the run settles was not left running, and is forgotten;
    the others are named in the settle, and are finished when their block ends.
    """

    def __init__(self, run: "Run", label: str, kind: WorkKindName, wakes: bool) -> None:
        self.work_id = f"work-{uuid4().hex}"
        self.label = label
        self.kind: WorkKindName = kind
        self.wakes = wakes
        self.summary: str | None = None
        """What came of it, for the item that its end puts into the inbox; set it inside the block."""
        self.named = False
        self.ended = asyncio.Event()
        self._run = run

    def to_wire(self) -> dict[str, Any]:
        """As the settle names it."""
        return {"work_id": self.work_id, "kind": self.kind, "label": self.label, "wakes": self.wakes}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        match error:
            case None:
                outcome = WorkOutcome.COMPLETED
            case asyncio.CancelledError():
                outcome = WorkOutcome.CANCELLED
            case _:
                outcome = WorkOutcome.FAILED
                self.summary = self.summary or _describe(error)
        await self._run.finish(self, outcome)


class Run(Parent):
    """Everything that a run may do: ask its parent, keep its history, have children, and settle."""

    def __init__(
        self,
        wire: Wire,
        caller: str,
        record: RunRecord,
        session: SessionRecord,
        questions: Sequence[QuestionRecord] = (),
        *,
        lease_ms: int = 0,
    ) -> None:
        super().__init__(wire, caller, record.session_id, record.run_id)
        self.record = record
        self.session_record = session
        self.questions_so_far = list(questions)
        """Those that the run's former holders have asked, with their ends."""
        self.output: str | None = None
        """What the run has produced, where it settles by leaving its block."""
        self._asker = Asker(wire, caller, record.run_id, record.attempt, questions)
        self._lease_ms = lease_ms
        self._history_seq = session.history_seq
        self._appending = asyncio.Lock()
        self._work: dict[str, Background] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._block: Any = None

    @classmethod
    async def of_self(cls, wire: Wire, session_id: str, run_id: str) -> "Run":
        """A run of a self-hosted session, which this program carries out."""
        session = (await wire.query(session_id, "session.get", {"session_id": session_id}))["session"]
        record = (await wire.query(session_id, "run.get", {"run_id": run_id}))["run"]
        session = SessionRecord.model_validate(session)
        return cls(wire, session_id, RunRecord.model_validate(record), session, lease_ms=session.lease_ms)

    @property
    def task(self) -> str:
        """What the run was asked to do."""
        return self.record.task or ""

    @property
    def attempt(self) -> int:
        """1, or more if former holders were lost; then history() and the questions tell how far they came."""
        return self.record.attempt

    # Asking

    async def ask_parent(
        self,
        question: str,
        why_blocked: str,
        *,
        options: Sequence[str] = (),
        recommended_option: str | None = None,
        fallback: str | None = None,
        can_continue_without_answer: bool | None = None,
        timeout_ms: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tool_call_id: str | None = None,
        command_id: str | None = None,
    ) -> Answer:
        """Ask one question and wait for its answer; the run goes on with it.

        With a fallback the child goes on without an answer, unless can_continue_without_answer says no. Ends
        without which it may not go on are raised as NoAnswerError; a question that can't be asked at all as
        RefusedError. Asked again after a crash, it is the same question: see `tool_call_id`.
        """
        body = {
            "question": question,
            "why_blocked": why_blocked,
            "options": list(options),
            "recommended_option": recommended_option,
            "fallback": fallback,
            "can_continue_without_answer": (
                fallback is not None if can_continue_without_answer is None else can_continue_without_answer
            ),
            "timeout_ms": timeout_ms,
            "meta": None if meta is None else dict(meta),
        }
        return answer_of(await self._asker.ask(body, tool_call_id, command_id))

    @property
    def trigger(self) -> Trigger:
        """What started it. At `wake` the task is what came of children or work that were left running."""
        return self.record.trigger

    # History

    async def append(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        steps: int | None = None,
        command_id: str | None = None,
    ) -> int:
        """Add messages ({role, content, …}) to the history; the index of the last one.

        StepBudgetError: they would go over the budget, and were not kept. Let it through, and the run settles
        as halted.
        """
        async with self._appending:
            body = {
                "run_id": self.record.run_id,
                "messages": [dict(message) for message in messages],
                "steps": steps,
                "attempt": self.record.attempt,
            }
            self._history_seq = (await self.command("run.append", body, command_id))["history_seq"]
            return self._history_seq

    async def messages(self) -> list[HistoryMessage]:
        """This run's own part of the history; after a take-over, how far the former holders came."""
        return [message for message in await self.history() if message.run_id == self.record.run_id]

    # Background work

    def background(self, label: str, *, kind: WorkKindName = "shell", wakes: bool = False) -> Background:
        """Something that may outlive the run; the child is reported only when it has ended.

        A `shell` ends as lost with this process, `other` does not. With `wakes` its end starts a new run of
        an idle session.
        """
        work = Background(self, label, kind, wakes)
        self._work[work.work_id] = work
        return work

    def leave(
        self, label: str, work: Coroutine[Any, Any, str | None], *, wakes: bool = False
    ) -> asyncio.Task[None]:
        """Let a coroutine go on after the run has settled; what it returns is the work's summary."""
        background = self.background(label, wakes=wakes)

        async def carry_on() -> None:
            async with background:
                background.summary = await work

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()):  # it is told as failed work
                log.warning("%s of run %s failed", label, self.run_id, exc_info=error)

        task = asyncio.create_task(carry_on())
        self._tasks.add(task)
        task.add_done_callback(over)
        return task

    async def finish(self, work: Background, outcome: WorkOutcome) -> WorkRecord | None:
        """Say that background work has ended. Leaving its block does this."""
        self._work.pop(work.work_id, None)
        try:
            if not work.named:
                return None
            body = {
                "work_id": work.work_id,
                "session_id": self.session_id,
                "outcome": outcome,
                "summary": work.summary,
            }
            result = await self.wire.command(self.caller, "work.finish", body, within=_SETTLE_TIMEOUT)
            return WorkRecord.model_validate(result["work"])
        except RefusedError as refusal:
            log.info("work %s of run %s: %s", work.label, self.run_id, refusal)
            return None
        finally:
            work.ended.set()

    async def until_work_ended(self) -> None:
        """Wait until nothing that the run has left runs any more."""
        while self._work:
            await next(iter(self._work.values())).ended.wait()

    async def cancel_work(self) -> None:
        """End what `leave` has started."""
        for task in (tasks := list(self._tasks)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Ending

    async def settle(
        self,
        outcome: Outcome | str,
        answer: str | None = None,
        error: str | None = None,
        *,
        command_id: str | None = None,
        within: float = _SETTLE_TIMEOUT,
    ) -> RunRecord:
        """End the run, naming what it leaves running. A runner does this when the handler returns.

        `within` is for how many seconds the services may be away before it is a NoReplyError.
        """
        left = list(self._work.values())
        for work in left:
            work.named = True
        body = {
            "run_id": self.record.run_id,
            "outcome": outcome,
            "answer": answer,
            "error": error,
            "history_seq": self._history_seq,
            "background": [work.to_wire() for work in left],
            "attempt": self.record.attempt,
        }
        result = await self.wire.command(
            self.caller, "run.settle", body, command_id=command_id, within=within
        )
        await self._asker.close()
        self.record = RunRecord.model_validate(result["run"])
        return self.record

    async def end(
        self, error: BaseException | None, output: str | None, within: float = _SETTLE_TIMEOUT
    ) -> None:
        """Settle as it came out: it returned, or raised this. A run that is not ours any more is let be."""
        if isinstance(error, RunNotActiveError):
            return
        try:
            await self.settle(*_ending(error, output), within=within)
        except InvalidError as refusal:
            await self.settle(Outcome.FAILED, error=f"What the run produced was refused: {refusal}")

    async def __aenter__(self) -> Self:
        """Carry the run out in this block: it settles when the block ends."""
        self._block = beating(self.wire, self.session_id, self._lease_ms, self.run_id, self.attempt)
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C cancels: whoever pressed it waits a little for the services, not as long as work is worth.
        cancelled = isinstance(error, asyncio.CancelledError)
        try:
            await self.end(error, self.output, _SETTLE_WHEN_CANCELLED if cancelled else _SETTLE_TIMEOUT)
        finally:
            await self._asker.close()
            await self._block.__aexit__(None, None, None)

    # For a model

    def tools(self) -> list[dict[str, Any]]:
        """The definitions to hand to a model; `ask_parent` only where there is a parent."""
        return tools.tools_for(has_reachable_parent=self.record.parent_session_id is not None)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, tool_call_id: str | None = None
    ) -> ToolResult:
        """Carry out a model's call; see Parent.call_tool."""
        if name != "ask_parent":
            return await super().call_tool(name, arguments, tool_call_id=tool_call_id)
        body = tools.ask_parent_command(arguments, self.record.run_id)
        try:
            return tools.ask_parent_result(await self._asker.ask(body, tool_call_id))
        except StaleAttemptError:
            raise  # nothing for a model: the run is another runner's
        except RefusedError as refusal:
            return tools.ask_parent_result(refusal.refusal)


def _ending(error: BaseException | None, answer: str | None) -> tuple[Outcome, str | None, str | None]:
    """How a run ends that returned, or raised this: outcome, answer and error."""
    match error:
        case None:
            return Outcome.COMPLETED, answer, None
        case asyncio.CancelledError():
            return Outcome.CANCELLED, answer, None
        case StepBudgetError():
            return Outcome.HALTED, answer, str(error)
        case _:
            return Outcome.FAILED, answer, _describe(error)


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
