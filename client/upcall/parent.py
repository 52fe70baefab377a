"""The parent's side: spawn, continue, wait, answer, inbox. A session can do all of it, and so can a run."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from upcall_contracts import limits, tools
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import derive_id
from upcall_contracts.records import (
    Action,
    Admitted,
    HistoryMessage,
    Host,
    QuestionRecord,
    ReportRecord,
    ReportStatus,
    SessionRecord,
)
from upcall_contracts.tools import ToolResult

from .children import Answerer, Child, Result, Results, wait_all
from .errors import RefusedError
from .inbox import Inbox, Waits
from .items import Question
from .wire import Wire

_TAKE_TRIES: Final = 40
_TAKE_PAUSE: Final = 0.05
_TAKE_TRIES_OLD: Final = 3
_OLD_MS: Final = 10_000  # by this machine's clock; JetStream derives an item within milliseconds


class Parent:
    """Speaks on the wire as `caller`, for one session and, where it has one, for one run."""

    def __init__(self, wire: Wire, caller: str, session_id: str, run_id: str | None = None) -> None:
        self.wire = wire
        self.caller = caller
        self.session_id = session_id
        self.run_id = run_id
        self.waits = Waits()
        """What its waits have returned, and are about to."""

    # Children

    async def spawn(
        self,
        agent: str,
        task: str,
        *,
        background: bool = True,
        host: str = Host.RUNNER,
        description: str | None = None,
        task_id: str | None = None,
        notify: bool | None = None,
        model: str | None = None,
        variant: str | None = None,
        step_budget: int | None = None,
        timeout_ms: int | None = None,
        lease_ms: int | None = None,
        meta: Mapping[str, Any] | None = None,
        command_id: str | None = None,
    ) -> Child:
        """A new child with its first run. In the background (default) its report comes to the inbox."""
        body = {
            "agent": agent,
            "task": task,
            "run_id": self.run_id,
            "background": background,
            "host": host,
            "description": description,
            "task_id": task_id,
            "notify": notify,
            "model": model,
            "variant": variant,
            "step_budget": step_budget,
            "timeout_ms": timeout_ms,
            "lease_ms": lease_ms,
            "meta": None if meta is None else dict(meta),
        }
        return self._child(await self.command("session.spawn", body, command_id))

    async def continue_(
        self,
        session_id: str,
        task: str,
        *,
        agent: str | None = None,
        background: bool = True,
        description: str | None = None,
        task_id: str | None = None,
        notify: bool | None = None,
        model: str | None = None,
        variant: str | None = None,
        step_budget: int | None = None,
        timeout_ms: int | None = None,
        command_id: str | None = None,
    ) -> Child:
        """A further run of an earlier child, with all that it knew."""
        body = {
            "session_id": session_id,
            "task": task,
            "run_id": self.run_id,
            "agent": agent,
            "background": background,
            "description": description,
            "task_id": task_id,
            "notify": notify,
            "model": model,
            "variant": variant,
            "step_budget": step_budget,
            "timeout_ms": timeout_ms,
        }
        return self._child(await self.command("session.continue", body, command_id))

    async def call(
        self, agent: str, task: str, *, within: float | None = None, **options: Any
    ) -> Result | Question:
        """Spawn in the foreground and wait: the result, or the child's question.

        After a question: `question.answer(...)`, then `question.child.wait()`. `within` so many seconds from
        when the child is there; see Child.wait. The child goes on after a TimeoutError: to have a handle on
        it then, `spawn(background=False)` and wait for that.
        """
        return await (await self.spawn(agent, task, background=False, **options)).wait(within=within)

    def child(self, of: Admitted | QuestionRecord | ReportRecord) -> Child:
        """A handle on a child, from what a question or a report of it says."""
        match of:
            case QuestionRecord():
                ids = Admitted(session_id=of.child_session_id or "", run_id=of.child_run_id or "")
            case ReportRecord():
                ids = Admitted(session_id=of.session_id, run_id=of.runs[-1], period_id=of.period_id)
            case _:
                ids = of
        return Child(self, ids)

    async def wait_all(
        self, children: Sequence[Child], answer: Answerer | None = None, *, within: float | None = None
    ) -> Results:
        """The results of all, with failures counted; questions go to `answer`, or are left to the inbox.

        If one wait fails, or they are not done `within` so many seconds (TimeoutError), no report is taken.
        """
        return await wait_all(children, answer, within=within)

    async def cancel(
        self,
        session_id: str | None = None,
        reason: str | None = None,
        *,
        cascade: bool = True,
        command_id: str | None = None,
    ) -> list[str]:
        """Cancel what a session (by default this one) is doing; the ids of the runs."""
        body = {"session_id": session_id or self.session_id, "reason": reason, "cascade": cascade}
        return (await self.command("session.cancel", body, command_id))["cancelled"]

    async def close(
        self, session_id: str | None = None, *, cascade: bool = True, command_id: str | None = None
    ) -> SessionRecord:
        """Close a session (by default this one) for good."""
        body = {"session_id": session_id or self.session_id, "cascade": cascade}
        return SessionRecord.model_validate(
            (await self.command("session.close", body, command_id))["session"]
        )

    # Inbox

    def inbox(self) -> Inbox:
        """What waits for this session, and what comes: `async for item in parent.inbox()`."""
        return Inbox(self.wire, self)

    async def handle(self, *item_ids: str, command_id: str | None = None) -> list[str]:
        """Say that items have been dealt with; those that this call has taken away."""
        body = {"item_ids": list(item_ids), "session_id": self.session_id}
        handled = (await self.command("inbox.handle", body, command_id))["handled"]
        self.waits.handle(item_ids, handled)
        return handled

    async def questions(self) -> list[Question]:
        """The questions of children that wait for an answer, oldest first."""
        rows = await self.pages("question.list", "questions", {})
        records = [QuestionRecord.model_validate(row) for row in rows]
        return [Question(record, self) for record in records if record.parent_session_id == self.session_id]

    async def answer(
        self,
        request_id: str,
        text: str | None = None,
        *,
        option: str | None = None,
        rationale: str | None = None,
        action: Action = Action.ACCEPT,
        command_id: str | None = None,
    ) -> QuestionRecord:
        """Decide a child's question. An option alone is an answer too."""
        body = {
            "request_id": request_id,
            "answer": text if text is not None else option,
            "selected_option": option,
            "rationale": rationale,
            "action": action,
        }
        return QuestionRecord.model_validate(
            (await self.command("question.answer", body, command_id))["question"]
        )

    async def take(self, reports: Sequence[ReportRecord]) -> None:
        """Handle the items of reports that a call is about to return.

        The decision on a report is known a moment before the inbox has its item: try until it is there. One
        that was handled elsewhere looks the same, so an old one is not tried for long. The same take has the
        same command id: after one that was given up, the reply tells at once what that has handled.
        """
        left = [report for report in reports if report.status is ReportStatus.DELIVERED]
        for tried in range(_TAKE_TRIES):
            left = [r for r in left if r.period_id not in self.waits.handled]
            if tried >= _TAKE_TRIES_OLD:
                left = [r for r in left if not _is_old(r)]
            if not left:
                return
            if tried:
                await asyncio.sleep(_TAKE_PAUSE)
            item_ids = sorted({report.period_id for report in left})
            await self.handle(*item_ids, command_id=derive_id("take-", self.session_id, *item_ids))

    # Looking

    async def session(self, session_id: str | None = None) -> SessionRecord:
        """A session (by default this one) as it stands now."""
        result = await self.query("session.get", {"session_id": session_id or self.session_id})
        return SessionRecord.model_validate(result["session"])

    async def tree(self) -> list[SessionRecord]:
        """This session and all its descendants."""
        rows = await self.pages("session.list", "sessions", {"session_id": self.session_id, "scope": "tree"})
        return [SessionRecord.model_validate(row) for row in rows]

    async def history(self, session_id: str | None = None) -> list[HistoryMessage]:
        """All messages of a session (by default this one)."""
        messages: list[HistoryMessage] = []
        start: int | None = 1
        while start:
            body = {
                "session_id": session_id or self.session_id,
                "from": start,
                "limit": limits.PAGE_MAX,
            }
            page = await self.query("session.history", body)
            messages += [HistoryMessage.model_validate(row) for row in page["messages"]]
            start = page["next"]
        return messages

    # For a model

    def tools(self) -> list[dict[str, Any]]:
        """The definitions (name, description, input_schema) to hand to a model."""
        return tools.tools_for(has_reachable_parent=False)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, tool_call_id: str | None = None
    ) -> ToolResult:
        """Carry out a model's call. A refusal is a result with is_error, never an exception.

        The tool call's id makes the call idempotent: made again after a restart, it has no second effect.
        """
        command_id = derive_id("tool-", self.session_id, tool_call_id) if tool_call_id else None
        match name:
            case "parent_question":
                return await self._parent_question(arguments, command_id)
            case "spawn_agent":
                return await self._spawn_agent(arguments, command_id)
            case _:
                known = ", ".join(tool["name"] for tool in self.tools())
                return ToolResult(f"There is no tool {name} here. Known are: {known}.", is_error=True)

    # The wire

    async def command(self, name: str, body: dict[str, Any], command_id: str | None = None) -> dict[str, Any]:
        """Any command of the contract, as this caller."""
        return await self.wire.command(self.caller, name, body, command_id=command_id)

    async def query(self, name: str, body: dict[str, Any], *, waits: float = 0.0) -> dict[str, Any]:
        """Any query of the contract, as this caller."""
        return await self.wire.query(self.caller, name, body, waits=waits)

    async def pages(self, name: str, key: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """All rows of a query that answers page by page."""
        rows: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = await self.query(name, {**body, "cursor": cursor, "limit": limits.PAGE_MAX})
            rows += page[key]
            cursor = page["cursor"]
            if not cursor:
                return rows

    def _child(self, result: dict[str, Any]) -> Child:
        return Child(self, Admitted.model_validate(result))

    async def _parent_question(self, arguments: Mapping[str, Any], command_id: str | None) -> ToolResult:
        wanted = tools.parent_question_command(arguments)
        if isinstance(wanted, Refusal):
            return tools.parent_question_answer_result(wanted)
        action, body = wanted
        if action == "list":
            try:
                questions = [question.record for question in await self.questions()]
            except RefusedError as refusal:
                return tools.parent_question_list_result(refusal.refusal)
            return tools.parent_question_list_result(questions)
        try:
            result = await self.command("question.answer", body, command_id)
        except RefusedError as refusal:
            return tools.parent_question_answer_result(refusal.refusal)
        return tools.parent_question_answer_result(QuestionRecord.model_validate(result["question"]))

    async def _spawn_agent(self, arguments: Mapping[str, Any], command_id: str | None) -> ToolResult:
        verb, body = tools.spawn_agent_command(arguments)
        named = body.get("session_id")
        try:
            child = self._child(
                await self.command(f"session.{verb}", {**body, "run_id": self.run_id}, command_id)
            )
            if body.get("background", True):
                return tools.spawn_agent_result(child.session_id, child.admitted)
            return await child.tool_result()
        except RefusedError as refusal:
            return tools.spawn_agent_result(named if isinstance(named, str) else None, refusal.refusal)


def _is_old(report: ReportRecord) -> bool:
    return time.time() * 1000 - (report.delivered_at or 0) > _OLD_MS
