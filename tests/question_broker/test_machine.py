"""One run's questions under commands, ends and deadlines in any order, against a model of its own.

Commands are stored at one time and handled at another, in any order and more than once, as after a crash;
what the questions rest on changes meanwhile, and its consequences are carried out later still.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.question_broker.situations import (
    CHILD,
    NOW,
    PARENT,
    RUN,
    RUNNER,
    Decided,
    EndFirst,
    Repeated,
    Situation,
    mark,
)
from upcall_contracts.commands import QuestionAnswer, QuestionAsk, QuestionCancel
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import Action, QuestionStatus
from upcall_question_broker.decisions import ending
from upcall_question_broker.decisions.answering import decide_answer, late_refusal
from upcall_question_broker.decisions.asking import AskRules, decide_ask
from upcall_question_broker.decisions.cancelling import decide_cancel

LIMIT = 4
AGAIN = "again"
QUESTIONS = ["Which database?", "which DATABASE", "May I drop it?"]  # the first two are the same
OPTIONS = ["a", "b"]


@dataclass(frozen=True)
class Sent:
    """A command as COMMANDS has it."""

    caller: str
    body: QuestionAsk | QuestionAnswer | QuestionCancel
    command_id: str
    at: int

    @property
    def key(self) -> tuple[str, str, str]:
        return (type(self.body).__name__, self.caller, self.command_id)


@dataclass
class Asked:
    """A question as the model has it."""

    id: str
    text: str
    by: Sent
    until: int
    end: str | None = None
    ended_by: Sent | None = None
    late: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


def said(command: Sent) -> dict[str, Any]:
    """What makes a body another one."""
    return command.body.model_dump(exclude={"command_id", "attempt"})


class Model:
    """What has to come out, told as the contract tells it."""

    def __init__(self) -> None:
        self.questions: list[Asked] = []
        self.run = "running"  # queued, cancelling, settled
        self.attempt = 2
        self.holder: str | None = RUNNER
        self.last_holder: str | None = RUNNER
        self.former: set[str] = set()
        self.parent = "open"  # closed, gone
        self.cancelled = False

    @property
    def open(self) -> Asked | None:
        return next((q for q in self.questions if q.end is None), None)

    def find(self, request_id: str | None) -> Asked | None:
        return next((q for q in self.questions if q.id == request_id), None)

    def handle(self, command: Sent, waiting: list[Sent]) -> str:
        """What the sender hears: a code, or a question's id. `waiting` is what COMMANDS still holds."""
        if isinstance(command.body, QuestionAsk):
            return self._ask(command, command.body, waiting)
        if isinstance(command.body, QuestionAnswer):
            return self._answer(command, command.body, waiting)
        return self._cancel(command, command.body, waiting)

    def _ask(self, command: Sent, body: QuestionAsk, waiting: list[Sent]) -> str:
        caller = command.caller
        stood = {CHILD, self.holder, self.last_holder, *self.former}
        if caller != CHILD and caller in stood and body.attempt is None:
            return "invalid"
        for question in self.questions:
            if question.by.key == command.key:
                return question.id if said(question.by) == said(command) else "command_id_reused"
        if caller not in stood:
            return "unknown_run"
        current = {CHILD, self.holder, self.last_holder if self.run == "settled" else None}
        if body.attempt not in {None, self.attempt} or caller not in current:
            return "stale_attempt"
        if self.run != "running":
            return "run_not_active"
        if self.parent != "open":
            return "parent_unavailable"
        return self._ask_the_parent(command, body, waiting)

    def _ask_the_parent(self, command: Sent, body: QuestionAsk, waiting: list[Sent]) -> str:
        opened = self.open
        if opened is not None and command.at >= opened.until and not self._time_out(opened, waiting):
            return AGAIN
        if self.open is not None:
            same = self.open.text.casefold().rstrip("?") == body.question.casefold().rstrip("?")
            return "duplicate_question" if same else "question_already_open"
        if len(self.questions) >= LIMIT:
            return "question_limit_reached"
        request_id = "-".join(command.key)
        self.questions.append(Asked(request_id, body.question, command, command.at + body.timeout_ms))
        return request_id

    def _answer(self, command: Sent, body: QuestionAnswer, waiting: list[Sent]) -> str:
        question = self.find(body.request_id)
        if question is None:
            return "unknown_request"
        known = self._ended_before(command)
        if known is not None:
            return known
        if command.caller not in {PARENT, OPERATOR}:
            return "unknown_request"
        if question.end is None:
            if command.at >= question.until:
                if not self._time_out(question, waiting):
                    return AGAIN
            else:
                question.end = self.owed()
        if question.end is not None:
            if command.key not in question.late and len(question.late) < 10:
                question.late.append(command.key)
            return "already_resolved"
        if body.selected_option is not None and body.selected_option not in OPTIONS:
            return "unknown_option"
        question.end, question.ended_by = "answered", command
        return question.id

    def _cancel(self, command: Sent, body: QuestionCancel, waiting: list[Sent]) -> str:
        known = self._ended_before(command) if self.questions else None
        if known is not None:
            return known
        question = self.find(body.request_id) if body.request_id is not None else self.open
        stood = {CHILD, OPERATOR, self.holder, self.last_holder, *self.former}
        if question is None or command.caller not in stood:
            return "unknown_request"
        if question.end is None:
            if command.at >= question.until:
                if not self._time_out(question, waiting):
                    return AGAIN
            else:
                question.end = self.owed()
            if question.end is not None and body.request_id is None:
                return "unknown_request"  # nothing is open any more
        if question.end is not None:
            return "already_resolved"
        if command.caller not in {CHILD, OPERATOR, self.holder}:
            return "stale_attempt"
        question.end, question.ended_by = "cancelled", command
        return question.id

    def _ended_before(self, command: Sent) -> str | None:
        for question in self.questions:
            if question.ended_by is not None and question.ended_by.key == command.key:
                return question.id if said(question.ended_by) == said(command) else "command_id_reused"
        return None

    def owed(self) -> str | None:
        if self.run in {"settled", "cancelling"}:
            return "cancelled"
        return "error" if self.parent != "open" else None

    def _time_out(self, question: Asked, waiting: list[Sent]) -> bool:
        """Its time is over: unless an answer that came in time is still to be handled."""
        if self.answer_in_time(question, waiting):
            return False
        question.end = "timed_out"
        return True

    @staticmethod
    def answer_in_time(question: Asked, waiting: list[Sent]) -> bool:
        return any(
            isinstance(c.body, QuestionAnswer) and c.body.request_id == question.id and c.at < question.until
            for c in waiting
        )

    def look(self, at: int, waiting: list[Sent]) -> None:
        """Somebody carries out what is owed."""
        question = self.open
        if question is None or self.owed() is None:
            return
        if at >= question.until:
            self._time_out(question, waiting)
        else:
            question.end = self.owed()


