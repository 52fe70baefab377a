"""Any order of commands, reports, deaths and deadlines over a tree of sessions, held against a model.

The model knows sections 4 to 6 of the design and nothing of the states: it reads the entries as any reader
would, and says after each whether it may be there, and after each step whether one is missing.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.session.world import World
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host, RunRecord, Trigger, WorkRecord
from upcall_contracts.states import ClosedPeriod
from upcall_session.decisions.liveness import is_leased
from upcall_session.decisions.results import Decided

OUTCOMES = st.sampled_from(["completed", "failed", "cancelled", "halted", "timed_out"])
RUNNERS = st.sampled_from(["runner-1", "runner-2"])


@dataclass
class Busy:
    """What the model knows of one session."""

    parent: str | None
    host: str
    active: str | None = None
    foreground: bool = False
    open: bool = False
    settled: list[str] = field(default_factory=list)
    since: int | None = None
    """When the first run of the period settled and it stayed open."""
    work: dict[str, str] = field(default_factory=dict)
    """Work of the open period that runs: work_id and kind."""
    kids: set[str] = field(default_factory=set)
    """Runs of children that were asked for in the open period and are not reported."""
    early: set[str] = field(default_factory=set)
    cancelled: bool = False
    """Its active run was asked to end."""
    closed: bool = False
    blocked: bool = False
    """It was cancelled, and wakes only when it has been continued."""


class Sessions(RuleBasedStateMachine):
    """One tree, and everybody who works in it."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.w = World(on_entry=self.on_entry)
        self.model: dict[str, Busy] = {}
        self.left: dict[str, dict[str, str]] = {}
        self.period_of: dict[str, str] = {}
        """The closed period of each settled run."""
        self.causes: dict[str, str] = {}
        self.excused: set[str] = set()
        """Sessions whose period this step may close without their being quiet."""
        self.unwaking: set[str] = set()
        """Sessions whose period this step closes by a cancel or a close."""
        self.asked_for: dict[str, str] = {}
        """By child: the run that a parent's entry was about."""
        self.questions: list[tuple[str, str]] = []
        self.names = itertools.count(1)
        self.steps = 0
        self.failed = False
        """The model has met what may not be: there is nothing more to be learned from this run."""

    # The model reads what was decided

    def allow(self, *, excused: set[str] | None = None, unwaking: set[str] | None = None) -> None:
        """What the step that comes next may close."""
        self.excused, self.unwaking = excused or set(), unwaking or set()

    def look(self) -> None:
        """After a step: nothing is missing."""
        for session_id in list(self.w.states):
            self.look_at_questions(session_id)
        for session_id, busy in self.model.items():
            assert not self.is_quiet(session_id), f"{session_id} is quiet and its period is open: {busy}"
        self.allow()

    def look_at_questions(self, session_id: str) -> None:
        """The end of a question is no entry of its parent, which looks again every second."""
        over = [
            item_id
            for item_id, slot in self.w.slots(session_id).items()
            if slot.question_of is not None and not slot.handled and not self.w.is_asking(slot.question_of)
        ]
        for item_id in over:
            self.w.end_question(session_id, item_id)

    def on_entry(self, entry: Decided) -> None:
        """As soon as it is stored: the inbox is as it was in this moment."""
        if not self.failed:
            self.failed = True
            self.read_entry(entry)
            self.failed = False

    def read_entry(self, entry: Decided) -> None:
        session_id = entry.state.session_id
        busy = self.model.setdefault(session_id, Busy(entry.state.parent_session_id, entry.state.host.value))
        assert not busy.closed or entry.state.closed_period is None
        if isinstance(entry.data, RunRecord):
            at_once = entry.type == "run_settled" and (busy.foreground or busy.cancelled)
            assert not at_once or entry.state.closed_period is not None, "it closes at this settling"
            self.read_run(busy, entry.type, entry.data)
        elif isinstance(entry.data, WorkRecord):
            self.read_work(busy, entry.data)
        tokens = entry.subject.split(".")
        if tokens[3] == "child" and busy.open:
            busy.kids.add(self.asked_for[tokens[4]])
        if tokens[3] == "counted":
            assert self.w.counting is not None
            busy.kids -= set(self.w.counting.runs)
        if tokens[3] == "closed":
            busy.closed = True
        if entry.state.closed_period is not None:
            self.read_closing(session_id, busy, entry.state.closed_period, entry.state.updated_at)
        held = entry.state.held_period
        if held is not None:
            assert busy.open
            assert held.runs == busy.settled
            busy.since = busy.since if busy.since is not None else entry.state.updated_at
            assert {p.id for p in held.pending if p.kind != "session"} == set(busy.work)

    def read_run(self, busy: Busy, type_: str, run: RunRecord) -> None:
        match type_:
            case "run_queued" | "run_started" if busy.active is None:
                assert not busy.closed
                assert run.outcome is None
                assert run.answer is None
                busy.active, busy.foreground, busy.cancelled = run.run_id, not run.background, False
                assert not (busy.foreground and busy.open), "a foreground run first closes the open period"
                busy.open = True
                assert not (run.trigger is Trigger.WAKE and busy.blocked), "a cancelled session woke"
                busy.blocked = busy.blocked and run.trigger is Trigger.WAKE
                for cause in run.causes:
                    assert cause not in self.causes, f"{cause} is the cause of two runs"
                    self.causes[cause] = run.run_id
            case "run_queued" | "run_started" | "run_interrupted":
                assert busy.active == run.run_id, "a session has at most one active run"
            case "run_cancel_requested":
                busy.cancelled = True
            case "run_backgrounded":
                busy.foreground = False
            case "run_settled":
                assert busy.active == run.run_id, "a run settles once"
                busy.active = None
                busy.settled.append(run.run_id)
                busy.work |= self.left.pop(run.run_id, {})
                busy.early = set()
            case _:
                raise AssertionError(type_)

    def read_work(self, busy: Busy, record: WorkRecord) -> None:
        assert record.outcome is not None
        busy.work.pop(record.work_id, None)

    def read_closing(self, session_id: str, busy: Busy, closed: ClosedPeriod, at: int) -> None:
        """A closed period has its runs, all settled, and a reason to be closed."""
        assert busy.open
        assert closed.runs == busy.settled, "the runs of a period are those that settled in it"
        assert closed.runs
        assert closed.run_id == closed.runs[-1]
        for run_id in closed.runs:
            assert run_id not in self.period_of, "a run is reported once"
            self.period_of[run_id] = closed.period_id
        foreground = busy.foreground and busy.active is None
        held_out = busy.since is not None and busy.since + self.w.rules.max_hold_ms <= at
        by_cancel = (busy.cancelled and busy.active is None) or session_id in self.unwaking
        excused = session_id in self.excused or foreground or held_out or by_cancel
        assert excused or self.is_quiet(session_id), f"{session_id} is not quiet: {busy}"
        assert closed.wakes is not by_cancel, "what a cancel or a close reports wakes nobody"
        cancelled = set(closed.cancelled)
        assert {p.id for p in closed.pending if p.kind != "session"} == set(busy.work)
        assert not cancelled & {p.id for p in closed.pending}
        active = busy.active
        busy.settled, busy.since, busy.work, busy.kids = [], None, {}, set()
        busy.open, busy.foreground = active is not None, False
        busy.cancelled = False if active is None else busy.cancelled

    def is_quiet(self, session_id: str) -> bool:
        busy = self.model[session_id]
        return (
            busy.open
            and busy.active is None
            and not busy.work
            and not busy.kids
            and not self.waking(session_id)
        )

    def waking(self, session_id: str) -> list[str]:
        """Waking items that nobody has taken."""
        return [item_id for item_id, slot in self.w.waking(session_id).items() if not slot.taken]

    # What is there to begin with

    @initialize(target=sessions)
    def open_root(self) -> str:
        self.w.open("root", lease_ms=1_000)
        self.look()
        return "root"

    # Hosts

    @rule(session=sessions, causes=st.booleans())
    def start(self, session: str, causes: bool) -> None:
        state = self.w.states[session]
        items = [i for i, s in self.w.slots(session).items() if not s.handled] if causes else []
        decision = self.w.start(session, causes=items, task="Go.")
        busy = state.run is not None or state.letting_go is not None
        if state.closed_at is None and state.host is Host.SELF:
            assert isinstance(decision, Refusal) is busy
        else:
            assert isinstance(decision, Refusal)
        self.look()

    @rule(session=sessions, runner=RUNNERS)
    def claim(self, session: str, runner: str) -> None:
        ids = [r.run_id for r in self.w.runs.values() if r.session_id == session]
        if ids:
            self.w.claim(session, runner, run_id=ids[-1])
        self.look()

    @precondition(lambda self: any(s.run is not None for s in self.w.states.values()))
    @rule(session=sessions, count=st.integers(1, 3))
    def append(self, session: str, count: int) -> None:
        state = self.w.states[session]
        if state.run is None:
            return
        before = len(self.w.history.get(session, []))
        messages = [{"role": "assistant", "content": f"{n}"} for n in range(count)]
        decision = self.w.append(session, messages=messages)
        after = [m["index"] for m in self.w.history[session]]
        grown = count if isinstance(decision, Decided) else 0
        assert after == list(range(1, before + grown + 1))
        assert self.w.states[session].history_seq == before + grown
        self.look()

    @rule(
        session=sessions,
        outcome=OUTCOMES,
        shells=st.integers(0, 2),
        others=st.integers(0, 1),
        wakes=st.booleans(),
        early=st.booleans(),
    )
    def settle(self, session: str, outcome: str, shells: int, others: int, wakes: bool, early: bool) -> None:
        state = self.w.states[session]
        if state.run is None:
            return
        kinds = ["shell"] * shells + ["other"] * others
        left = {f"w{next(self.names)}": kind for kind in kinds}
        first = next(iter(left), None)
        if early and first is not None:
            self.w.finish(session, first)
        self.left[state.run.run_id] = left
        background = [{"work_id": i, "kind": k, "label": k, "wakes": wakes} for i, k in left.items()]
        decision = self.w.settle(session, outcome, background=background)
        if isinstance(decision, Refusal):
            self.left.pop(state.run.run_id)
            assert state.run.status.value != "running"
        elif early and first is not None:
            assert (session, first) in self.w.works, "its end was told with the settle"
        self.look()

    @precondition(lambda self: any(b.work for b in self.model.values()))
    @rule(session=sessions, which=st.integers(0, 5), outcome=st.sampled_from(["completed", "cancelled"]))
    def finish(self, session: str, which: int, outcome: str) -> None:
        links = self.w.states[session].work
        if links:
            work_id = links[which % len(links)].work_id
            assert not isinstance(self.w.finish(session, work_id, outcome), Refusal)
            assert isinstance(self.w.works[session, work_id], WorkRecord)
        self.look()

    @rule(session=sessions, all_=st.booleans())
    def handle(self, session: str, all_: bool) -> None:
        items = [i for i, s in self.w.slots(session).items() if not s.handled]
        self.w.handle(session, *(items if all_ else items[:1]))
        self.look()

    @rule(session=sessions)
    def gone(self, session: str) -> None:
        state = self.w.states[session]
        decision = self.w.gone(session)
        assert (decision is not None) is is_leased(state)
        if state.host is Host.SELF and decision is not None:
            assert self.w.states[session].run is None
            assert not self.w.states[session].live
        self.look()

    @rule(session=sessions)
    def open_again(self, session: str) -> None:
        state = self.w.states[session]
        decision = self.w.open(session, agent=state.agent)
        assert isinstance(decision, Refusal) is (state.closed_at is not None)
        if state.host is Host.SELF and state.closed_at is None:
            assert self.w.states[session].live
            assert self.w.states[session].run is None
        self.look()

    # Parents

    @rule(
        target=sessions,
        parent=sessions,
        host=st.sampled_from(["self", "runner"]),
        background=st.booleans(),
        notify=st.sampled_from([None, None, False]),
        lease=st.sampled_from([0, 1_000]),
    )
    def spawn(self, parent: str, host: str, background: bool, notify: bool | None, lease: int) -> Any:
        asked = f"spawn{next(self.names)}"
        ids = self.spawn_ids(parent, asked)
        self.asked_for[ids[0]] = ids[1]
        decision, _ = self.w.spawn(
            parent, asked, host=host, background=background, notify=notify, lease_ms=lease
        )
        self.look()
        return multiple() if isinstance(decision, Refusal) else ids[0]

    def spawn_ids(self, parent: str, asked: str) -> tuple[str, str]:
        from upcall_contracts.ids import derive_id

        return derive_id("s_", f"{parent}/{asked}"), derive_id("r_", f"{parent}/{asked}")

    @rule(session=sessions, background=st.booleans(), who=st.sampled_from(["parent", "itself", "operator"]))
    def continue_(self, session: str, background: bool, who: str) -> None:
        state = self.w.states[session]
        caller = {"parent": state.parent_session_id, "itself": session, "operator": "operator"}[who]
        if caller is None:
            return
        parent = self.w.parent(state)
        if caller == state.parent_session_id:
            self.asked_for[session] = self.next_run_id(caller)
        self.allow(excused=set() if background else {session})
        decision, _ = self.w.continue_(caller, session, background=background)
        refused = state.closed_at is not None or state.run is not None or state.letting_go is not None
        refused = refused or (
            caller == state.parent_session_id and parent is not None and parent.closed_at is not None
        )
        assert isinstance(decision, Refusal) is refused, decision
        self.look()

    def next_run_id(self, caller: str) -> str:
        from upcall_contracts.ids import derive_id

        number = next(self.w.numbers)
        self.w.numbers = itertools.chain([number], self.w.numbers)  # type: ignore[assignment]
        return derive_id("r_", f"{caller}/{number}")

    @rule(session=sessions)
    def background(self, session: str) -> None:
        state = self.w.states[session]
        if state.run is not None:
            self.w.background(session, state.run.run_id)
            run = self.w.states[session].run
            assert run is None or run.background
        self.look()

    @rule(session=sessions)
    def release(self, session: str) -> None:
        busy = self.model[session]
        held = busy.since is not None
        self.allow(excused={session})
        decision = self.w.release(session)
        assert isinstance(decision, Refusal) is not held
        self.look()

    @rule(session=sessions, cascade=st.booleans())
    def cancel(self, session: str, cascade: bool) -> None:
        tree = {session, *(s.session_id for s in self.w.descendants(session) if cascade)}
        idle = {s for s in tree if self.model[s].active is None}
        unstarted = {
            s for s in tree if (r := self.w.states[s].run) is not None and r.status.value != "running"
        }
        self.allow(unwaking=idle | unstarted)
        self.w.cancel(session, cascade=cascade)
        for each in tree:
            self.model[each].blocked = True
        self.look()

    @rule(session=sessions, cascade=st.booleans(), racing=st.booleans())
    def close(self, session: str, cascade: bool, racing: bool) -> None:
        if session == "root" and self.steps < 30:
            return
        tree = {session, *(s.session_id for s in self.w.descendants(session) if cascade)}
        self.allow(unwaking=tree)
        self.w.close(session, cascade=cascade, racing=racing)
        assert all(self.w.states[s].closed_at is not None for s in tree)
        self.look()

    # The reporter, time, and questions

    @precondition(lambda self: self.w.undecided)
    @rule(which=st.integers(0, 20), counted=st.booleans())
    def report(self, which: int, counted: bool) -> None:
        self.w.report(*self.w.undecided[which % len(self.w.undecided)])
        if counted:
            self.count_all()

    @precondition(lambda self: self.w.uncounted)
    @rule()
    def count_again(self) -> None:
        self.count_all()

    def count_all(self) -> None:
        while self.w.uncounted:
            record = self.w.uncounted.pop(0)
            for nth in range(2):  # delivered twice: the second changes nothing
                before = len(self.w.entries)
                self.w.count(record)
                own = [e for e in self.w.entries[before:] if e.subject.endswith(".counted")]
                assert len(own) <= 1 - nth
                self.look()

    @rule()
    def empty_taken(self) -> None:
        self.w.empty_taken()

    @rule(ms=st.sampled_from([10, 1_000, 5_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.w.pass_time(ms)
        self.look()

    @precondition(lambda self: any(s.run and s.parent_session_id for s in self.w.states.values()))
    @rule(session=sessions)
    def ask(self, session: str) -> None:
        state = self.w.states[session]
        parent = self.w.parent(state)
        asking = state.run is not None and state.run.status.value == "running" and not state.cancelling
        if asking and parent is not None and parent.reachable and not parent.closing:
            self.questions.append((parent.session_id, self.w.ask(session)))
        self.look()

    @precondition(lambda self: self.questions)
    @rule()
    def end_question(self) -> None:
        self.w.end_question(*self.questions.pop(0))
        self.look()

    # What holds at any time

    @invariant()
    def session_agrees_with_the_model(self) -> None:
        self.steps += 1
        for session_id, busy in self.model.items():
            state = self.w.states[session_id]
            assert (state.run.run_id if state.run else None) == busy.active
            assert (state.period is not None) is busy.open
            if state.period is not None:
                pending = {p.id for p in state.pending() if p.kind != "session"}
                assert pending == set(busy.work)
                assert {c.run_id for c in state.children} == busy.kids

    @invariant()
    def idle_runner_session_with_a_waking_item_has_woken(self) -> None:
        for session_id, state in self.w.states.items():
            idle = state.host is Host.RUNNER and state.run is None and state.letting_go is None
            free = not state.wake_blocked and (state.wake_not_before or 0) <= self.w.now
            if idle and free and state.closed_at is None:
                assert not self.waking(session_id), f"{session_id} sleeps"

    @invariant()
    def item_waits_for_an_active_run_or_for_none(self) -> None:
        for session_id, state in self.w.states.items():
            for item_id, slot in self.w.slots(session_id).items():
                if slot.for_run is not None and slot.counted and not slot.taken and state.closed_at is None:
                    active = state.run.run_id if state.run else None
                    assert slot.for_run == active, f"{item_id} waits for a run that is over"

    def teardown(self) -> None:
        """When everybody comes to an end, every period was closed and every ancestor let go."""
        if self.failed:
            return
        for _ in range(60):
            for session_id in list(self.w.states):
                self.finish_all(session_id)
            self.count_all()
            while self.w.undecided:
                self.w.report(*self.w.undecided[0])
                self.count_all()
            if all(s.period is None for s in self.w.states.values()) and not self.w.undecided:
                break
            self.pass_time(1_000)
        still = {s.session_id: self.model[s.session_id] for s in self.w.states.values() if s.period}
        assert not still, f"never came to rest: {still}"
        periods = [closed.period_id for _, closed in self.w.closed]
        assert len(periods) == len(set(periods))
        settled = {r.run_id for r in self.w.runs.values() if r.status.value == "settled"}
        assert settled == set(self.period_of), "every run is reported, and none twice"

    def finish_all(self, session_id: str) -> None:
        state = self.w.states[session_id]
        if state.closed_at is not None:
            return
        if state.run is not None and state.run.status.value == "queued":
            self.w.claim(session_id, "runner-1")
        state = self.w.states[session_id]
        if state.run is not None:
            self.w.settle(session_id)
        for link in list(self.w.states[session_id].work):
            self.w.finish(session_id, link.work_id)
        items = [i for i, s in self.w.slots(session_id).items() if not s.handled]
        self.w.handle(session_id, *items)
        self.look()


Sessions.TestCase.settings = settings(
    max_examples=int(os.environ.get("UPCALL_EXAMPLES", "100")),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate]
    + ([] if os.environ.get("UPCALL_NO_SHRINK") else [Phase.shrink]),
)
TestSessions = Sessions.TestCase
