"""What the reporter reads and writes: the log, and its index in Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson
from redis.asyncio import Redis

from upcall_contracts import keys, log
from upcall_contracts.records import ReportStatus, RunRecord
from upcall_contracts.states import ReportState, SessionState
from upcall_shell.indexing import IndexKeeper
from upcall_shell.jetstream import Stored, StreamClient
from upcall_shell.redis_gate import RedisGate

from .decisions import Decision
from .ports import Place, Report, SaidBySession

SERVICE = "reporter"

_REBUILD_BATCH = 500
_OLDEST = 32  # looked up in the log at a time


def read_report(stored: Stored) -> Report:
    """Read an entry of the log as a report."""
    body = orjson.loads(stored.body)
    return Report(stored.seq, ReportState.model_validate(body["state"]), body["data"])


def _session_state(stored: Stored) -> SessionState:
    return SaidBySession.read(stored.seq, stored.subject, stored.body).entry.state


class ReportLog:
    """Reports, and the sessions and runs they are decided from, in the log."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream

    async def report(self, period_id: str) -> Report | None:
        """A period's report; None where nothing is decided about it."""
        stored = await self._stream.last(log.report_guard(period_id))
        return read_report(stored) if stored else None

    async def reports(self, period_ids: Iterable[str]) -> list[Report]:
        """Those of these reports that there are."""
        found = await asyncio.gather(*(self.report(period_id) for period_id in period_ids))
        return [report for report in found if report]

    async def session(self, session_id: str) -> SessionState | None:
        """A session as it stands."""
        stored = await self._stream.last(log.session_guard(session_id))
        return _session_state(stored) if stored else None

    async def is_closed(self, session_id: str | None) -> bool:
        """Whether a session takes nothing any more; one that was purged had been closed."""
        session = await self.session(session_id) if session_id else None
        return session is None or session.closed_at is not None

    async def is_active(self, session_id: str | None, run_id: str) -> bool:
        """Whether a run is a session's active one."""
        session = await self.session(session_id) if session_id else None
        return session is not None and session.run is not None and session.run.run_id == run_id

    async def later(self, said: SaidBySession, period_id: str) -> SaidBySession | None:
        """The next entry of the same session that tells of a period, if there is one."""
        guard, seq = log.session_guard(said.entry.session_id), said.seq
        while stored := await self._stream.next(guard, seq + 1):
            seq = stored.seq
            found = SaidBySession.read(seq, stored.subject, stored.body)
            if found.tells_of(period_id):
                return found
        return None

    async def run(self, session_id: str, run_id: str) -> RunRecord | None:
        """A run as it stands."""
        stored = await self._stream.last(log.run_filter(session_id, run_id))
        return RunRecord.model_validate(orjson.loads(stored.body)["data"]) if stored else None

    async def all(self) -> list[Report]:
        """Every report."""
        return await self._scan(log.REPORT_GUARD_ALL)

    async def of_parent(self, session_id: str) -> list[Report]:
        """The reports to a session."""
        return await self._scan(f"log.report.*.*.*.*.{session_id}", f"log.report.*.*.*.*.*.{session_id}")

    async def of_session(self, session_id: str) -> list[Report]:
        """The reports on a session."""
        on = f"log.report.*.*.*.{session_id}"
        return await self._scan(on, f"{on}.*", f"{on}.*.*")

    async def each(self, *filters: str) -> AsyncIterator[Report]:
        """The last entry of each status of each report; of a report that was held and decided, both."""
        async for stored in self._stream.scan(list(filters), last_per_subject=True):
            yield read_report(stored)

    async def _scan(self, *filters: str) -> list[Report]:
        last: dict[str, Report] = {}
        async for report in self.each(*filters):
            known = last.get(report.state.period_id)
            if known is None or known.seq < report.seq:
                last[report.state.period_id] = report
        return list(last.values())

    async def append(self, period_id: str, decision: Decision, expected: int) -> None:
        """Store a decision. Raises Conflict where another one about the period came first."""
        left_out = {"history", "command"} | (set() if decision.entry.item else {"item"})
        await self._stream.append(
            decision.subject,
            decision.entry.model_dump_json(exclude=left_out).encode(),
            guard=log.report_guard(period_id),
            expected=expected,
            event_id=decision.entry.event_id,
        )


