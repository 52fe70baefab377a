"""A child that asks and a parent that is asked, as values: what the pure decisions are tested with."""

from dataclasses import dataclass, field, replace
from typing import Any

from upcall_contracts.commands import QuestionAnswer, QuestionAsk, QuestionCancel
from upcall_contracts.log import CommandMark
from upcall_contracts.parsing import body_fingerprint
from upcall_contracts.records import Host, Outcome, QuestionRecord, QuestionStatus, RunRecord, RunStatus
from upcall_contracts.states import QuestionBrief, QuestionsState, SessionState
from upcall_question_broker.decisions import ending
from upcall_question_broker.decisions.answering import decide_answer
from upcall_question_broker.decisions.asking import AskFacts, AskRules, decide_ask
from upcall_question_broker.decisions.cancelling import decide_cancel
from upcall_question_broker.decisions.outcomes import Decided, EndFirst, Repeated

NOW = 1_000_000
"""The epoch ms at which the commands of a test were stored, if it doesn't say another."""
MINUTE = 60_000
PARENT, CHILD, RUN, PARENT_RUN, RUNNER = "P", "C", "R", "PR", "runner-1"
RULES = AskRules(max_questions=20)


def parent_state(**changes: Any) -> SessionState:
    run = RunRecord(run_id=PARENT_RUN, session_id=PARENT, status=RunStatus.RUNNING)
    fields: dict[str, Any] = {"holder": PARENT, "run": run, **changes}
    return SessionState(
        session_id=PARENT, root_session_id=PARENT, agent="lead", created_at=1, updated_at=1, **fields
    )


def run_record(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "run_id": RUN,
        "session_id": CHILD,
        "parent_run_id": PARENT_RUN,
        "parent_session_id": PARENT,
        "root_session_id": PARENT,
        "task_id": "task-1",
        "description": "Build the orders service.",
        "status": RunStatus.RUNNING,
        "attempt": 2,
        "holder": PARENT,
    }
    return RunRecord.model_validate({**fields, **changes})


def child_state(**changes: Any) -> SessionState:
    fields: dict[str, Any] = {
        "session_id": CHILD,
        "parent_session_id": PARENT,
        "root_session_id": PARENT,
        "ancestors": [PARENT],
        "depth": 1,
        "agent": "worker",
        "holder": PARENT,  # who spawned it to carry it out itself
        "created_at": 1,
        "updated_at": 1,
        "run": run_record(),
    }
    return SessionState.model_validate({**fields, **changes})


def ask_body(question: str = "Which database?", **fields: Any) -> QuestionAsk:
    return QuestionAsk(run_id=RUN, question=question, why_blocked="Nobody said.", **fields)


def mark(body: QuestionAsk | QuestionAnswer | QuestionCancel, caller: str, command_id: str) -> CommandMark:
    verb = {QuestionAsk: "ask", QuestionAnswer: "answer", QuestionCancel: "cancel"}[type(body)]
    return CommandMark(key=f"{caller}/question.{verb}/{command_id}", fingerprint=body_fingerprint(body))


