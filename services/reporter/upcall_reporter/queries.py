"""report.get and report.list: who may read which reports, page by page."""

from collections.abc import AsyncIterator
from typing import Any

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR, is_token
from upcall_contracts.queries import ReportGet, ReportList
from upcall_contracts.states import SessionState
from upcall_shell.queries import Query, as_many_as_fit

from .listing import ReportLists, Stretch
from .ports import Place, Report
from .stores import ReportLog

_LOOKED_AT_MAX = 2000
"""How many reports one query looks at: where few of many fit, a page is short, and its cursor goes on."""


class ReportQueries:
    """Answers queries from the log; nothing is refused or shown for the index's sake alone."""

    def __init__(self, reports: ReportLog, lists: ReportLists) -> None:
        self._reports = reports
        self._lists = lists

    async def get(self, query: Query[ReportGet]) -> dict[str, Any] | Refusal:
        """One report, held or decided."""
        report = await self._reports.report(query.body.period_id)
        if report is None or not await self._sees(query.caller, report.line):
            return refusals.unknown_report(query.body.period_id)
        return {"report": report.data}

    async def page(self, query: Query[ReportList]) -> dict[str, Any] | Refusal:
        """Reports, oldest first.

        With a session_id, those on that session. Without one, those that go to the caller's own session,
        which is what its inbox tells it of: the wire means the caller's own session wherever none is named,
        and a runner, which is none, has to name one. An operator who names none gets all.
        """
        body, caller = query.body, query.caller
        after = read_cursor(body.cursor) if body.cursor else None
        if isinstance(after, Refusal):
            return after
        if body.session_id is None and caller == OPERATOR:
            return await _page(self._lists.all(after, body.limit), body)
        session = await self._visible(caller, body.session_id or caller)
        if isinstance(session, Refusal):
            return session
        if body.session_id is None:
            return await _page(self._lists.to(session.session_id, after, body.limit), body)
        return await _page(self._lists.on(session, after, body.limit), body, session.session_id)

    async def _visible(self, caller: str, session_id: str) -> SessionState | Refusal:
        session = await self._reports.session(session_id)
        if session is None or not await self._sees(caller, [*session.ancestors, session_id]):
            return refusals.unknown_session(session_id)
        return session

    async def _sees(self, caller: str, line: list[str]) -> bool:
        """Whether a caller may see a session, given the line from its root down to itself.

        A session sees itself and what is below it, a runner what it holds and what is below that.
        """
        if caller == OPERATOR or caller in line:
            return True
        for session_id in line:
            session = await self._reports.session(session_id)
            if session is not None and session.holder == caller:
                return True
        return False


def read_cursor(cursor: str) -> Place | Refusal:
    """Where the last page ended: a time and a period, as `write_cursor` has them."""
    at, _, period_id = cursor.partition(".")
    if not (at.isascii() and at.isdecimal() and len(at) <= 15 and is_token(period_id)):
        return refusals.invalid_field("cursor", "is not one that a reply gave: start again without it")
    return int(at), period_id


def write_cursor(place: Place) -> str:
    """What the next page begins after."""
    return f"{place[0]}.{place[1]}"


async def _page(
    stretches: AsyncIterator[Stretch], body: ReportList, session_id: str | None = None
) -> dict[str, Any]:
    picked: list[Report] = []
    looked_at = 0
    async for stretch in stretches:
        for report in stretch.reports:
            if not _fits(report, body, session_id):
                continue
            if len(picked) == body.limit:
                return _reply(picked, picked[-1].place)
            picked.append(report)
        looked_at += len(stretch.reports)
        if looked_at >= _LOOKED_AT_MAX:
            return _reply(picked, stretch.end)
    return _reply(picked, None)


def _fits(report: Report, body: ReportList, session_id: str | None) -> bool:
    return (body.status is None or report.state.status is body.status) and (
        session_id is None or report.state.session_id == session_id
    )


def _reply(reports: list[Report], end: Place | None) -> dict[str, Any]:
    page = as_many_as_fit([report.data for report in reports])
    if len(page) < len(reports):
        end = reports[len(page) - 1].place
    return {"reports": page, "cursor": write_cursor(end) if end else None}
