"""The judge of random trees finds each of the faults that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.blackbox.wire import Json
from tests.session.integration.trees import Child, Judge, Ledger


def ledger() -> Ledger:
    """R's run r spawned C in the background and F in the foreground; C's run c left a shell, F is silent."""
    made = Ledger(root="R")
    made.spawned("R", "r", Child("C", "c", background=True), None)
    made.spawned("R", "r", Child("F", "f", background=False), notify=False)
    made.settled("r", "completed", "Of r.", [])
    made.settled("c", "failed", None, ["shell"])
    made.settled("f", "completed", "Of f.", [])
    return made


def run(run_id: str, session_id: str, period_id: str) -> Json:
    return {"run_id": run_id, "session_id": session_id, "period_id": period_id, "ordinal": 1, "causes": []}


def report(session_id: str, run_id: str, period_id: str, outcome: str = "completed", **more: object) -> Json:
    result = "completed" if outcome == "completed" else "error"
    data: Json = {"session_id": session_id, "runs": [run_id], "period_id": period_id, "outcome": outcome}
    data |= {"answer": None if outcome == "failed" else f"Of {run_id}.", "result": result, "reason": None}
    return {**data, "status": "delivered", "work": [], "pending": [], "for_run": None, **more}


def log() -> list[Json]:
    """What the services should have made of it."""
    silent = {"status": "suppressed", "reason": "silent", "for_run": "r"}
    top = {"status": "suppressed", "reason": "no_parent"}
    children = [{"id": "C", "kind": "session"}, {"id": "F", "kind": "session"}]
    events: list[tuple[str, str, Json]] = [
        *(("run_started", run_id, {}) for run_id in "rcf"),
        ("run_settled", "f", run("f", "F", "pf")),
        ("report_suppressed", "f", report("F", "f", "pf", **silent)),
        ("run_settled", "r", run("r", "R", "pr")),
        ("run_settled", "c", run("c", "C", "pc")),
        ("work_finished", "c", {"work_id": "shell"}),
        ("report_delivered", "c", report("C", "c", "pc", "failed", work=[{"id": "shell", "kind": "shell"}])),
        ("report_suppressed", "r", report("R", "r", "pr", **top, work=children)),
    ]
    return [{"type": type_, "run_id": run_id, "data": data} for type_, run_id, data in events]


def test_what_is_right_is_found_right() -> None:
    Judge(ledger(), log()).judge()


def data(events: list[Json], run_id: str) -> Json:
    return next(e["data"] for e in events if e["run_id"] == run_id and e["type"].startswith("report"))


def swap(events: list[Json], one: int, other: int) -> None:
    events[one], events[other] = events[other], events[one]


FAULTS: dict[str, Callable[[list[Json]], object]] = {
    "a report is lost": lambda events: events.pop(8),
    "a report comes twice": lambda events: events.append(events[8]),
    "before the shell has ended": lambda events: swap(events, 7, 8),
    "before a child has reported": lambda events: swap(events, 8, 9),
    "the shell is not named": lambda events: data(events, "c").update(work=[]),
    "nothing was waited for": lambda events: data(events, "c").update(
        work=[], pending=[{"id": "shell", "kind": "shell"}]
    ),
    "a silent child is told": lambda events: data(events, "f").update(status="delivered", reason=None),
    "a speaking child is not": lambda events: data(events, "c").update(status="suppressed", reason="silent"),
    "a result for nobody": lambda events: data(events, "f").update(for_run=None),
    "an error that looks like a success": lambda events: data(events, "c").update(result="completed"),
    "another answer": lambda events: data(events, "r").update(answer="Of c."),
    "a run that never ends": lambda events: events.pop(6),
    "an end of work that comes twice": lambda events: events.insert(8, events[7]),
    "a report of another period": lambda events: data(events, "c").update(period_id="pr"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_faults_are_found(fault: str) -> None:
    events = log()
    FAULTS[fault](events)
    with pytest.raises((AssertionError, KeyError)):
        Judge(ledger(), events).judge()
