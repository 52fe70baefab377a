"""What the reporter counts."""

from prometheus_client import Counter

REPORTS = Counter("upcall_reports_total", "Decisions on reports", ["status"])
