"""A world without servers: sessions in a dict, an inbox, a reporter, and the decisions between them.

It does what the service around the decisions does, and nothing else: load, decide, `periods.rest`, store, and
then `steps.next_step` and a wake until nothing is owed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from upcall_contracts.commands import (
    CommandBody,
    RunAppend,
    RunSettle,
    RunStart,
    SessionContinue,
    SessionOpen,
    SessionSpawn,
    WorkFinish,
)
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import derive_id
from upcall_contracts.log import CommandMark
from upcall_contracts.records import (
    ReportRecord,
    ReportStatus,
    RunRecord,
    SuppressedReason,
    WorkRecord,
    result_of,
)
from upcall_contracts.states import ClosedPeriod, SessionState
from upcall_session.decisions import (
    access,
    cancelling,
    closing,
    continuing,
    counting,
    deadlines,
    inbox,
    liveness,
    opening,
    periods,
    running,
    spawning,
    steps,
    waking,
    work,
)
from upcall_session.decisions.continuing import ContinueFacts
from upcall_session.decisions.results import Asked, Decided, NotYet, Repeated
from upcall_session.decisions.rules import Rules
from upcall_session.decisions.soundness import unsound
from upcall_session.decisions.spawning import NewIds

B = TypeVar("B", bound=CommandBody)


def parse(model: type[B], /, **fields: Any) -> B:
    """A body as it is read from the wire."""
    return model.model_validate_json(json.dumps(fields))


Decision = Decided | Repeated | Refusal | NotYet | None


@dataclass
class Slot:
    """One item of an inbox."""

    text: str
    wakes: bool
    for_run: str | None = None
    taken: bool = False
    """Its session has handled it, or taken it as a cause."""
    handled: bool = False
    """It shows an empty body; a while after it was taken."""
    question_of: str | None = None
    """The run that asks; None for reports and work."""
    counted: bool = True
    """False between a report and its counting: its session does not know of it yet."""


@dataclass
class World:
    """All sessions, and a clock that only tests move."""

    rules: Rules = field(
        default_factory=lambda: Rules(cancel_grace_ms=1_000, queue_ms=5_000, max_hold_ms=50_000)
    )
    now: int = 1_700_000_000_000
    states: dict[str, SessionState] = field(default_factory=dict)
    runs: dict[str, RunRecord] = field(default_factory=dict)
    works: dict[tuple[str, str], WorkRecord] = field(default_factory=dict)
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    inbox: dict[str, dict[str, Slot]] = field(default_factory=dict)
    closed: list[tuple[str, ClosedPeriod]] = field(default_factory=list)
    """Every period that was closed, with its session, in order."""
    undecided: list[tuple[str, ClosedPeriod]] = field(default_factory=list)
    """Those that the reporter has not decided."""
    uncounted: list[ReportRecord] = field(default_factory=list)
    """Decided reports that their parents have not counted."""
    counting: ReportRecord | None = None
    """The report that is being counted."""
    entries: list[Decided] = field(default_factory=list)
    on_entry: Callable[[Decided], None] = lambda _: None
    """Told of each entry as soon as it is stored."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # Committing

    def asked(self, caller: str, key: str | None = None) -> Asked:
        name = key or f"{next(self.numbers)}"
        return Asked(caller, CommandMark(key=f"{caller}/{name}", fingerprint="f"), name, self.now)

    def commit(self, before: SessionState | None, decided: Decided) -> SessionState:
        questions = bool(self.open_questions(decided.state))
        rested = periods.rest(decided, decided.state.updated_at, open_questions=questions)
        assert unsound(before, rested.state) == []
        state = rested.state
        self.entries.append(rested)
        if state.closed_period is not None:
            self.closed.append((state.session_id, state.closed_period))
            self.undecided.append((state.session_id, state.closed_period))
        if isinstance(rested.data, RunRecord):
            self.runs[rested.data.run_id] = rested.data
        if isinstance(rested.data, WorkRecord):
            self.works[state.session_id, rested.data.work_id] = rested.data
        if rested.item is not None:
            self.slots(state.session_id)[rested.item.item_id] = Slot(rested.item.text, rested.item.wakes)
        self.history.setdefault(state.session_id, []).extend(rested.history)
        state = state.carried()
        self.states[state.session_id] = state
        self._follow(before, state)
        self.on_entry(rested)
        return state

    def _follow(self, before: SessionState | None, state: SessionState) -> None:
        """Items that were taken are emptied, and those that lost their run are written anew."""
        for item_id in set(state.taken) - set(before.taken if before is not None else []):
            self.slots(state.session_id)[item_id].taken = True
        for entry in state.inbox:
            if entry.rewrite:
                slot = self.slots(state.session_id)[entry.item_id]
                slot.for_run, slot.wakes = entry.for_run, entry.wakes

    def change(self, session_id: str, decide: Callable[[SessionState | None], Decision]) -> Decision:
        state = self.states.get(session_id)
        decision = decide(state)
        while isinstance(decision, Decided):
            state = self.commit(state, decision)
            if not decision.more:
                break
            decision = decide(state)
        if state is not None:
            self.advance(session_id)
        return decision

    def advance(self, session_id: str) -> None:
        """What the state owes, and a wake where an item waits for one."""
        for _ in range(1_000):
            state = self.states[session_id]
            now = max(self.now, state.updated_at)
            step = steps.next_step(state, now, self.rules)
            if step is None and periods.seems_quiet(state) and not self.open_questions(state):
                step = periods.look_again(state, now)
            if step is None:
                items = [waking.WakingItem(i, s.text) for i, s in self.waking(session_id).items()]
                step = waking.wake(state, items, self.emptied(state), self.parent(state), now, self.rules)
            if step is None:
                return
            self.commit(state, step)
        raise AssertionError(f"{session_id} never comes to an end: {self.states[session_id]}")

    # Looking

    def slots(self, session_id: str) -> dict[str, Slot]:
        return self.inbox.setdefault(session_id, {})

    def parent(self, state: SessionState) -> SessionState | None:
        return self.states.get(state.parent_session_id) if state.parent_session_id else None

    def is_asking(self, run_id: str) -> bool:
        """Whether a run may still wait for an answer."""
        run = self.runs[run_id]
        state = self.states[run.session_id]
        return state.run is not None and state.run.run_id == run_id and not state.cancelling

    def open_questions(self, state: SessionState) -> list[str]:
        return [
            item_id
            for item_id, slot in self.slots(state.session_id).items()
            if slot.question_of is not None
            and not slot.handled
            and item_id not in state.taken
            and self.is_asking(slot.question_of)
        ]

    def empty_taken(self) -> None:
        """What was taken shows an empty body at last."""
        for slots in self.inbox.values():
            for slot in slots.values():
                slot.handled = slot.handled or slot.taken

    def waking(self, session_id: str) -> dict[str, Slot]:
        """Items that wake and are not handled, as the inbox shows them; some may have been taken."""
        return {
            item_id: slot
            for item_id, slot in self.slots(session_id).items()
            if slot.wakes
            and slot.counted
            and not slot.handled
            and (slot.question_of is None or self.is_asking(slot.question_of))
        }

    def emptied(self, state: SessionState) -> list[str]:
        return [i for i in state.taken if self.slots(state.session_id)[i].handled]

    def active(self, session_id: str) -> RunRecord:
        """The session's active run."""
        run = self.states[session_id].run
        if run is None:
            raise AssertionError(f"{session_id} has no active run")
        return run

    def run_of(self, state: SessionState, run_id: str) -> RunRecord:
        return state.run if state.run is not None and state.run.run_id == run_id else self.runs[run_id]

    # Commands

    def open(self, session_id: str, **body: Any) -> Decision:
        parsed = parse(SessionOpen, **{"agent": "lead", **body})
        return self.change(
            session_id, lambda s: opening.open_session(s, parsed, self.asked(session_id), self.rules)
        )

    def spawn(self, parent_id: str, key: str | None = None, **body: Any) -> tuple[Decision, NewIds]:
        parsed = parse(SessionSpawn, **{"agent": "worker", "task": "Do it.", **body})
        asked = self.asked(parent_id, key)
        ids = NewIds(derive_id("s_", asked.mark.key), derive_id("r_", asked.mark.key))
        named = self.runs[parsed.run_id] if parsed.run_id else None
        parent = self.states[parent_id]
        decision = self.change(
            parent_id, lambda s: spawning.count_child(s or parent, named, parsed, asked, ids, self.rules)
        )
        if isinstance(decision, Decided):
            self.change(
                ids.session_id,
                lambda s: (
                    Repeated({})
                    if s is not None
                    else spawning.make_child(self.states[parent_id], named, parsed, asked, ids, self.rules)
                ),
            )
        return decision, ids

    def continue_(self, caller: str, session_id: str, **body: Any) -> tuple[Decision, str]:
        parsed = parse(SessionContinue, **{"session_id": session_id, "task": "Go on.", **body})
        asked = self.asked(caller)
        run_id = derive_id("r_", asked.mark.key)

        def facts() -> ContinueFacts:
            return ContinueFacts(self.parent(self.states[session_id]), None)

        refused = continuing.refuse(self.states.get(session_id), facts(), parsed, caller)
        if refused is not None:
            return refused, run_id
        parent = facts().parent
        if parent is not None and access.is_for_parent(caller, self.states[session_id], parent):
            counted = self.change(
                parent.session_id, lambda s: continuing.count_again(s or parent, parsed, run_id, asked)
            )
            if isinstance(counted, Refusal):
                return counted, run_id
        first = self.states[session_id]
        return (
            self.change(
                session_id,
                lambda s: continuing.admit(s or first, facts(), parsed, asked, run_id, self.rules),
            ),
            run_id,
        )

    def start(self, session_id: str, *, causes: list[str] | None = None, **body: Any) -> Decision:
        parsed = parse(RunStart, causes=causes or [], **body)
        asked = self.asked(session_id)

        def decide(state: SessionState | None) -> Decision:
            state = state or self.states[session_id]
            slots = self.slots(session_id)
            items = {i: slots[i].text for i in parsed.causes if i in slots and not slots[i].handled}
            return running.start(
                state,
                parsed,
                asked,
                self.rules,
                run_id=derive_id("r_", asked.mark.key),
                items=items,
                emptied=self.emptied(state),
                parent=self.parent(state),
            )

        return self.change(session_id, decide)

    def claim(self, session_id: str, runner: str, run_id: str | None = None) -> Decision:
        first = self.states[session_id]
        named = run_id or (first.run.run_id if first.run else "")
        return self.change(
            session_id,
            lambda s: running.claim(s or first, self.run_of(s or first, named), self.asked(runner)),
        )

    def append(self, session_id: str, caller: str | None = None, **body: Any) -> Decision:
        first = self.states[session_id]
        run_id = body.pop("run_id", first.run.run_id if first.run else "")
        messages = body.pop("messages", [{"role": "assistant", "content": "x"}])
        parsed = parse(RunAppend, **{"run_id": run_id, "messages": messages, **body})
        asked = self.asked(caller or session_id)
        return self.change(
            session_id, lambda s: running.append(s or first, self.run_of(s or first, run_id), parsed, asked)
        )

    def settle(
        self, session_id: str, outcome: str = "completed", *, caller: str | None = None, **body: Any
    ) -> Decision:
        first = self.states[session_id]
        run_id = body.pop("run_id", first.run.run_id if first.run else "")
        parsed = parse(RunSettle, **{"run_id": run_id, "outcome": outcome, **body})
        asked = self.asked(caller or session_id)
        return self.change(
            session_id, lambda s: running.settle(s or first, self.run_of(s or first, run_id), parsed, asked)
        )

    def finish(self, session_id: str, work_id: str, outcome: str = "completed") -> Decision:
        parsed = parse(WorkFinish, work_id=work_id, outcome=outcome)
        first, asked = self.states[session_id], self.asked(session_id)
        known = self.works.get((session_id, work_id))
        return self.change(session_id, lambda s: work.finish(s or first, parsed, known, asked))

    def handle(self, session_id: str, *item_ids: str) -> Decision:
        slots = self.slots(session_id)
        present = [i for i in item_ids if i in slots and not slots[i].handled]
        first, asked = self.states[session_id], self.asked(session_id)
        return self.change(
            session_id, lambda s: inbox.handle(s or first, present, self.emptied(s or first), asked)
        )

    def background(self, session_id: str, run_id: str) -> Decision:
        first = self.states[session_id]
        return self.change(
            session_id,
            lambda s: running.background(s or first, self.run_of(s or first, run_id), self.asked(session_id)),
        )

    def release(self, session_id: str) -> Decision:
        first, asked = self.states[session_id], self.asked("operator")
        return self.change(session_id, lambda s: periods.release(s or first, asked))

    def descendants(self, session_id: str) -> list[SessionState]:
        return sorted(
            (s for s in self.states.values() if session_id in s.ancestors),
            key=lambda s: (s.depth, s.created_at),
        )

    def cancel(self, session_id: str, *, cascade: bool = True) -> Decision:
        below = self.descendants(session_id) if cascade else []
        first, asked = self.states[session_id], self.asked("operator")
        ids = [s.session_id for s in below if cancelling.is_busy(s)]
        order = cancelling.Cancel("enough", ids, cascade)
        decision = self.change(
            session_id, lambda s: cancelling.cancel_named(s or first, order, [], asked, self.rules)
        )
        for each in below:
            under = [i for i in ids if each.session_id in self.states[i].ancestors]
            lower = cancelling.Cancel("enough", under, cascade)
            self.change(
                each.session_id,
                lambda s, each=each, lower=lower: cancelling.cancel(s or each, lower, self.now, self.rules),
            )
        return decision

    def close(self, session_id: str, *, cascade: bool = True, racing: bool = False) -> None:
        """`racing`: reports of what is closed are counted before the next is."""
        below = self.descendants(session_id) if cascade else []
        tree = [self.states[session_id], *below]
        busy = [s.session_id for s in below if cancelling.is_busy(s)]
        for each in tree:
            under = [i for i in busy if each.session_id in self.states[i].ancestors]
            self.change(
                each.session_id,
                lambda s, each=each, under=under: closing.begin_close(
                    s or each, under, self.now, cascade=cascade
                ),
            )
        for each in reversed(tree):
            self.change(each.session_id, lambda s, each=each: closing.close(s or each, self.now))
            if racing:
                self.report_all()

    def gone(self, session_id: str) -> Decision:
        first = self.states[session_id]
        return self.change(session_id, lambda s: liveness.lease_passed(s or first, self.now))

    def pass_time(self, ms: int) -> None:
        """Let time pass, and every deadline that comes due in it fire."""
        until = self.now + ms
        while True:
            due = [
                at
                for state in self.states.values()
                for kind, at in deadlines.deadlines(state, self.now, self.rules).items()
                if self.now < at <= until
            ]
            self.now = min(due, default=until)
            for session_id in list(self.states):
                state = self.states[session_id]
                ended = deadlines.end_limit(state, self.now, 0)
                if ended is not None:
                    self.commit(state, ended)
                self.advance(session_id)
            if not due:
                return

    # Others: the reporter, and a child that asks

    def report(self, session_id: str, closed: ClosedPeriod) -> ReportRecord:
        """Decide a closed period's report, as the reporter would, and put it into the parent's inbox."""
        self.undecided.remove((session_id, closed))
        state, run = self.states[session_id], self.runs[closed.run_id]
        parent = self.parent(state)
        reason = None
        if parent is None:
            reason = SuppressedReason.NO_PARENT
        elif parent.closed_at is not None:
            reason = SuppressedReason.PARENT_CLOSED
        elif not closed.notify:
            reason = SuppressedReason.SILENT
        record = ReportRecord(
            period_id=closed.period_id,
            session_id=session_id,
            parent_session_id=state.parent_session_id,
            agent=state.agent,
            description=run.description,
            result=result_of(closed.outcome),
            outcome=closed.outcome,
            answer=run.answer,
            runs=closed.runs,
            work=closed.work,
            pending=closed.pending,
            status=ReportStatus.SUPPRESSED if reason else ReportStatus.DELIVERED,
            reason=reason.value if reason else None,
            for_run=closed.for_run,
        )
        if reason is None and parent is not None:
            wakes = closed.wakes and closed.for_run is None
            self.slots(parent.session_id)[closed.period_id] = Slot(
                "report", wakes, closed.for_run, counted=False
            )
        self.uncounted.append(record)
        return record

    def count(self, record: ReportRecord) -> Decision:
        parent_id = record.parent_session_id
        if parent_id is None or parent_id not in self.states:
            return None
        child = self.states[record.session_id]
        slot = self.slots(parent_id).get(record.period_id)
        may_wake = record.period_id not in child.unwaking
        if slot is not None:
            slot.counted = True
        self.counting = record
        return self.change(
            parent_id,
            lambda s: counting.count(
                s or self.states[parent_id],
                record,
                self.now,
                may_wake=may_wake,
                handled=slot is not None and slot.handled,
            ),
        )

    def report_all(self) -> None:
        """Let the reporter and the counting come to an end."""
        while self.undecided or self.uncounted:
            if self.undecided:
                self.report(*self.undecided[0])
            while self.uncounted:
                self.count(self.uncounted.pop(0))

    def ask(self, session_id: str) -> str:
        """A child's active run asks its parent."""
        state = self.states[session_id]
        if state.run is None or state.parent_session_id is None:
            raise AssertionError("only an active child asks")
        request_id = f"q_{next(self.numbers)}"
        slot = Slot("question", wakes=True, question_of=state.run.run_id)
        self.slots(state.parent_session_id)[request_id] = slot
        self.advance(state.parent_session_id)
        return request_id

    def end_question(self, session_id: str, request_id: str) -> None:
        """The question comes to an end, which replaces it in the inbox."""
        self.slots(session_id)[request_id] = replace(self.slots(session_id)[request_id], handled=True)
        self.advance(session_id)