class Ours:
    """The decisions, and the log that they make; loaded and carried out as the broker does."""

    def __init__(self) -> None:
        self.situation = Situation().held_by_runner()
        self.events: list[tuple[str, str]] = []

    def handle(self, command: Sent, waiting: list[Sent]) -> str:
        while True:
            decided = self._decide(command)
            if isinstance(decided, Refusal):
                return decided.code.value
            if isinstance(decided, Repeated):
                return decided.request_id
            if isinstance(decided, EndFirst):
                if not self._end(decided.end, waiting):
                    return AGAIN
                continue
            self._store(decided)
            return late_refusal(decided.record).code.value if decided.late else decided.record.request_id

    def _decide(self, command: Sent) -> Any:
        s, body, caller = self.situation, command.body, command.caller
        marked = mark(body, caller, command.command_id)
        if isinstance(body, QuestionAsk):
            request_id = "-".join(command.key)
            return decide_ask(s.facts(), caller, body, marked, request_id, command.at, AskRules(LIMIT))
        waiting = s.questions.waiting() if s.questions is not None else None
        named = body.request_id or (waiting.request_id if waiting is not None else "")
        record = s.records.get(named)
        if isinstance(body, QuestionAnswer):
            return decide_answer(s.questions, record, s.child, s.parent, caller, body, marked, command.at)
        return decide_cancel(s.questions, record, s.child, s.run, s.parent, caller, body, marked, command.at)

    def _end(self, end: Decided, waiting: list[Sent]) -> bool:
        question = end.record
        pending = [
            c
            for c in waiting
            if isinstance(c.body, QuestionAnswer)
            and c.body.request_id == question.request_id
            and c.at < (question.expires_at or 0)
        ]
        if end.record.status is QuestionStatus.TIMED_OUT and pending:
            return False
        self._store(end)
        return True

    def _store(self, decided: Decided) -> None:
        self.events.append((decided.record.request_id, decided.event))
        self.situation = self.situation.after(decided)

    def look(self, at: int, waiting: list[Sent]) -> None:
        s = self.situation
        brief = s.questions.waiting() if s.questions is not None else None
        if brief is None or s.questions is None:
            return
        owed = ending.owed(s.questions, s.records[brief.request_id], s.child, s.parent, at)
        if owed is not None:
            self._end(owed, waiting)

    def deadline(self, request_id: str, at: int, waiting: list[Sent]) -> None:
        s = self.situation
        record = s.records.get(request_id)
        if record is None or s.questions is None or record.status is not QuestionStatus.WAITING:
            return
        if at >= (record.expires_at or 0):
            self._end(ending.timed_out(s.questions, record, at), waiting)


