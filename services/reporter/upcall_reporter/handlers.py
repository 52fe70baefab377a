"""Deliveries of the log: what a session's entry says of a period becomes at most one decision."""

import time

import structlog
from nats.aio.msg import Msg

from upcall_contracts.events import Family
from upcall_contracts.records import RunRecord
from upcall_contracts.states import ClosedPeriod, HeldPeriod
from upcall_shell.errors import Conflict
from upcall_shell.redis_gate import RedisGate

from .decisions import Decision, Facts, decide
from .metrics import count
from .ports import Index, Reports, SaidBySession

logger = structlog.get_logger()
_TRIES = 10


class PeriodHandler:
    """Decides reports. Doing it again, in another order or beside another instance changes nothing."""

    def __init__(self, reports: Reports, index: Index, gate: RedisGate) -> None:
        self._reports = reports
        self._index = index
        self._gate = gate

    async def handle(self, message: Msg) -> None:
        """A delivery; it is acknowledged only when what it causes is in the log."""
        said = SaidBySession.read(message.metadata.sequence.stream, message.subject, message.data)
        if said.tells:
            # One session's entries in their order, within this process: so no hold is overtaken for no need.
            async with self._gate.lock(f"reports:{said.entry.session_id}"):
                await self.carry_out(said)

    async def carry_out(self, said: SaidBySession) -> None:
        """What one entry of a session causes."""
        state = said.entry.state
        if state.closed_period is not None:
            await self._decide(state.closed_period, said)
        if state.held_period is not None:
            await self._decide(state.held_period, said)
            # A later entry may have been handled while this one was, and have found that all is said already.
            later = await self._reports.later(said, state.held_period.period_id)
            if later is not None:
                await self.carry_out(later)

    async def _decide(self, period: ClosedPeriod | HeldPeriod, said: SaidBySession) -> None:
        facts = await self._facts(period, said)
        for _ in range(_TRIES):
            report = await self._reports.report(period.period_id)
            decision = decide(period, facts, report.state if report else None, time.time_ns() // 1_000_000)
            try:
                if decision is not None:
                    await self._reports.append(period.period_id, decision, report.seq if report else 0)
                    _told(decision)
            except Conflict:
                continue
            # Also where nothing was decided: whoever decided may have died before it stood in the index.
            if decision is not None:
                await self._index.add(decision.entry.state, decision.entry.parent_session_id)
            elif report is not None:
                await self._index.add(report.state, report.parent_session_id)
            return
        raise Conflict(period.period_id, 0)

    async def _facts(self, period: ClosedPeriod | HeldPeriod, said: SaidBySession) -> Facts:
        state = said.entry.state
        run = await self._run(period.run_id, said)
        asked = isinstance(period, ClosedPeriod) and state.parent_session_id is not None
        parent_closed = asked and await self._reports.is_closed(state.parent_session_id)
        for_run = period.for_run if isinstance(period, ClosedPeriod) else None
        awaited = not for_run or await self._reports.is_active(state.parent_session_id, for_run)
        return Facts(state, said.seq, run, parent_closed, awaited)

    async def _run(self, run_id: str, said: SaidBySession) -> RunRecord:
        if said.entry.run_id == run_id and said.family == Family.LIFECYCLE:
            return RunRecord.model_validate(said.entry.data)
        run = await self._reports.run(said.entry.session_id, run_id)
        if run is None:
            raise LookupError(f"run {run_id} is not in the log")
        return run


def _told(decision: Decision) -> None:
    state, entry = decision.entry.state, decision.entry
    count(decision)
    logger.info(
        f"report {state.status.value}",
        period_id=state.period_id,
        session_id=entry.session_id,
        run_id=entry.run_id,
        reason=state.reason,
    )
