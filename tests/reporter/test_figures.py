"""The gauges of held reports, and the counters of what became of reports."""

from prometheus_client import REGISTRY

from upcall_contracts import keys

from .deployment import Deployment, eventually
from .periods import closed, held, session

LONG_AGO = 1_700_000_000_000


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def _until(name: str, wanted: float) -> None:
    async def look() -> float:
        return sample(name)

    await eventually(look, lambda seen: seen == wanted)


async def test_held_reports_are_counted_until_they_are_decided(d: Deployment) -> None:
    """Whatever the index has lost or kept: it is read again from the log, and checked against it."""
    async with d.reporter():
        await d.holds(held("C-p1", held_since=LONG_AGO))
        await d.holds(held("D-p1", run_id="D-r1", held_since=LONG_AGO + 60_000), session("D"))
        await _until("upcall_reports_held", 2)
        oldest = sample("upcall_report_oldest_held_seconds")

        await d.closes(closed("C-p1"))
        await _until("upcall_reports_held", 1)
        assert 0 < sample("upcall_report_oldest_held_seconds") < oldest

        await d.redis.flushall()
        await _until("upcall_reports_held", 1)
        await d.redis.zadd(keys.reports_held(), {"C-p1": 1, "gone": 2})  # decided; purged
        await eventually(lambda: d.redis.zcard(keys.reports_held()), lambda count: count == 1)

        await d.closes(closed("D-p1", run_id="D-r1"), session("D"))
        await _until("upcall_reports_held", 0)
        await _until("upcall_report_oldest_held_seconds", 0)


async def test_suppressed_reports_are_counted_by_reason(d: Deployment) -> None:
    silent = sample("upcall_reports_suppressed_total", reason="silent")
    decided = sample("upcall_report_held_seconds_count")
    async with d.reporter():
        await d.closes(closed("C-p1", notify=False))
        await d.decided("C-p1")
        await d.caught_up()
    assert sample("upcall_reports_suppressed_total", reason="silent") == silent + 1
    assert sample("upcall_report_held_seconds_count") == decided + 1
