"""What the session service counts."""

from prometheus_client import Counter, Gauge, Histogram

from upcall_contracts.events import EventType
from upcall_contracts.records import Host, RunRecord
from upcall_contracts.states import SessionState

from .decisions.results import Decided

STARTED = Counter("upcall_runs_started_total", "Runs that began, by what started them", ["trigger"])
SETTLED = Counter("upcall_runs_settled_total", "Runs that settled, by outcome", ["outcome"])
INTERRUPTED = Counter("upcall_runs_interrupted_total", "Runs whose holder stopped beating")
GONE = Counter("upcall_hosts_gone_total", "Hosts whose lease passed")
PERIODS = Counter("upcall_periods_closed_total", "Periods that closed, held before or not", ["held"])
PURGED = Counter("upcall_sessions_purged_total", "Sessions that were forgotten")
RAN = Histogram(
    "upcall_run_seconds",
    "From the first holder to the settling",
    ["outcome"],
    buckets=(1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
)

QUEUED = Histogram(
    "upcall_run_queue_seconds",
    "How long a run was queued before its first runner took it",
    buckets=(0.01, 0.1, 1, 5, 15, 60, 300, 600, 1800),
)
DISPATCHED = Gauge(
    "upcall_dispatch_waiting",
    "Dispatches that no runner has taken yet, of the 100 agents that have most; of the whole deployment, as "
    "every instance reads it: take the max, not the sum",
    ["agent"],
)


def count(before: SessionState | None, decided: Decided) -> None:
    """Count a decision that was stored."""
    state, run = decided.state, decided.state.run
    if run is not None and state.runs > (before.runs if before is not None else 0):
        STARTED.labels(run.trigger.value).inc()
    if state.closed_period is not None:
        PERIODS.labels("yes" if state.closed_period.held_since is not None else "no").inc()
    if decided.type == EventType.RUN_STARTED and isinstance(decided.data, RunRecord):
        _count_start(decided.data, state.host)
    if decided.type == EventType.RUN_INTERRUPTED:
        INTERRUPTED.inc()
    if decided.type == EventType.RUN_SETTLED and isinstance(decided.data, RunRecord):
        _count_end(decided.data)


def _count_start(run: RunRecord, host: Host) -> None:
    if host is Host.RUNNER and run.attempt == 1 and run.queued_at is not None and run.started_at is not None:
        QUEUED.observe(max(0, run.started_at - run.queued_at) / 1000)


def _count_end(run: RunRecord) -> None:
    outcome = run.outcome.value if run.outcome is not None else ""
    SETTLED.labels(outcome).inc()
    if run.started_at is not None and run.settled_at is not None:
        RAN.labels(outcome).observe((run.settled_at - run.started_at) / 1000)
