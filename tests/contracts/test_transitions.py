"""The tables of transitions: what they allow, and that they cover the records' own values."""

from enum import StrEnum

import pytest

from upcall_contracts import transitions as t
from upcall_contracts.records import QuestionStatus, RunStatus, SessionStatus


@pytest.mark.parametrize(
    ("table", "statuses"),
    [
        (t.QUESTION, QuestionStatus),
        (t.RUN, RunStatus),
        (t.SESSION, SessionStatus),
        (t.PERIOD, t.PeriodStatus),
    ],
)
def test_a_table_knows_every_status(table: tuple[t.Transition, ...], statuses: type[StrEnum]) -> None:
    """A status that no arrow leads to could never be reached."""
    assert {arrow.target for arrow in table} == {str(status) for status in statuses}


@pytest.mark.parametrize(
    ("table", "source", "target", "allowed", "meaning"),
    [
        (t.QUESTION, "waiting", "answered", True, "the way it should be"),
        (t.QUESTION, "timed_out", "answered", False, "an end is for good"),
        (t.QUESTION, "answered", "answered", True, "a late answer leaves it where it is"),
        (t.RUN, "settled", "running", False, "a settled run never runs again: its session gets a new one"),
        (t.RUN, "running", "queued", False, "a lost holder shows as interrupted first"),
        (t.SESSION, "closed", "idle", False, "closed is for good"),
        (t.PERIOD, "delivered", "suppressed", False, "one report a period"),
        (t.PERIOD, "open", "delivered", False, "a report is decided from a closed period only"),
    ],
)
def test_steps(
    table: tuple[t.Transition, ...], source: str, target: str, allowed: bool, meaning: str
) -> None:
    """Each row says what would be wrong otherwise."""
    assert t.allowed(table, source, target) is allowed, meaning
