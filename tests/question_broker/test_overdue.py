"""Deadlines that JetStream did not carry out: looked after by those who know of them."""

import pytest

from tests.question_broker.place import Place
from tests.question_broker.world import World
from upcall_contracts import streams
from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_question_broker.overdue import Overdue
from upcall_shell.delivery import Again
from upcall_shell.errors import Unavailable

GRACE = 5_000


class Clock:
    """JetStream's clock, in epoch ms."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.away = False

    async def __call__(self) -> int:
        if self.away:
            raise Unavailable("away")
        return self.now


class Deadlines:
    """What is carried out, and what comes of it."""

    def __init__(self, outcome: Again | None = None) -> None:
        self.outcome = outcome
        self.done: list[tuple[str, str, int]] = []

    async def __call__(self, request_id: str, run_id: str, at: int) -> Again | None:
        self.done.append((request_id, run_id, at))
        return self.outcome


def question(
    request_id: str, expires_at: int, status: QuestionStatus = QuestionStatus.WAITING
) -> QuestionRecord:
    return QuestionRecord(
        request_id=request_id, status=status, expires_at=expires_at, child_run_id=f"R-{request_id}"
    )


@pytest.mark.parametrize(
    ("late_ms", "carried_out"),
    [(-1, False), (0, False), (GRACE - 1, False), (GRACE, True), (10 * GRACE, True)],
    ids=["before its time", "on time", "still the timer's business", "overdue", "long overdue"],
)
async def test_what_is_overdue_by_jetstreams_clock(late_ms: int, carried_out: bool) -> None:
    """This machine's clock is far ahead: it ends nothing before its time."""
    overdue, deadlines = Overdue(Clock(1_000 + late_ms), GRACE), Deadlines()
    overdue.note(question("Q", 1_000))
    await overdue.look(deadlines)
    assert deadlines.done == ([("Q", "R-Q", 1_000 + late_ms)] if carried_out else [])


async def test_what_has_ended_is_forgotten() -> None:
    overdue, deadlines = Overdue(Clock(10**9), GRACE), Deadlines()
    overdue.note(question("Q", 1))
    overdue.note(question("Q", 1, QuestionStatus.ANSWERED))
    await overdue.look(deadlines)
    assert deadlines.done == []


async def test_what_was_carried_out_is_not_carried_out_again() -> None:
    overdue, deadlines = Overdue(Clock(10**9), GRACE), Deadlines()
    overdue.note(question("Q", 1))
    for _ in range(3):
        await overdue.look(deadlines)
    assert len(deadlines.done) == 1


async def test_what_has_to_wait_is_looked_at_again() -> None:
    """An answer that was stored in time is still to be handled."""
    overdue, deadlines = Overdue(Clock(10**9), GRACE), Deadlines(Again(50))
    overdue.note(question("Q", 1))
    for _ in range(3):
        await overdue.look(deadlines)
    assert len(deadlines.done) == 3


async def test_while_jetstream_is_away_it_waits() -> None:
    clock, deadlines = Clock(10**9), Deadlines()
    overdue = Overdue(clock, GRACE)
    overdue.note(question("Q", 1))
    clock.away = True
    await overdue.look(deadlines)
    assert deadlines.done == []
    clock.away = False
    await overdue.look(deadlines)
    assert len(deadlines.done) == 1


@pytest.mark.xdist_group("question_broker")
@pytest.mark.slow  # waits for longer than a timer is late
async def test_a_question_whose_deadline_is_lost_times_out_all_the_same(w: World, place: Place) -> None:
    """One while the broker that accepted it lives, and one whose brokers have all been started anew."""
    parent = await w.top()
    lost = await (await w.child(parent)).ask(timeout_ms=1_000)
    await w.js.purge_stream(
        streams.TIMERS, subject=streams.question_timer(lost["child_run_id"], lost["request_id"])[0]
    )
    await w.until_ended(lost["request_id"], "timed_out")
    lost = await (await w.child(parent)).ask(timeout_ms=1_000)
    await w.js.purge_stream(
        streams.TIMERS, subject=streams.question_timer(lost["child_run_id"], lost["request_id"])[0]
    )
    for broker in place.brokers:
        broker.kill()
    await place.again(*place.brokers)
    await w.until_ended(lost["request_id"], "timed_out")
