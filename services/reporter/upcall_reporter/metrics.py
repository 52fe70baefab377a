"""What the reporter counts."""

from prometheus_client import Counter, Gauge, Histogram

from upcall_contracts.records import ReportStatus

from .decisions import Decision

REPORTS = Counter("upcall_reports_total", "Decisions on reports", ["status"])
SUPPRESSED = Counter(
    "upcall_reports_suppressed_total", "Reports that nobody was told of, and why", ["reason"]
)
HELD_FOR = Histogram(
    "upcall_report_held_seconds",
    "How long a report was held, from the first settled run to its decision",
    buckets=(0.1, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200),
)

# Of the whole deployment, as every instance reads it: take the max, not the sum.
HELD = Gauge("upcall_reports_held", "Reports that are held for what still runs")
OLDEST = Gauge("upcall_report_oldest_held_seconds", "Age of the oldest held report; 0 if there is none")


def count(decision: Decision) -> None:
    """Count a decision that was stored."""
    state = decision.entry.state
    REPORTS.labels(state.status.value).inc()
    if state.status is ReportStatus.SUPPRESSED:
        SUPPRESSED.labels(state.reason or "").inc()
    if state.status is not ReportStatus.HELD:
        HELD_FOR.observe(decision.entry.data.get("held_ms", 0) / 1000)