@dataclass(frozen=True)
class Situation:
    """What the log says, and what the broker would decide. Each method gives a later situation."""

    child: SessionState | None = field(default_factory=child_state)
    run: RunRecord | None = field(default_factory=run_record)
    parent: SessionState | None = field(default_factory=parent_state)
    questions: QuestionsState | None = None
    records: dict[str, QuestionRecord] = field(default_factory=dict[str, QuestionRecord])
    elsewhere: bool = False

    # Asking

    def facts(self) -> AskFacts:
        waiting = self.questions.waiting() if self.questions is not None else None
        open_question = self.records[waiting.request_id] if waiting is not None else None
        return AskFacts(self.child, self.run, self.parent, self.questions, open_question, self.elsewhere)

    def decide(
        self,
        body: QuestionAsk,
        *,
        caller: str = CHILD,
        command_id: str = "ask-1",
        request_id: str = "Q-new",
        at: int = NOW,
    ) -> Any:
        marked = mark(body, caller, command_id)
        return decide_ask(self.facts(), caller, body, marked, request_id, at, RULES)

    def asked(self, request_id: str = "Q", question: str = "Which database?", **how: Any) -> "Situation":
        """After an ask that has to be accepted."""
        fields = {k: how.pop(k) for k in list(how) if k not in {"caller", "command_id", "at"}}
        how.setdefault("command_id", f"ask-{request_id}")
        return self.after(self.decide(ask_body(question, **fields), request_id=request_id, **how))

    def after(self, decided: Any) -> "Situation":
        assert isinstance(decided, Decided), decided
        records = {**self.records, decided.record.request_id: decided.record}
        return replace(self, questions=decided.state, records=records)

    # Ending

    def answer(
        self,
        request_id: str = "Q",
        answer: str | None = "SQLite.",
        *,
        caller: str = PARENT,
        command_id: str = "answer-1",
        at: int = NOW,
        **fields: Any,
    ) -> Any:
        body = QuestionAnswer(request_id=request_id, answer=answer, **fields)
        return decide_answer(
            self.questions,
            self.records.get(request_id),
            self.child,
            self.parent,
            caller,
            body,
            mark(body, caller, command_id),
            at,
        )

    def cancel(
        self,
        request_id: str | None = "Q",
        *,
        run_id: str | None = None,
        caller: str = CHILD,
        command_id: str = "cancel-1",
        at: int = NOW,
        **fields: Any,
    ) -> Any:
        body = QuestionCancel(request_id=request_id if run_id is None else None, run_id=run_id, **fields)
        waiting = self.questions.waiting() if self.questions is not None else None
        named = request_id if run_id is None else waiting.request_id if waiting is not None else None
        return decide_cancel(
            self.questions,
            self.records.get(named or ""),
            self.child,
            self.run,
            self.parent,
            caller,
            body,
            mark(body, caller, command_id),
            at,
        )

    def ended_as(self, status: QuestionStatus, request_id: str = "Q", at: int = NOW) -> "Situation":
        """After an end that no command asked for."""
        assert self.questions is not None
        return self.after(ending.end(self.questions, self.records[request_id], status, at))

    # The world around

    def settled(self, outcome: Outcome = Outcome.COMPLETED) -> "Situation":
        assert self.child is not None
        assert self.run is not None
        run = self.run.model_copy(update={"status": RunStatus.SETTLED, "outcome": outcome})
        holder = self.child.holder if self.child.host is Host.SELF else None
        return self.with_child(run=None, holder=holder).with_run(run)

    def with_child(self, **changes: Any) -> "Situation":
        assert self.child is not None
        return replace(self, child=self.child.model_copy(update=changes))

    def with_run(self, run: RunRecord) -> "Situation":
        return replace(self, run=run)

    def with_active(self, **changes: Any) -> "Situation":
        """With its active run changed, in the session's state and as a record."""
        assert self.run is not None
        run = self.run.model_copy(update=changes)
        return self.with_child(run=run).with_run(run)

    def with_parent(self, **changes: Any) -> "Situation":
        assert self.parent is not None
        return replace(self, parent=self.parent.model_copy(update=changes))

    def held_by_runner(self, runner: str = RUNNER) -> "Situation":
        return self.with_active(holder=runner).with_child(host=Host.RUNNER, holder=runner)

    def lost_by_runner(self) -> "Situation":
        """The runner's lease has passed: the run is queued again with the next attempt."""
        assert self.child is not None
        assert self.run is not None
        former = [*self.child.former_holders, self.child.holder or ""]
        queued = {"status": RunStatus.QUEUED, "attempt": self.run.attempt + 1, "holder": None}
        return self.with_active(**queued).with_child(holder=None, former_holders=former)

    def claimed_by(self, runner: str) -> "Situation":
        return self.with_active(status=RunStatus.RUNNING, holder=runner).with_child(holder=runner)

    def crowded(self, count: int) -> "Situation":
        """With so many more questions asked and ended."""
        briefs = [
            QuestionBrief(
                request_id=f"old-{n}",
                status=QuestionStatus.ANSWERED,
                command_key=f"{CHILD}/question.ask/old-{n}",
                fingerprint="f",
                created_at=1,
                expires_at=2,
                ended_at=1,
            )
            for n in range(count)
        ]
        before = self.questions.questions if self.questions is not None else []
        state = QuestionsState(
            run_id=RUN, session_id=CHILD, parent_session_id=PARENT, questions=[*before, *briefs]
        )
        return replace(self, questions=state)


__all__ = ["Decided", "EndFirst", "Repeated", "Situation"]
