"""What a question, a run, a session and a period can become: one table each.

The services hold every decision against these tables before they store it, and `docs/states.md` is drawn from
them. `NOTHING` is where each begins.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .records import QuestionStatus, RunStatus, SessionStatus

NOTHING: Final = "nothing"


class PeriodStatus(StrEnum):
    """Where a period is; its report follows it."""

    OPEN = "open"  # its first run has not settled yet
    HELD = "held"  # a run has settled, and something is still waited for
    CLOSED = "closed"  # its report can be decided
    DELIVERED = "delivered"  # the parent was told
    SUPPRESSED = "suppressed"  # it was decided that nobody is told


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow of a drawing."""

    source: str
    target: str
    by: str
    """What makes it happen, in a few words."""


_Q, _R, _S, _P = QuestionStatus, RunStatus, SessionStatus, PeriodStatus

QUESTION: Final = (
    Transition(NOTHING, _Q.WAITING, "question.ask"),
    Transition(_Q.WAITING, _Q.ANSWERED, "question.answer, stored before expires_at"),
    Transition(_Q.WAITING, _Q.TIMED_OUT, "expires_at"),
    Transition(_Q.WAITING, _Q.CANCELLED, "question.cancel, the end of its run, a cancel of its session"),
    Transition(_Q.WAITING, _Q.ERROR, "the parent closed, or its host is gone"),
)
"""An end is for good: an answer that comes later is kept as a `late` event and changes nothing."""

RUN: Final = (
    Transition(NOTHING, _R.QUEUED, "spawn, continue or wake, hosted by a runner"),
    Transition(NOTHING, _R.RUNNING, "spawn, continue or run.start, hosted by itself"),
    Transition(_R.QUEUED, _R.RUNNING, "run.claim"),
    Transition(_R.QUEUED, _R.SETTLED, "cancelled, or nobody claimed it in time"),
    Transition(_R.RUNNING, _R.INTERRUPTED, "its runner stopped beating"),
    Transition(_R.RUNNING, _R.SETTLED, "run.settle, time limit, grace of a cancel, self host gone"),
    Transition(_R.INTERRUPTED, _R.QUEUED, "next attempt"),
    Transition(_R.INTERRUPTED, _R.SETTLED, "lost after the last attempt, or cancelled"),
)

SESSION: Final = (
    Transition(NOTHING, _S.IDLE, "session.open"),
    Transition(NOTHING, _S.BUSY, "session.spawn"),
    Transition(_S.IDLE, _S.BUSY, "a run starts"),
    Transition(_S.BUSY, _S.IDLE, "the run settles, and its host has let go"),
    Transition(_S.IDLE, _S.CLOSED, "session.close"),
    Transition(_S.BUSY, _S.CLOSED, "session.close"),
)

PERIOD: Final = (
    Transition(NOTHING, _P.OPEN, "a run starts on a session without an open period"),
    Transition(_P.OPEN, _P.HELD, "a run settles while something is still waited for"),
    Transition(_P.OPEN, _P.CLOSED, "a run settles and the session is quiet, or it was in the foreground"),
    Transition(_P.HELD, _P.CLOSED, "quiet, report.release, the bound, cancel, close, a foreground run"),
    Transition(_P.CLOSED, _P.DELIVERED, "the reporter: the parent's inbox has it"),
    Transition(_P.CLOSED, _P.SUPPRESSED, "the reporter: no parent, parent closed, or silent"),
)

TABLES: Final = {"question": QUESTION, "run": RUN, "session": SESSION, "period": PERIOD}


def allowed(table: tuple[Transition, ...], source: str, target: str) -> bool:
    """Whether the table has the step; staying where one is, is no step."""
    return source == target or any((t.source, t.target) == (source, target) for t in table)


def drawing(table: tuple[Transition, ...]) -> str:
    """The table as a Mermaid state diagram."""
    targets, sources = {t.target for t in table}, {t.source for t in table}
    lines = ["stateDiagram-v2"]
    for t in table:
        source = "[*]" if t.source == NOTHING else t.source
        lines.append(f"    {source} --> {t.target}: {t.by}")
    lines += [
        f"    {end} --> [*]" for end in dict.fromkeys(t.target for t in table) if end in targets - sources
    ]
    return "\n".join(lines)


def page() -> str:
    """`docs/states.md`, whole."""
    parts = [
        "# States",
        "",
        "Drawn from the tables in `contracts/upcall_contracts/transitions.py`, which the services hold every",
        "decision against; `make schemas` draws it anew.",
        "",
    ]
    for name, table in TABLES.items():
        parts += [f"## A {name}", "", "```mermaid", drawing(table), "```", ""]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
