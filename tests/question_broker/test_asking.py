"""Asking: each refusal in its place, the question that is accepted, and the command that comes again."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from tests.question_broker.situations import (
    CHILD,
    MINUTE,
    NOW,
    PARENT,
    PARENT_RUN,
    RULES,
    RUN,
    RUNNER,
    Decided,
    EndFirst,
    Repeated,
    Situation,
    ask_body,
    run_record,
)
from upcall_contracts.errors import ErrorCode, Refusal
from upcall_contracts.records import Action, Host, Outcome, QuestionStatus, RunStatus


@dataclass(frozen=True)
class Ask:
    """An ask and the situation that it meets."""

    at: Situation = field(default_factory=Situation)
    caller: str = CHILD
    body: dict[str, Any] | None = None

    def saying(self, **fields: Any) -> "Ask":
        return replace(self, body={**(self.body or {}), **fields})

    def meeting(self, change: Callable[[Situation], Situation]) -> "Ask":
        return replace(self, at=change(self.at))

    def decide(self) -> Any:
        fields = dict(self.body or {})
        return self.at.decide(
            ask_body(fields.pop("question", "May I drop it?"), **fields), caller=self.caller
        )


def _runner_without_attempt(ask: Ask) -> Ask:
    return replace(ask.meeting(lambda s: s.held_by_runner()), caller=RUNNER)


def _open(question: str) -> Callable[[Ask], Ask]:
    def apply(ask: Ask) -> Ask:
        base = Situation().crowded(len(ask.at.questions.questions) if ask.at.questions else 0)
        asked = base.asked("Q-open", question, at=NOW - 1)
        return replace(ask, at=replace(ask.at, questions=asked.questions, records=asked.records))

    return apply


def _limit(ask: Ask) -> Ask:
    """As many as a run may ask; the last of them waits on where one waited."""
    waiting = ask.at.questions.waiting() if ask.at.questions else None
    full = Situation().crowded(RULES.max_questions - (waiting is not None))
    assert full.questions is not None
    kept = [*full.questions.questions, *([waiting] if waiting else [])]
    questions = full.questions.model_copy(update={"questions": kept})
    return replace(ask, at=replace(ask.at, questions=questions))


RULES_IN_ORDER: list[tuple[ErrorCode, Callable[[Ask], Ask]]] = [
    (ErrorCode.INVALID, _runner_without_attempt),
    (ErrorCode.FALLBACK_REQUIRED, lambda a: a.saying(can_continue_without_answer=True, fallback=" ")),
    (ErrorCode.INVALID_RECOMMENDATION, lambda a: a.saying(options=["a"], recommended_option="b")),
    (ErrorCode.COMMAND_ID_REUSED, lambda a: a.meeting(lambda s: replace(s, elsewhere=True))),
    (ErrorCode.UNKNOWN_RUN, lambda a: replace(a, caller="stranger")),
    (ErrorCode.STALE_ATTEMPT, lambda a: a.saying(attempt=1)),
    (ErrorCode.RUN_NOT_ACTIVE, lambda a: a.meeting(lambda s: s.settled())),
    (ErrorCode.NO_PARENT, lambda a: a.meeting(lambda s: s.with_child(parent_session_id=None))),
    (ErrorCode.PARENT_UNAVAILABLE, lambda a: a.meeting(lambda s: s.with_parent(closed_at=5))),
    (ErrorCode.DUPLICATE_QUESTION, _open("May I drop it?")),
    (ErrorCode.QUESTION_ALREADY_OPEN, _open("Which database?")),
    (ErrorCode.QUESTION_LIMIT_REACHED, _limit),
]
"""Each rule, and how to make it hold, in the order of the contract. The reuse of a command id, which every
command may meet, comes before what this one is about."""

EXCLUDE_EACH_OTHER = {
    (ErrorCode.INVALID, ErrorCode.UNKNOWN_RUN),  # who is unknown is not known to be a runner either
    (ErrorCode.INVALID, ErrorCode.STALE_ATTEMPT),  # an attempt is missing, or it is there and stale
    (ErrorCode.DUPLICATE_QUESTION, ErrorCode.QUESTION_ALREADY_OPEN),  # two words for one open question
}

PAIRS = [
    pytest.param(first, second, id=f"{first[0].value}-before-{second[0].value}")
    for first, second in combinations(RULES_IN_ORDER, 2)
    if (first[0], second[0]) not in EXCLUDE_EACH_OTHER
]


def code(outcome: Any) -> ErrorCode:
    assert isinstance(outcome, Refusal), outcome
    return outcome.code


@pytest.mark.parametrize(("rule", "holds"), RULES_IN_ORDER, ids=[c.value for c, _ in RULES_IN_ORDER])
def test_each_rule_alone_refuses(rule: ErrorCode, holds: Callable[[Ask], Ask]) -> None:
    assert code(holds(Ask()).decide()) is rule


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_of_two_rules_that_hold_the_first_refuses(first: Any, second: Any) -> None:
    assert code(second[1](first[1](Ask())).decide()) is first[0]


def test_of_all_rules_that_hold_together_the_first_refuses() -> None:
    """However much is wrong, one code comes out, and it is the earliest."""
    for index, (rule, _) in enumerate(RULES_IN_ORDER):
        ask = Ask()
        for other, holds in RULES_IN_ORDER[index:]:
            if (rule, other) not in EXCLUDE_EACH_OTHER and other is not ErrorCode.QUESTION_ALREADY_OPEN:
                ask = holds(ask)
        if rule is not ErrorCode.QUESTION_ALREADY_OPEN:
            assert code(ask.decide()) is rule


# Who may ask


HELD = Situation().held_by_runner()
MAY_ASK = [
    pytest.param(Situation(), CHILD, None, None, id="the session of a self host"),
    pytest.param(Situation(), CHILD, 2, None, id="and it may name its attempt"),
    pytest.param(
        Situation(), PARENT, 2, ErrorCode.UNKNOWN_RUN, id="not who spawned it: that is whom it asks"
    ),
    pytest.param(Situation(), "operator", 2, ErrorCode.UNKNOWN_RUN, id="nor an operator"),
    pytest.param(Situation(), "runner-9", 2, ErrorCode.UNKNOWN_RUN, id="nor a runner that never held it"),
    pytest.param(HELD, RUNNER, 2, None, id="the runner that holds it, with its attempt"),
    pytest.param(HELD, CHILD, None, None, id="the session itself, though a runner holds it"),
    pytest.param(HELD, RUNNER, None, ErrorCode.INVALID, id="a runner must name its attempt"),
    pytest.param(HELD, RUNNER, 1, ErrorCode.STALE_ATTEMPT, id="the attempt before"),
    pytest.param(HELD, RUNNER, 3, ErrorCode.STALE_ATTEMPT, id="an attempt that is still to come"),
    pytest.param(HELD.lost_by_runner(), RUNNER, 2, ErrorCode.STALE_ATTEMPT, id="who lost it, while queued"),
    pytest.param(HELD.lost_by_runner(), RUNNER, 3, ErrorCode.STALE_ATTEMPT, id="and names the next attempt"),
    pytest.param(
        HELD.lost_by_runner().claimed_by("runner-2"),
        RUNNER,
        2,
        ErrorCode.STALE_ATTEMPT,
        id="claimed by another",
    ),
    pytest.param(
        HELD.lost_by_runner().claimed_by("runner-2"),
        RUNNER,
        3,
        ErrorCode.STALE_ATTEMPT,
        id="guessing its attempt",
    ),
    pytest.param(HELD.lost_by_runner().claimed_by("runner-2"), "runner-2", 3, None, id="the next holder"),
    pytest.param(
        HELD.lost_by_runner().claimed_by("runner-2").settled(),
        RUNNER,
        2,
        ErrorCode.STALE_ATTEMPT,
        id="who lost it, after the next holder has settled it",
    ),
    pytest.param(
        HELD.settled(), RUNNER, 2, ErrorCode.RUN_NOT_ACTIVE, id="who settled it, and holds it no more"
    ),
]


@pytest.mark.parametrize(("situation", "caller", "attempt", "refused"), MAY_ASK)
def test_who_may_ask(
    situation: Situation, caller: str, attempt: int | None, refused: ErrorCode | None
) -> None:
    outcome = situation.decide(ask_body(attempt=attempt), caller=caller)
    assert isinstance(outcome, Decided) if refused is None else code(outcome) is refused


@pytest.mark.parametrize(
    ("situation", "said"),
    [
        (Situation().with_active(status=RunStatus.QUEUED), "queued"),
        (Situation().with_active(status=RunStatus.INTERRUPTED), "interrupted"),
        (Situation().settled(), "settled"),
        (Situation().with_child(cancel_deadline=9), "being cancelled"),
        (
            Situation().settled().with_child(run=run_record(run_id="R2")),
            "settled",
        ),
    ],
    ids=["queued", "interrupted", "settled", "being-cancelled", "another-run-is-active"],
)
def test_run_not_active_says_what_it_is(situation: Situation, said: str) -> None:
    outcome = situation.decide(ask_body())
    assert code(outcome) is ErrorCode.RUN_NOT_ACTIVE
    assert outcome.details == {"run_id": RUN, "status": said}


@pytest.mark.parametrize(
    ("situation", "refused"),
    [
        (Situation().with_parent(live=False), True),
        (Situation().with_parent(closed_at=1), True),
        (replace(Situation(), parent=None), True),
        (Situation().with_parent(run=None), False),
        (Situation().with_parent(closing=True), False),
        (Situation().with_parent(host=Host.RUNNER, live=False), False),
    ],
    ids=["gone", "closed", "never-there", "idle", "about-to-close", "runner-hosted-and-not-held"],
)
def test_parent_unavailable(situation: Situation, refused: bool) -> None:
    """A parent is there while it is open and somebody can hear it; a runner can always be found."""
    outcome = situation.decide(ask_body())
    assert (code(outcome) is ErrorCode.PARENT_UNAVAILABLE) if refused else isinstance(outcome, Decided)


# What is accepted


def test_accepted_question_has_all_that_was_said_and_where_it_comes_from() -> None:
    body = ask_body(
        "  Which\ndatabase? ",
        options=["PostgreSQL", "SQLite"],
        recommended_option="SQLite",
        can_continue_without_answer=True,
        fallback="Use SQLite.",
        timeout_ms=MINUTE,
        task_id="mine",
        meta={"a": [1, None]},
    )
    decided = Situation().decide(body, at=NOW)
    assert decided.event == "requested"
    record = decided.record
    assert record.status is QuestionStatus.WAITING
    assert (record.request_id, record.child_run_id, record.child_session_id) == ("Q-new", RUN, CHILD)
    assert (record.parent_run_id, record.parent_session_id, record.root_session_id) == (
        PARENT_RUN,
        PARENT,
        PARENT,
    )
    assert (record.created_at, record.updated_at, record.expires_at) == (NOW, NOW, NOW + MINUTE)
    assert (record.agent, record.description, record.task_id) == (
        "worker",
        "Build the orders service.",
        "mine",
    )
    said = {name: getattr(body, name) for name in type(body).model_fields if hasattr(record, name)}
    assert {name: getattr(record, name) for name in said} == said
    assert decided.state.waiting().request_id == "Q-new"


def test_without_a_task_id_the_runs_counts() -> None:
    assert Situation().decide(ask_body()).record.task_id == "task-1"


def test_without_a_parent_run_the_question_has_none() -> None:
    """It still has a parent session, and is asked of that."""
    decided = Situation().with_active(parent_run_id=None).decide(ask_body())
    assert (decided.record.parent_run_id, decided.state.parent_run_id) == (None, None)
    assert decided.record.parent_session_id == PARENT


@pytest.mark.parametrize("status", [s for s in QuestionStatus if s is not QuestionStatus.WAITING])
def test_after_any_end_the_run_may_ask_the_same_again(status: QuestionStatus) -> None:
    ended = Situation().asked("Q").ended_as(status)
    again = ended.decide(ask_body(), command_id="another")
    assert isinstance(again, Decided)
    assert [b.request_id for b in again.state.questions] == ["Q", "Q-new"]


def test_limit_is_reached_by_the_last_that_is_allowed() -> None:
    """19 asked: one more. 20 asked: none."""
    assert isinstance(Situation().crowded(19).decide(ask_body()), Decided)
    assert code(Situation().crowded(20).decide(ask_body())) is ErrorCode.QUESTION_LIMIT_REACHED


def test_open_question_is_named_with_its_end() -> None:
    asked = Situation().asked("Q", timeout_ms=1500, at=NOW)
    for question in ("which DATABASE", "May I drop it?"):
        outcome = asked.decide(ask_body(question))
        assert outcome.details == {"request_id": "Q", "expires_at": "1970-01-01T00:16:41.500Z"}


@pytest.mark.parametrize(("at", "ended"), [(MINUTE - 1, False), (MINUTE, True), (MINUTE + 1, True)])
def test_an_open_question_whose_time_is_over_ends_first(at: int, ended: bool) -> None:
    """At expires_at it is over, though its deadline may not have been carried out."""
    asked = Situation().asked("Q", timeout_ms=MINUTE, at=0)
    outcome = asked.decide(ask_body("May I drop it?"), at=at)
    if not ended:
        assert isinstance(outcome, Refusal)
    else:
        assert isinstance(outcome, EndFirst)
        assert (outcome.end.event, outcome.end.record.request_id) == ("timed_out", "Q")
        assert isinstance(asked.after(outcome.end).decide(ask_body("May I drop it?"), at=at), Decided)


# The same command again


ASKED = Situation().asked("Q", command_id="c")
LATER = {
    "waiting": ASKED,
    "answered": ASKED.after(ASKED.answer()),
    "declined": ASKED.after(ASKED.answer(answer=None, action=Action.DECLINE)),
    "timed-out": ASKED.ended_as(QuestionStatus.TIMED_OUT),
    "cancelled": ASKED.after(ASKED.cancel()),
    "error": ASKED.ended_as(QuestionStatus.ERROR),
    "another-is-open": ASKED.ended_as(QuestionStatus.ANSWERED).asked("Q2"),
    "limit-reached": ASKED.ended_as(QuestionStatus.ANSWERED).crowded(30),
    "run-settled": ASKED.settled(),
    "run-cancelled": ASKED.settled(Outcome.CANCELLED),
    "run-being-cancelled": ASKED.with_child(cancel_deadline=1),
    "run-queued-again": ASKED.with_active(status=RunStatus.QUEUED, attempt=3),
    "another-run-is-active": ASKED.settled().with_child(run=Situation().run),
    "parent-closed": ASKED.with_parent(closed_at=1),
    "parent-gone": ASKED.with_parent(live=False),
    "child-closed": ASKED.settled().with_child(closed_at=1),
    "sessions-purged": replace(ASKED, child=None, run=None, parent=None),
    "time-over": ASKED,
}


@pytest.mark.parametrize("later", LATER)
def test_the_same_command_again_decides_nothing_new(later: str) -> None:
    at = NOW + 10 * MINUTE if later == "time-over" else NOW
    again = LATER[later].decide(ask_body(), command_id="c", request_id="Q", at=at)
    assert again == Repeated("Q")


@pytest.mark.parametrize("later", LATER)
def test_the_same_command_id_with_another_body_is_refused(later: str) -> None:
    for body in (ask_body("Which colour?"), ask_body(timeout_ms=1), ask_body(options=["a"])):
        outcome = LATER[later].decide(body, command_id="c", request_id="Q")
        assert code(outcome) is ErrorCode.COMMAND_ID_REUSED


def test_another_callers_command_id_is_another_command() -> None:
    asked = HELD.asked("Q", command_id="c", caller=RUNNER, attempt=2)
    assert code(asked.decide(ask_body(), command_id="c", caller=CHILD)) is ErrorCode.DUPLICATE_QUESTION


def test_a_runner_asks_again_under_its_next_attempt() -> None:
    """It lost the run, claimed it again, and sends its tool call again: the same question."""
    asked = HELD.asked("Q", command_id="c", caller=RUNNER, attempt=2)
    again = asked.lost_by_runner().claimed_by(RUNNER)
    assert again.decide(ask_body(attempt=3), command_id="c", caller=RUNNER) == Repeated("Q")


def test_who_lost_the_run_still_finds_its_question() -> None:
    lost = HELD.asked("Q", command_id="c", caller=RUNNER, attempt=2).lost_by_runner()
    assert lost.decide(ask_body(attempt=2), command_id="c", caller=RUNNER) == Repeated("Q")
