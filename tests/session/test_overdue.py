"""Deadlines that did not fire are carried out all the same, and none before its time."""

from __future__ import annotations

import pytest

from upcall_session.overdue import Overdue
from upcall_shell.errors import Unavailable

LONG_AGO, NOW = 1_000_000, 1_010_000


def overdue(now: int = NOW) -> Overdue:
    async def clock() -> int:
        return now

    return Overdue(clock, grace_ms=5_000)


@pytest.mark.parametrize(
    ("at", "fired", "why"),
    [
        (NOW - 5_000, True, "five seconds late by JetStream's clock"),
        (NOW - 4_999, False, "it may be on its way"),
        (NOW + 1, False, "it is not due"),
    ],
)
async def test_what_is_overdue(at: int, fired: bool, why: str) -> None:
    found: list[tuple[str, str, int]] = []

    async def fire(session_id: str, kind: str, now: int) -> None:
        found.append((session_id, kind, now))

    late = overdue()
    late.note("S", "hold", at)
    await late.look(fire)
    assert found == ([("S", "hold", NOW)] if fired else []), why
    await late.look(fire)
    assert len(found) == int(fired), "once is enough"


async def test_deadline_that_has_moved_is_not_overdue() -> None:
    late = overdue()
    late.note("S", "hold", LONG_AGO)
    late.note("S", "hold", NOW)

    async def fire(*_: object) -> None:
        raise AssertionError

    await late.look(fire)


async def test_what_could_not_be_carried_out_is_tried_again() -> None:
    late = overdue()
    late.note("S", "hold", LONG_AGO)
    tries: list[str] = []

    async def fire(session_id: str, kind: str, now: int) -> None:
        tries.append(kind)
        if len(tries) == 1:
            raise Unavailable("nobody there")

    await late.look(fire)
    await late.look(fire)
    await late.look(fire)
    assert tries == ["hold", "hold"]
