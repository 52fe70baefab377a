"""What the broker counts."""

from prometheus_client import Counter, Gauge, Histogram

from .decisions.outcomes import Decided

ASKED = Counter("upcall_questions_asked_total", "Questions accepted")
ENDS = Counter("upcall_question_ends_total", "Ends of questions by kind", ["status"])
LATE = Counter("upcall_late_answers_total", "Answers that came after the end")
WAITED = Histogram(
    "upcall_question_wait_seconds",
    "From the ask to the end",
    ["status"],
    buckets=(0.01, 0.1, 1, 5, 15, 60, 300, 1800, 3600, 14400, 86400),
)

# Of the whole deployment, as every instance reads it: take the max, not the sum.
OPEN = Gauge("upcall_questions_open", "Questions that wait for an answer")
OLDEST = Gauge("upcall_question_oldest_open_seconds", "Age of the oldest open question; 0 if there is none")


def count_end(decided: Decided, now: int) -> None:
    """Count a decision that was stored; `now` is its time in epoch ms."""
    match decided.event:
        case "requested":
            ASKED.inc()
        case "late":
            LATE.inc()
        case status:
            ENDS.labels(status).inc()
            WAITED.labels(status).observe(max(0, now - (decided.record.created_at or now)) / 1000)
