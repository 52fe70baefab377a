"""Finds the reports of a list, oldest first: through the index, or in the log while it is not whole."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from upcall_contracts.states import SessionState

from .ports import Place, Report
from .stores import ReportIndex, ReportLog


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a list: the reports in it that belong to the list, and where it ends."""

    reports: list[Report]
    end: Place


class ReportLists:
    """Lists of reports. What the index says is read in the log; what is there no more is taken out."""

    def __init__(self, reports: ReportLog, index: ReportIndex) -> None:
        self._reports = reports
        self._index = index

    def all(self, after: Place | None, size: int) -> AsyncIterator[Stretch]:
        """Every report."""
        return self._walk(None, None, self._reports.all, after, size)

    def to(self, session_id: str, after: Place | None, size: int) -> AsyncIterator[Stretch]:
        """The reports that go to a session."""
        return self._walk(session_id, None, lambda: self._reports.of_parent(session_id), after, size)

    def on(self, session: SessionState, after: Place | None, size: int) -> AsyncIterator[Stretch]:
        """The reports on a session: those among its parent's, or in the log where it has no parent."""

        def search() -> Awaitable[list[Report]]:
            return self._reports.of_session(session.session_id)

        if session.parent_session_id is None:
            return self._search(search, after)
        return self._walk(session.parent_session_id, session.session_id, search, after, size)

    async def _walk(
        self,
        parent_session_id: str | None,
        session_id: str | None,
        search: Callable[[], Awaitable[list[Report]]],
        after: Place | None,
        size: int,
    ) -> AsyncIterator[Stretch]:
        while True:
            places = await self._index.page(parent_session_id, after, size)
            if places is None:
                async for stretch in self._search(search, after):
                    yield stretch
                return
            if not places:
                return
            after = places[-1]
            wanted = await self._of_session([period_id for _, period_id in places], session_id)
            yield Stretch(await self._read(wanted, parent_session_id), after)

    async def _search(
        self, search: Callable[[], Awaitable[list[Report]]], after: Place | None
    ) -> AsyncIterator[Stretch]:
        reports = sorted(await search(), key=lambda report: report.place)
        left = [report for report in reports if after is None or report.place > after]
        if left:
            yield Stretch(left, left[-1].place)

    async def _of_session(self, period_ids: list[str], session_id: str | None) -> list[str]:
        """Those periods that are a session's, as far as the index knows; the others are read to find out."""
        sessions = await self._index.sessions(period_ids) if session_id else None
        if sessions is None:
            return period_ids
        known = zip(period_ids, sessions, strict=True)
        return [period_id for period_id, owner in known if owner in (None, session_id)]

    async def _read(self, period_ids: list[str], parent_session_id: str | None) -> list[Report]:
        reports = await self._reports.reports(period_ids)
        gone = set(period_ids) - {report.state.period_id for report in reports}
        await self._index.forget(gone, parent_session_id)
        return reports