class ReportIndex:
    """Which reports there are, by whom they go to, oldest first. All of it follows from the log."""

    def __init__(self, gate: RedisGate, reports: ReportLog) -> None:
        self._gate = gate
        self._reports = reports
        self.keeper = IndexKeeper(gate, SERVICE, self._rebuild)

    async def add(self, report: ReportState, parent_session_id: str | None) -> None:
        """Note a report; again does no harm."""
        await self.keeper.write(lambda redis: _write(redis, [(report, parent_session_id)]))

    async def forget(self, period_ids: Iterable[str], parent_session_id: str | None) -> None:
        """Take out reports that the log has no more: their tree was purged."""
        gone = list(period_ids)
        names = [keys.reports_all(), keys.reports_held()]
        if parent_session_id:
            names.append(keys.reports_of_parent(parent_session_id))
        if gone:
            await self._gate.attempt(lambda redis: _remove(redis, names, gone))

    async def page(
        self, parent_session_id: str | None, after: Place | None, limit: int
    ) -> list[Place] | None:
        """The next places of the list of a parent session, or of all; None where the index is not whole."""
        if self.keeper.doubtful:
            return None
        name = keys.reports_of_parent(parent_session_id) if parent_session_id else keys.reports_all()
        return await self._gate.attempt(lambda redis: self._read(redis, name, after, limit))

    async def sessions(self, period_ids: list[str]) -> list[str | None] | None:
        """The session of each period, as far as it is known."""
        names = [keys.period_session(period_id) for period_id in period_ids]
        found: list[Any] | None = await self._gate.attempt(lambda redis: redis.mget(names))
        return found if found is None else [value.decode() if value else None for value in found]

    async def held(self) -> tuple[int, int | None] | None:
        """How many reports are held, and since when (epoch ms) the oldest; None where the index can't say.

        Cheap, however many there are: the log is asked of the oldest alone, and what is decided is taken out.
        """

        async def look(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=True) as pipe:
                self._gate.look_if_ready(pipe, SERVICE)
                pipe.zcard(keys.reports_held())
                pipe.zrange(keys.reports_held(), 0, _OLDEST - 1, withscores=True)
                return await pipe.execute()

        found = None if self.keeper.doubtful else await self._gate.attempt(look)
        if found is None or not self._gate.was_ready(found[0], found[1]):
            return None
        count, oldest = int(found[2]), [(period.decode(), int(at)) for period, at in found[3]]
        for passed, (period_id, at) in enumerate(oldest):
            if await self._is_held(period_id):
                return count - passed, at
        return count - len(oldest), None

    async def _is_held(self, period_id: str) -> bool:
        report = await self._reports.report(period_id)
        if report is not None and report.state.status is ReportStatus.HELD:
            return True
        await self._gate.attempt(lambda redis: redis.zrem(keys.reports_held(), period_id))
        return False

    async def _read(self, redis: Redis, name: str, after: Place | None, limit: int) -> list[Place] | None:
        """Read in one transaction with the mark that the index is whole: no flush comes in between."""
        score = after[0] if after else "-inf"
        skip = 0
        while True:
            async with redis.pipeline(transaction=True) as pipe:
                self._gate.look_if_ready(pipe, SERVICE)
                pipe.zrangebyscore(name, score, "+inf", start=skip, num=limit, withscores=True)
                *whole, rows = await pipe.execute()
            if not self._gate.was_ready(*whole):
                return None
            places = [(int(at), member.decode()) for member, at in rows]
            found = [place for place in places if after is None or place > after]
            # Redis orders equal scores by member, as Python orders ids: what is left out comes first.
            if found or len(places) < limit:
                return found
            skip += limit

    async def _rebuild(self) -> None:
        batch: list[tuple[ReportState, str | None]] = []
        async for report in self._reports.each(log.REPORT_GUARD_ALL):
            batch.append((report.state, report.parent_session_id))
            if len(batch) == _REBUILD_BATCH:
                await self._write_batch(batch)
                batch = []
        await self._write_batch(batch)

    async def _write_batch(self, batch: list[tuple[ReportState, str | None]]) -> None:
        if batch:
            await self.keeper.write(lambda redis: _write(redis, batch))


async def _write(redis: Redis, reports: list[tuple[ReportState, str | None]]) -> bool:
    async with redis.pipeline(transaction=False) as pipe:
        for report, parent_session_id in reports:
            entry = {report.period_id: report.created_at}
            pipe.set(keys.period_session(report.period_id), report.session_id)
            pipe.zadd(keys.reports_all(), entry)
            if report.status is ReportStatus.HELD:
                pipe.zadd(keys.reports_held(), entry)
            else:
                pipe.zrem(keys.reports_held(), report.period_id)
            if parent_session_id:
                pipe.zadd(keys.reports_of_parent(parent_session_id), entry)
        await pipe.execute()
    return True


async def _remove(redis: Redis, names: list[str], period_ids: list[str]) -> bool:
    async with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zrem(name, *period_ids)
        pipe.delete(*map(keys.period_session, period_ids))
        await pipe.execute()
    return True
