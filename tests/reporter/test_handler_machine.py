"""The handler of many instances at once, stopped and killed between any two of its steps.

The real handler runs against a log in memory; each of its reads and writes is a step of its own, and
hypothesis decides who takes the next one. What has to come out is known here from sections 6 and 7 of the
design alone: one decided report a closed period, whatever is delivered when, how often, and to whom.
"""

import os
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from upcall_contracts.log import Note, session_event, session_note
from upcall_contracts.records import PendingItem, RunRecord
from upcall_contracts.states import ClosedPeriod, HeldPeriod, ReportState
from upcall_reporter.decisions import Decision
from upcall_reporter.handlers import PeriodHandler
from upcall_reporter.ports import Report, SaidBySession
from upcall_shell.errors import Conflict
from upcall_shell.redis_gate import RedisGate

from .periods import GRANDCHILD, SHELL, T0, SessionEntry, closed, held, run, session

PERIOD = "C-p1"
REASONS = ["run_active", "work_pending", "children_pending", "items_waiting"]
ENTRIES = 4
AT_ONCE = 3
"""Small numbers: what can go wrong goes wrong between few, and is found sooner."""
PENDING: list[list[PendingItem]] = [[], [SHELL], [SHELL, GRANDCHILD]]


class _Step:
    """What the handler awaits before each read and write: here another one may come first."""

    def __await__(self) -> Generator[None]:
        yield


@dataclass
class MemoryLog:
    """The log and the index, for one session C, its parent P, and the report of one period."""

    said: list[SaidBySession] = field(default_factory=list[SaidBySession])
    reports: list[Decision] = field(default_factory=list[Decision])
    parent_closed: bool = False
    indexed: set[str] = field(default_factory=set[str])

    async def report(self, period_id: str) -> Report | None:
        await _Step()
        assert period_id == PERIOD
        last = self.reports[-1].entry if self.reports else None
        return Report(len(self.reports), last.state, last.data) if last else None

    async def run(self, session_id: str, run_id: str) -> RunRecord | None:
        await _Step()
        return run(run_id, session_id=session_id)

    async def is_active(self, session_id: str | None, run_id: str) -> bool:
        await _Step()
        return session_id == "P" and bool(run_id)

    async def is_closed(self, session_id: str | None) -> bool:
        await _Step()
        assert session_id == "P"
        return self.parent_closed

    async def later(self, said: SaidBySession, period_id: str) -> SaidBySession | None:
        await _Step()
        assert period_id == PERIOD
        return next((other for other in self.said if other.seq > said.seq), None)

    async def append(self, period_id: str, decision: Decision, expected: int) -> None:
        await _Step()
        if len(self.reports) != expected:
            first = self.reports[expected].entry
            if first.event_id != decision.entry.event_id:
                raise Conflict(period_id, expected)
            return
        self.reports.append(decision)
        await _Step()  # stored, and the answer is still on its way

    async def add(self, report: ReportState, parent_session_id: str | None) -> None:
        await _Step()
        assert parent_session_id == "P"
        self.indexed.add(report.period_id)


@dataclass
class InHand:
    """A delivery that an instance is at work on."""

    said: SaidBySession
    work: Coroutine[None, None, None]

    def step(self) -> bool:
        """Go on until the next read or write; False once it is done."""
        try:
            self.work.send(None)
        except StopIteration:
            return False
        return True


