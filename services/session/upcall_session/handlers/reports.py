"""Reports, as far as sessions have to do with them: releasing a held one, and counting a decided one."""

import asyncio
import json
from typing import Any, Final

from nats.aio.msg import Msg

from upcall_contracts import log, refusals
from upcall_contracts.commands import ReportRelease
from upcall_contracts.errors import Refusal
from upcall_contracts.records import ReportRecord, ReportStatus
from upcall_contracts.states import SessionState
from upcall_session.clock import now_ms
from upcall_session.decisions import counting, periods
from upcall_session.decisions.results import Decided, Repeated
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Sessions
from upcall_shell.commands import Command
from upcall_shell.delivery import Again

from .common import Reply, asked, visible_session

_LOOK_S: Final = 0.02
_DECIDED_WITHIN_S: Final = 10.0
_DECIDED: Final = frozenset({ReportStatus.DELIVERED, ReportStatus.SUPPRESSED})


class Reports:
    """Releases reports, and counts them."""

    def __init__(self, sessions: Sessions, reach: Reach) -> None:
        self._sessions = sessions
        self._reach = reach

    async def release(self, command: Command[ReportRelease]) -> Reply | Again:
        """report.release: the hold ends, and the reply is what the reporter decides then."""
        who = asked(command)
        session = await visible_session(self._sessions, self._reach, who, command.body.session_id)
        if isinstance(session, Refusal):
            return session

        async def decide(state: SessionState | None) -> Decision:
            return periods.release(state or session, who)

        outcome = await self._sessions.change(session.session_id, decide, who)
        match outcome.decision:
            case Repeated(result):
                period_id = str(result["period_id"])
            case Decided(state=state):
                period_id = str(state.done[-1].result["period_id"])
            case Refusal() as refusal:
                return refusal
            case _:
                return refusals.not_held(session.session_id)
        report = await self._decided(period_id)
        return {"report": report} if report is not None else Again(1_000)

    async def count(self, message: Msg) -> Again | None:
        """A report was decided: its session counts as done for the parent."""
        event = json.loads(message.data)
        report = ReportRecord.model_validate(event["data"])
        parent_id = report.parent_session_id
        if parent_id is None or await self._reach.session(parent_id) is None:
            return None
        may_wake = await self._may_wake(report, event)

        async def decide(state: SessionState | None) -> Decision:
            if state is None:
                return None
            handled = await self._sessions.items.is_handled(parent_id, report.period_id)
            return counting.count(state, report, now_ms(), may_wake=may_wake, handled=handled)

        await self._sessions.change(parent_id, decide)
        return None

    async def _may_wake(self, report: ReportRecord, event: dict[str, Any]) -> bool:
        """Whether the report does not come of a cancel or a close.

        Of one that a run waits for the item does not say it; the session it is about does.
        """
        if report.for_run is None:
            return bool((event.get("item") or {}).get("wakes"))
        child = await self._reach.session(report.session_id)
        return child is None or report.period_id not in child.unwaking

    async def _decided(self, period_id: str) -> dict[str, Any] | None:
        give_up = asyncio.get_running_loop().time() + _DECIDED_WITHIN_S
        while asyncio.get_running_loop().time() < give_up:
            stored = await self._sessions.log.stream.last(log.report_guard(period_id))
            data = json.loads(stored.body)["data"] if stored is not None else {}
            if data.get("status") in {status.value for status in _DECIDED}:
                return data
            await asyncio.sleep(_LOOK_S)
        return None
