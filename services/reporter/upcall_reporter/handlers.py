"""Deliveries of the log: what a session's entry says of a period becomes at most one decision."""

import asyncio
import time

import structlog
from nats.aio.msg import Msg

from upcall_contracts.events import Family
from upcall_contracts.log import tokens
from upcall_contracts.records import RunRecord
from upcall_contracts.states import ClosedPeriod, HeldPeriod
from upcall_shell.errors import Conflict

from .decisions import Decision, Facts, decide
from .metrics import REPORTS
from .stores import Report, ReportIndex, ReportLog, SessionEntry

logger = structlog.get_logger()
_TRIES = 10
_FAMILY = 3  # session.<S>.<R>.<family>.…


class PeriodHandler:
    """Decides reports. Doing it again, in another order or beside another instance changes nothing."""

    def __init__(self, reports: ReportLog, index: ReportIndex) -> None:
        self._reports = reports
        self._index = index

    async def handle(self, message: Msg) -> None:
        """One entry of a session; it is acknowledged only when what it causes is in the log."""
        entry = SessionEntry.model_validate_json(message.data)
        state = entry.state
        for period in (state.closed_period, state.held_period):
            if period is not None:
                facts = await self._facts(message, entry, period)
                await self._report(period, facts)

    async def _report(self, period: ClosedPeriod | HeldPeriod, facts: Facts) -> None:
        for _ in range(_TRIES):
            report = await self._reports.report(period.period_id)
            decision = decide(period, facts, report.state if report else None, time.time_ns() // 1_000_000)
            try:
                await self._carry_out(period, decision, report)
            except Conflict:
                continue
            return
        raise Conflict(period.period_id, 0)

    async def _carry_out(
        self, period: ClosedPeriod | HeldPeriod, decision: Decision | None, report: Report | None
    ) -> None:
        if decision is not None:
            await self._reports.append(period.period_id, decision, report.seq if report else 0)
            _told(decision)
            await self._index.add(decision.entry.state, decision.entry.parent_session_id)
        elif report is not None:  # whoever stored it may have died before it was in the index
            await self._index.add(report.state, report.parent_session_id)

    async def _facts(self, message: Msg, entry: SessionEntry, period: ClosedPeriod | HeldPeriod) -> Facts:
        parent = entry.state.parent_session_id if isinstance(period, ClosedPeriod) else None
        run, parent_closed = await asyncio.gather(
            self._run(message.subject, entry, period.run_id), self._is_closed(parent)
        )
        return Facts(entry.state, message.metadata.sequence.stream, run, parent_closed)

    async def _run(self, subject: str, entry: SessionEntry, run_id: str) -> RunRecord:
        if entry.run_id == run_id and tokens(subject)[_FAMILY] == Family.LIFECYCLE:
            return RunRecord.model_validate(entry.data)
        run = await self._reports.run(entry.session_id, run_id)
        if run is None:
            raise LookupError(f"run {run_id} is not in the log")
        return run

    async def _is_closed(self, session_id: str | None) -> bool:
        """Whether a session takes nothing any more; one that was purged had been closed."""
        if session_id is None:
            return False
        session = await self._reports.session(session_id)
        return session is None or session.closed_at is not None


def _told(decision: Decision) -> None:
    state, entry = decision.entry.state, decision.entry
    REPORTS.labels(state.status.value).inc()
    logger.info(
        f"report {state.status.value}",
        period_id=state.period_id,
        session_id=entry.session_id,
        run_id=entry.run_id,
        reason=state.reason,
    )
