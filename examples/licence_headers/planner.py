"""The parent: gives the child a task, decides what it asks, takes its report, continues it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import upcall
from upcall_contracts import subjects
from upcall_contracts.events import Event, EventType
from upcall_contracts.records import QuestionRecord, ReportRecord, RunRecord

from .clerk import AGENT
from .deciding import Decider
from .screen import Screen

LEASE_MS: Final = 5_000
"""How long the child's process may be silent before another takes its run over: short, to be watched."""


@dataclass(slots=True)
class Round:
    """One task of the child, from its start to its report."""

    child: upcall.Child
    answered: list[QuestionRecord] = field(default_factory=list[QuestionRecord])
    reports: list[ReportRecord] = field(default_factory=list[ReportRecord])


@dataclass(slots=True)
class Planner:
    """A run of the parent session, with the rounds that it has had."""

    run: upcall.Run
    decider: Decider
    screen: Screen
    agent: str = AGENT
    rounds: list[Round] = field(default_factory=list[Round])

    async def watch(self) -> None:
        """Show every committed event of this run's topic, its own and those of its children."""
        seen: set[str] = set()

        def show(subject: str, body: dict[str, Any]) -> None:
            event = Event.model_validate(body)
            if event.event_id not in seen:
                seen.add(event.event_id)
                self._show(event)

        await self.run.wire.subscribe(subjects.run_topic(self.run.record.run_id), show)

    async def delegate(self, task: str, description: str) -> Round:
        """A new child, or the one of the round before; returns with its report."""
        if not self.rounds:
            child = await self.run.spawn(self.agent, task, description=description, lease_ms=LEASE_MS)
        else:
            child = await self.run.continue_(self.rounds[0].child.session_id, task, description=description)
        self.rounds.append(Round(child))
        async with self.run.inbox() as inbox:
            async for item in inbox:
                match item:
                    case upcall.Question():
                        await self._decide(item)
                    case upcall.Report():
                        self.rounds[-1].reports.append(item.record)
                        await item.handle()
                        return self.rounds[-1]
                    case upcall.Work():
                        await item.handle()
        raise AssertionError("an inbox never ends")

    async def _decide(self, question: upcall.Question) -> None:
        record = question.record
        lines = [f"asks: {record.question}", f"because: {record.why_blocked}"]
        for number, option in enumerate(record.options, 1):
            recommended = "   (the child would take this)" if option == record.recommended_option else ""
            lines.append(f"  {number}  {option}{recommended}")
        self.screen.line(self._lineage(record.agent, "▲"), "\n".join(lines), "ask")
        decision = await self.decider.decide(question)
        waited = time.time() - (record.created_at or 0) / 1000
        why = f"\nbecause: {decision.rationale}" if decision.rationale else ""
        text = f"{self.decider.name}: {decision.said} (the child has waited {waited:.1f} s){why}"
        self.screen.line(self._lineage(record.agent, "▼"), text, "you")
        try:
            self.rounds[-1].answered.append(await decision.give(question))
        except upcall.AlreadyResolvedError as error:
            self.screen.line(self._lineage(record.agent, "▼"), f"too late: {error}", "ask")

    def _show(self, event: Event) -> None:
        match event.type:
            case EventType.RUN_STARTED | EventType.RUN_INTERRUPTED | EventType.RUN_SETTLED if (
                event.run_id != self.run.run_id
            ):
                run = RunRecord.model_validate(event.data)
                text = f"run {run.ordinal} of {run.agent} {event.type.removeprefix('run_')}"
                text += f" as {run.outcome}" if run.outcome else f", attempt {run.attempt}"
                self.screen.line(self._lineage(run.agent, "▸"), text, "child")
            case EventType.QUESTION_TIMED_OUT | EventType.QUESTION_CANCELLED:
                question = QuestionRecord.model_validate(event.data)
                self.screen.line(self._lineage(question.agent, "▼"), f"no answer: {question.status}", "ask")
            case EventType.REPORT_DELIVERED:
                report = ReportRecord.model_validate(event.data)
                text = f"reports {report.result}: {report.answer or report.error}"
                self.screen.line(self._lineage(report.agent, "▲"), text, "planner")
            case _:
                pass

    def _lineage(self, agent: str, arrow: str) -> str:
        return f"{self.run.record.agent} {arrow} {agent}"


def task_for(directories: Sequence[str]) -> str:
    """The task as the child gets it."""
    return (
        "Bring the licence headers of the source files in line with HEADERS.md: one licence, one holder, "
        f"years as they are.\nDirectories: {', '.join(directories)}"
    )