class Reporting(RuleBasedStateMachine):
    """One period from its opening on, and all deliveries that come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryLog()
        self.handler = PeriodHandler(self.log, self.log, RedisGate("redis://127.0.0.1:1"))
        self.in_hand: list[InHand] = []
        self.unacknowledged: list[SaidBySession] = []
        self.closing: ClosedPeriod | None = None
        self.parent_closed_first = False

    # What the session service writes

    def _say(self, period: ClosedPeriod | HeldPeriod, *, settled: bool) -> None:
        if isinstance(period, ClosedPeriod):
            state = session(closed_period=period)
        else:
            state = session(held_period=period)
        about = (
            session_event("C", "C-r1", "lifecycle", "1", "settled", "P-r1", "P")
            if settled
            else session_note("C", Note.NOTED)
        )
        entry = SessionEntry(
            event_id=f"e{len(self.log.said)}",
            type="run_settled" if settled else "note",
            time=T0,
            run_id="C-r1" if settled else "",
            session_id="C",
            data=run().to_wire() if settled else {},
            state=state,
        )
        said = SaidBySession(10 + 3 * len(self.log.said), about, entry)
        self.log.said.append(said)
        self.unacknowledged.append(said)

    @precondition(lambda self: self.closing is None and len(self.log.said) < ENTRIES)
    @rule(reason=st.sampled_from(REASONS), pending=st.sampled_from(PENDING), settled=st.booleans())
    def hold(self, reason: str, pending: list[PendingItem], settled: bool) -> None:
        self._say(held(reason=reason, pending=pending), settled=settled)

    @precondition(lambda self: self.closing is None)
    @rule(notify=st.booleans(), wakes=st.booleans(), foreground=st.booleans(), settled=st.booleans())
    def close(self, notify: bool, wakes: bool, foreground: bool, settled: bool) -> None:
        was_held = any(said.entry.state.held_period for said in self.log.said)
        self.closing = closed(
            notify=notify,
            wakes=wakes,
            for_run="P-r1" if foreground else None,
            held_since=T0 + 2000 if was_held else None,
        )
        self.parent_closed_first = self.log.parent_closed
        self._say(self.closing, settled=settled)

    @precondition(lambda self: not self.log.parent_closed)
    @rule()
    def close_parent(self) -> None:
        self.log.parent_closed = True

    # What happens to deliveries

    @precondition(lambda self: self.log.said and len(self.in_hand) < AT_ONCE)
    @rule(data=st.data(), again=st.booleans())
    def deliver(self, data: st.DataObject, again: bool) -> None:
        """Any entry, also one that is in hand elsewhere or was acknowledged long ago."""
        said = data.draw(st.sampled_from(self.log.said if again else self.unacknowledged or self.log.said))
        self.in_hand.append(InHand(said, self.handler.carry_out(said)))

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), steps=st.sampled_from([1, 2, 3, 4, 20]))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        delivery = data.draw(st.sampled_from(self.in_hand))
        for _ in range(steps):
            if not delivery.step():
                self._acknowledge(delivery)
                return

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        """An instance dies; nothing of what it had in hand is acknowledged."""
        delivery = data.draw(st.sampled_from(self.in_hand))
        delivery.work.close()
        self.in_hand.remove(delivery)

    def _acknowledge(self, delivery: InHand) -> None:
        self.in_hand.remove(delivery)
        if delivery.said in self.unacknowledged:
            self.unacknowledged.remove(delivery.said)

    # What must hold

    @invariant()
    def nothing_follows_a_decision(self) -> None:
        statuses = [decision.entry.state.status for decision in self.log.reports]
        assert all(status == "held" for status in statuses[:-1]), statuses

    @invariant()
    def a_decision_needs_a_closed_period(self) -> None:
        if self.log.reports and self.log.reports[-1].entry.state.status != "held":
            assert self.closing is not None

    @invariant()
    def holds_move_forward_and_each_says_something_new(self) -> None:
        holds = [d.entry.state for d in self.log.reports if d.entry.state.status == "held"]
        for before, after in pairwise(holds):
            assert before.entry_seq < after.entry_seq
            assert (before.reason, before.pending) != (after.reason, after.pending)

    @invariant()
    def its_place_in_a_list_never_changes(self) -> None:
        assert len({decision.entry.state.created_at for decision in self.log.reports}) <= 1

    @invariant()
    def what_is_acknowledged_is_in_the_index(self) -> None:
        if len(self.unacknowledged) < len(self.log.said):
            assert self.log.indexed == {PERIOD}

    def teardown(self) -> None:
        """All instances are restarted, and what was not acknowledged is delivered again."""
        for delivery in self.in_hand:
            delivery.work.close()
        for said in reversed(self.unacknowledged):
            delivery = InHand(said, self.handler.carry_out(said))
            while delivery.step():
                pass
        if self.closing is not None:
            self._check_the_end(self.closing)
        elif self.log.said:
            newest = self.log.said[-1].entry.state.held_period
            assert newest is not None
            stands = self.log.reports[-1].entry.state
            assert (stands.status, stands.reason, stands.pending) == ("held", newest.reason, newest.pending)

    def _check_the_end(self, closing: ClosedPeriod) -> None:
        decided = [d.entry for d in self.log.reports if d.entry.state.status != "held"]
        assert len(decided) == 1
        state, item = decided[0].state, decided[0].item
        if self.parent_closed_first:
            assert (state.status, state.reason) == ("suppressed", "parent_closed")
        elif not self.log.parent_closed:
            assert state.reason == (None if closing.notify else "silent")
        assert (item is not None) is (state.status == "delivered")
        if item is not None:
            assert item.wakes is (closing.wakes and closing.for_run is None)


EXAMPLES = int(os.environ.get("UPCALL_EXAMPLES", "100"))
TestReporting = Reporting.TestCase
TestReporting.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
