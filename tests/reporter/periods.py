"""Hand-made sessions, runs and periods, as the session service leaves them in the log."""

from typing import Any

from upcall_contracts.log import Entry
from upcall_contracts.records import Outcome, PendingItem, RunRecord, RunStatus, WorkItem, WorkKind
from upcall_contracts.states import ClosedPeriod, HeldPeriod, ReportState, SessionState
from upcall_reporter.decisions import Facts

T0 = 1_800_000_000_000
"""A moment; all times of these tests are counted from it."""

SessionEntry = Entry[SessionState]


def session(session_id: str = "C", **fields: Any) -> SessionState:
    """A child C of P, which is a root."""
    defaults: dict[str, Any] = {
        "parent_session_id": "P",
        "root_session_id": "P",
        "ancestors": ["P"],
        "depth": 1,
        "agent": "explorer",
        "created_at": T0,
        "updated_at": T0,
    }
    return SessionState(session_id=session_id, **{**defaults, **fields})


def top(session_id: str = "P", **fields: Any) -> SessionState:
    """A session without a parent."""
    alone = {"parent_session_id": None, "root_session_id": session_id, "ancestors": [], "depth": 0}
    return session(session_id, **{**alone, **fields})


def run(run_id: str = "C-r1", **fields: Any) -> RunRecord:
    """A settled run of C that a run of P asked for."""
    defaults: dict[str, Any] = {
        "session_id": "C",
        "parent_run_id": "P-r1",
        "parent_session_id": "P",
        "root_session_id": "P",
        "task_id": "T-1",
        "description": "find the tests",
        "agent": "explorer",
        "status": RunStatus.SETTLED,
        "outcome": Outcome.COMPLETED,
        "answer": "They are in tests/.",
    }
    return RunRecord(run_id=run_id, **{**defaults, **fields})


def closed(period_id: str = "C-p1", **fields: Any) -> ClosedPeriod:
    """A period of one run that closed at its settling, 5 s after it had opened."""
    defaults: dict[str, Any] = {
        "run_id": "C-r1",
        "runs": ["C-r1"],
        "outcome": Outcome.COMPLETED,
        "opened_at": T0,
        "closed_at": T0 + 5000,
    }
    return ClosedPeriod(period_id=period_id, **{**defaults, **fields})


def held(period_id: str = "C-p1", **fields: Any) -> HeldPeriod:
    """A period whose first run settled after 2 s and left a shell running."""
    defaults: dict[str, Any] = {
        "run_id": "C-r1",
        "runs": ["C-r1"],
        "outcome": Outcome.COMPLETED,
        "reason": "work_pending",
        "pending": [SHELL],
        "held_since": T0 + 2000,
    }
    return HeldPeriod(period_id=period_id, **{**defaults, **fields})


SHELL = PendingItem(id="W1", kind=WorkKind.SHELL, label="make test")
GRANDCHILD = PendingItem(id="G", kind=WorkKind.SESSION, label="read the docs")
FINISHED = WorkItem(id="W1", kind=WorkKind.SHELL, label="make test", outcome=Outcome.COMPLETED)


def facts(seq: int = 10, *, parent_closed: bool = False, awaited: bool = True, **fields: Any) -> Facts:
    """What is known beside the period; `session` and `run` replace the usual ones."""
    return Facts(
        session=fields.get("session", session()),
        entry_seq=seq,
        run=fields.get("run", run()),
        parent_closed=parent_closed,
        awaited=awaited,
    )


def report(status: str = "held", **fields: Any) -> ReportState:
    """What is stored about C's report, decided from entry 5."""
    defaults: dict[str, Any] = {
        "session_id": "C",
        "ancestors": ["P"],
        "created_at": T0 + 2000,
        "entry_seq": 5,
    }
    if status == "held":
        defaults |= {"reason": "work_pending", "pending": [SHELL]}
    return ReportState.model_validate({"period_id": "C-p1", "status": status, **defaults, **fields})
