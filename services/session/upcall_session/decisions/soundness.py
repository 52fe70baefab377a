"""No decision takes a session where the tables have no arrow: held against them before it is stored.

`transitions.py` of the contracts has the tables. What is found here is a fault of ours and never a refusal:
the message is parked, and the log stays as it was.
"""

from upcall_contracts.records import RunStatus
from upcall_contracts.states import Period, SessionState
from upcall_contracts.transitions import NOTHING, PERIOD, RUN, SESSION, PeriodStatus, Transition, allowed

Step = tuple[str, tuple[Transition, ...], str, str]


def unsound(before: SessionState | None, after: SessionState) -> list[str]:
    """The steps from one state to the next that no table has, in words; empty when all is well."""
    steps: list[Step] = [
        ("session", SESSION, before.status.value if before else NOTHING, after.status.value),
        *_run_steps(before, after),
        *_period_steps(before, after),
    ]
    return [f"{name}: {a} to {b}" for name, table, a, b in steps if not allowed(table, a, b)]


def _run_steps(before: SessionState | None, after: SessionState) -> list[Step]:
    was, now = before.run if before else None, after.run
    steps: list[Step] = []
    if was is not None and (now is None or now.run_id != was.run_id):
        steps.append(("run", RUN, was.status.value, RunStatus.SETTLED.value))
        was = None
    if now is not None:
        steps.append(("run", RUN, was.status.value if was else NOTHING, now.status.value))
    return steps


def _period_steps(before: SessionState | None, after: SessionState) -> list[Step]:
    was, now = before.period if before else None, after.period
    steps: list[Step] = []
    if was is not None and (now is None or now.period_id != was.period_id):
        steps.append(("period", PERIOD, _period(was), PeriodStatus.CLOSED.value))
        was = None
    if now is not None:
        steps.append(("period", PERIOD, _period(was) if was else NOTHING, _period(now)))
    return steps


def _period(period: Period) -> str:
    return (PeriodStatus.OPEN if period.held_since is None else PeriodStatus.HELD).value