class QuestionsOfARun(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.model = Model()
        self.ours = Ours()
        self.commands: list[Sent] = []
        self.handled: list[Sent] = []

    # What is sent

    @initialize()
    def begins(self) -> None:
        """With one question open, or nearly everything would be about none."""
        self.ask("session", QUESTIONS[0], 100, "c0", None)
        self.handle(0)

    @rule(
        who=st.sampled_from(["session", "holder", "old", "stranger"]),
        question=st.sampled_from(QUESTIONS),
        timeout_ms=st.sampled_from([1, 50, 10_000]),
        command_id=st.sampled_from(["c0", "c1", "c2", "c3", "c4", "c5"]),
        attempt=st.sampled_from([None, "own", "next"]),
    )
    def ask(self, who: str, question: str, timeout_ms: int, command_id: str, attempt: str | None) -> None:
        caller = {"session": CHILD, "holder": self.model.holder or RUNNER, "old": RUNNER, "stranger": "X"}[
            who
        ]
        number = None if attempt is None else self.model.attempt + (attempt == "next")
        body = QuestionAsk(
            run_id=RUN,
            question=question,
            why_blocked="w",
            options=OPTIONS,
            timeout_ms=timeout_ms,
            attempt=number,
        )
        self.commands.append(Sent(caller, body, command_id, self.now))

    @rule(
        which=st.integers(0, LIMIT),
        who=st.sampled_from([PARENT, OPERATOR, CHILD, "X"]),
        option=st.sampled_from([None, None, "a", "c"]),
        action=st.sampled_from([Action.ACCEPT, Action.DECLINE]),
        command_id=st.sampled_from([f"a{n}" for n in range(13)]),
    )
    def answer(self, which: int, who: str, option: str | None, action: Action, command_id: str) -> None:
        known = self.model.questions
        request_id = known[which].id if which < len(known) else "nothing"
        body = QuestionAnswer(request_id=request_id, answer="yes", selected_option=option, action=action)
        self.commands.append(Sent(who, body, command_id, self.now))

    @rule(
        which=st.integers(0, LIMIT),
        who=st.sampled_from([CHILD, CHILD, OPERATOR, RUNNER, PARENT]),
        by_run=st.booleans(),
        command_id=st.sampled_from(["x0", "x1", "x2"]),
    )
    def cancel(self, which: int, who: str, by_run: bool, command_id: str) -> None:
        known = self.model.questions
        request_id = known[which].id if which < len(known) else "nothing"
        body = QuestionCancel(request_id=None if by_run else request_id, run_id=RUN if by_run else None)
        self.commands.append(Sent(who, body, command_id, self.now))

    # What is carried out

    @precondition(lambda self: self.commands)
    @rule(number=st.integers(0, 20))
    def handle(self, number: int) -> None:
        """Any of those that wait: instances handle them side by side."""
        self._handle(self.commands[number % len(self.commands)])

    def _handle(self, command: Sent) -> None:
        expected = self.model.handle(command, self.commands)
        assert self.ours.handle(command, self.commands) == expected
        if expected != AGAIN:
            self.commands.remove(command)
            self.handled.append(command)

    @precondition(lambda self: self.handled)
    @rule(number=st.integers(0, 20))
    def handle_again(self, number: int) -> None:
        """It was carried out, and the broker died before it had acknowledged it. Refused commands were not
        carried out, and may be now."""
        command = self.handled[number % len(self.handled)]
        events = list(self.ours.events)
        done = any(command in (q.by, q.ended_by) for q in self.model.questions)
        assert self.ours.handle(command, self.commands) == self.model.handle(command, self.commands)
        assert not done or self.ours.events == events

    @rule()
    def owed_end_is_carried_out(self) -> None:
        self.model.look(self.now, self.commands)
        self.ours.look(self.now, self.commands)

    @rule(which=st.integers(0, LIMIT - 1))
    def deadline_fires(self, which: int) -> None:
        """Never early; and for every question, however it has ended, more than once."""
        if which >= len(self.model.questions):
            return
        question = self.model.questions[which]
        if self.now < question.until:
            return
        if question.end is None and not self.model.answer_in_time(question, self.commands):
            question.end = "timed_out"
        self.ours.deadline(question.id, self.now, self.commands)

    @rule(ms=st.sampled_from([1, 49, 50, 100, 10_000]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    # What the questions rest on

    @precondition(lambda self: self.model.run == "running")
    @rule(by_cancel=st.booleans())
    def run_settles(self, by_cancel: bool) -> None:
        self._settle(wake_blocked=by_cancel)

    @precondition(lambda self: self.model.run == "cancelling")
    @rule()
    def cancelled_run_settles(self) -> None:
        self._settle(wake_blocked=True)

    def _settle(self, **changes: Any) -> None:
        self.model.run, self.model.last_holder, self.model.holder = "settled", self.model.holder, None
        self.ours.situation = self.ours.situation.settled().with_child(cancel_deadline=None, **changes)

    @precondition(lambda self: self.model.run == "running")
    @rule()
    def cancel_is_requested(self) -> None:
        self.model.run = "cancelling"
        self.ours.situation = self.ours.situation.with_child(cancel_deadline=self.now + 10, wake_blocked=True)

    @precondition(lambda self: self.model.run == "running")
    @rule()
    def runner_is_lost(self) -> None:
        assert self.model.holder is not None
        self.model.former.add(self.model.holder)
        self.model.run, self.model.holder, self.model.last_holder = "queued", None, None
        self.model.attempt += 1
        self.ours.situation = self.ours.situation.lost_by_runner()

    @precondition(lambda self: self.model.run == "queued")
    @rule(runner=st.sampled_from([RUNNER, "runner-2"]))
    def runner_claims(self, runner: str) -> None:
        self.model.run, self.model.holder, self.model.last_holder = "running", runner, runner
        self.ours.situation = self.ours.situation.claimed_by(runner)

    @precondition(lambda self: self.model.parent == "open")
    @rule(how=st.sampled_from(["closed", "gone"]))
    def parent_leaves(self, how: str) -> None:
        self.model.parent = how
        changes: dict[str, Any] = {"closed_at": self.now} if how == "closed" else {"live": False}
        self.ours.situation = self.ours.situation.with_parent(**changes)

    @precondition(lambda self: self.model.parent == "gone")
    @rule()
    def parent_comes_back(self) -> None:
        self.model.parent = "open"
        self.ours.situation = self.ours.situation.with_parent(live=True)

    # What always holds

    @invariant()
    def both_tell_the_same(self) -> None:
        state = self.ours.situation.questions
        found = [] if state is None else [(b.request_id, b.status.value) for b in state.questions]
        assert found == [(q.id, q.end or "waiting") for q in self.model.questions]

    @invariant()
    def at_most_one_waits_and_it_is_the_last(self) -> None:
        state = self.ours.situation.questions
        waiting = [] if state is None else [b for b in state.questions if b.status is QuestionStatus.WAITING]
        assert len(waiting) <= 1
        assert not waiting or (state is not None and state.waiting() == waiting[0])

    @invariant()
    def each_has_one_end_at_most_and_it_is_that_of_the_record(self) -> None:
        for request_id, record in self.ours.situation.records.items():
            events = [event for id_, event in self.ours.events if id_ == request_id]
            ends = [event for event in events if event not in {"requested", "late"}]
            assert events[0] == "requested"
            assert ends == ([] if record.status is QuestionStatus.WAITING else [record.status.value])
            assert events.count("late") <= 10
            assert "late" not in events or events.index("late") > events.index(ends[0])

    @invariant()
    def briefs_tell_what_the_records_tell(self) -> None:
        state = self.ours.situation.questions
        for brief in state.questions if state is not None else []:
            record = self.ours.situation.records[brief.request_id]
            assert (brief.status, brief.created_at, brief.expires_at) == (
                record.status,
                record.created_at,
                record.expires_at,
            )
            assert (brief.ended_at is None) == (record.status is QuestionStatus.WAITING)

    @invariant()
    def what_was_answered_was_answered_in_time(self) -> None:
        for record in self.ours.situation.records.values():
            answered = record.status is QuestionStatus.ANSWERED
            assert (record.answered_at is not None) == answered
            assert (record.answered_by is not None) == answered
            if record.answered_at is not None:
                assert record.answered_at < (record.expires_at or 0)

    @invariant()
    def the_limit_holds(self) -> None:
        assert len(self.ours.situation.records) <= LIMIT

    def teardown(self) -> None:
        """Everything catches up: nothing waits on what is over, and nothing overdue waits at all."""
        while self.commands:
            before = len(self.commands)
            for command in list(self.commands):
                self._handle(command)
            assert len(self.commands) < before, "commands wait for each other"
        self.owed_end_is_carried_out()
        for number in range(len(self.model.questions)):
            self.deadline_fires(number)
        self.both_tell_the_same()
        question = self.model.open
        if question is not None:
            assert self.model.run in {"running", "queued"}
            assert self.model.parent == "open"
            assert self.now < question.until


TestQuestionsOfARun = QuestionsOfARun.TestCase
TestQuestionsOfARun.settings = settings(stateful_step_count=40)
