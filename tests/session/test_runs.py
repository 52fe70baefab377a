"""Commands on runs: who may say what, in which order, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.session.world import Decision, World, parse
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Heartbeat, Outcome, RunStatus, Trigger
from upcall_session.decisions import liveness
from upcall_session.decisions.results import Decided, NotYet, Repeated


def code(decision: Decision) -> str | None:
    return decision.code.value if isinstance(decision, Refusal) else None


def active(w: World, session_id: str) -> Any:
    run = w.states[session_id].run
    assert run is not None
    return run


# start


def test_start_runs_at_once_and_opens_a_period(w: World) -> None:
    run = active(w, "P")
    assert (run.status, run.trigger, run.ordinal, run.holder) == (RunStatus.RUNNING, Trigger.SELF, 1, "P")
    assert w.states["P"].period is not None
    assert run.period_id == w.states["P"].period.period_id
    assert w.history["P"] == [{"index": 1, "run_id": run.run_id, "role": "user", "content": "Lead."}]
    assert (run.history_from, run.history_to) == (1, 1)


def test_start_without_a_task_adds_no_message() -> None:
    w = World()
    w.open("S")
    w.start("S")
    run = active(w, "S")
    assert (run.task, run.description, run.history_from, w.states["S"].history_seq) == (None, None, None, 0)
    w.append("S")
    assert (active(w, "S").history_from, active(w, "S").history_to) == (1, 1)


@pytest.mark.parametrize(
    ("prepare", "expected", "why"),
    [
        (lambda w: None, "session_busy", "a session has at most one active run"),
        (lambda w: w.close("P"), "session_closed", "a closed session takes nothing"),
        (lambda w: w.settle("P"), None, "an idle one starts"),
    ],
)
def test_start_is_refused(w: World, prepare: Any, expected: str | None, why: str) -> None:
    prepare(w)
    assert code(w.start("P")) == expected, why


def test_start_on_a_runner_hosted_session_is_wrong_host(w: World, hosted: str) -> None:
    assert code(w.start(hosted)) == "wrong_host"


def test_start_takes_its_causes(w: World, child: str) -> None:
    """Their texts are the task, they are out of the inbox, and what is not there is no cause."""
    w.settle("P")
    w.settle(child, answer="Built.")
    w.report_all()
    item = next(iter(w.slots("P")))
    w.start("P", causes=[item, "no-such"])
    assert (active(w, "P").causes, active(w, "P").task) == ([item], "report")
    assert w.states["P"].inbox == []
    w.settle("P")
    w.start("P", causes=[item])
    assert active(w, "P").causes == [], "an item is the cause of one run at most"


# claim


def test_claim_makes_a_holder(w: World) -> None:
    _, ids = w.spawn("P", host="runner")
    assert active(w, ids.session_id).status is RunStatus.QUEUED
    w.claim(ids.session_id, "runner-1")
    run = active(w, ids.session_id)
    assert (run.status, run.holder, w.states[ids.session_id].holder) == (
        RunStatus.RUNNING,
        "runner-1",
        "runner-1",
    )
    assert run.started_at == w.now


def test_claim_of_what_is_not_queued(w: World, hosted: str, child: str) -> None:
    """Held by another, its session's own, or settled: not to be had. Its holder has it still."""
    assert code(w.claim(hosted, "runner-2")) == "run_not_claimable"
    assert isinstance(w.claim(hosted, "runner-1"), Repeated)
    assert code(w.claim(child, "runner-1")) == "run_not_claimable"
    run_id = active(w, hosted).run_id
    w.settle(hosted)
    assert code(w.claim(hosted, "runner-1", run_id)) == "run_not_claimable"


# who may speak

SPEAKERS = [
    ("session", None, None, "the session itself need not name the attempt"),
    ("session", 1, None, "and may"),
    ("operator", None, None, "an operator settles everything"),
    ("runner-1", 1, None, "the holder"),
    ("runner-1", None, "invalid", "who has to name the attempt"),
    ("runner-1", 2, "stale_attempt", "and the right one"),
    ("runner-2", 1, "unknown_run", "another runner is a stranger"),
    ("P", 1, "unknown_run", "a parent sees the run, and is not its host"),
]


@pytest.mark.parametrize(("caller", "attempt", "expected", "why"), SPEAKERS)
def test_who_may_append_and_settle(
    w: World, hosted: str, caller: str, attempt: int | None, expected: str | None, why: str
) -> None:
    who = hosted if caller == "session" else caller
    body: dict[str, Any] = {} if attempt is None else {"attempt": attempt}
    assert code(w.append(hosted, who, **body)) == expected, why
    assert code(w.settle(hosted, caller=who, **body)) == expected, why


def test_spawner_speaks_for_its_self_hosted_child(w: World, child: str) -> None:
    """It was given the run to carry out itself."""
    assert code(w.append(child, "P")) is None
    assert code(w.settle(child, caller="P")) is None


def test_runner_that_lost_its_run_is_stale(w: World, hosted: str) -> None:
    """What the old holder says names the old attempt; it is no stranger."""
    w.gone(hosted)
    assert active(w, hosted).status is RunStatus.QUEUED
    assert code(w.append(hosted, "runner-1", attempt=1)) == "stale_attempt"
    assert code(w.append(hosted, "runner-3", attempt=1)) == "unknown_run"
    w.claim(hosted, "runner-2")
    assert code(w.settle(hosted, caller="runner-1", attempt=1)) == "stale_attempt"
    run_id = active(w, hosted).run_id
    assert code(w.settle(hosted, caller="runner-2", attempt=2)) is None
    assert code(w.settle(hosted, caller="runner-1", attempt=1, run_id=run_id)) == "stale_attempt"


def test_runner_that_lost_its_run_gets_it_back_by_no_attempt(w: World, hosted: str) -> None:
    """Which attempt it names says nothing of who it is."""
    w.gone(hosted)
    w.claim(hosted, "runner-2")
    assert code(w.append(hosted, "runner-1", attempt=2)) == "stale_attempt"
    assert code(w.settle(hosted, caller="runner-1", attempt=2)) == "stale_attempt"
    assert code(w.settle(hosted, caller="runner-2", attempt=2)) is None
    w.continue_("P", hosted)
    w.claim(hosted, "runner-3")
    assert code(w.append(hosted, "runner-1", attempt=1)) == "stale_attempt"
    assert code(w.settle(hosted, caller="runner-1", attempt=1)) == "stale_attempt"
    assert code(w.append(hosted, "runner-2", attempt=1)) == "unknown_run"
    assert code(w.settle(hosted, caller="runner-3", attempt=1)) is None


def test_runner_that_left_work_does_not_carry_out_the_next_run(w: World, hosted: str) -> None:
    """It holds the session until its work has finished, and the run is another's."""
    first = active(w, hosted).run_id
    left = [{"work_id": "w", "kind": "other", "label": "x"}]
    w.settle(hosted, caller="runner-1", attempt=1, background=left)
    w.continue_("P", hosted)
    w.claim(hosted, "runner-2")
    assert code(w.append(hosted, "runner-1", attempt=1)) == "unknown_run"
    assert code(w.settle(hosted, caller="runner-1", attempt=1)) == "unknown_run"
    assert code(w.settle(hosted, caller="runner-1", attempt=1, run_id=first)) == "run_not_active"
    assert code(w.settle(hosted, caller="runner-2", attempt=1)) is None


BEATS = [
    ({}, True, "it names nothing"),
    ({"run_id": "run"}, True, "the run"),
    ({"run_id": "run", "attempt": 2}, True, "and its attempt"),
    ({"run_id": "run", "attempt": 1}, False, "a runner that lost the run"),
    ({"run_id": "r_other", "attempt": 2}, False, "or had another one"),
]


@pytest.mark.parametrize(("named", "counts", "why"), BEATS)
def test_whose_beat_keeps_the_holder_alive(
    w: World, hosted: str, named: dict[str, Any], counts: bool, why: str
) -> None:
    w.gone(hosted)
    w.claim(hosted, "runner-2")
    run_id = active(w, hosted).run_id
    named = {**named, "run_id": run_id} if named.get("run_id") == "run" else named
    beat = Heartbeat(**named)
    assert liveness.is_of_host(liveness.lease_of(w.states[hosted]), beat) is counts, why
    w.settle(hosted, caller="runner-2", attempt=2)
    assert liveness.is_of_host(liveness.lease_of(w.states[hosted]), beat), (
        "who left work there names an old run"
    )


def test_a_self_host_may_name_what_it_likes(w: World, child: str) -> None:
    assert liveness.is_of_host(liveness.lease_of(w.states[child]), Heartbeat(run_id="r_other", attempt=7))


def test_settled_run_takes_nothing(w: World, hosted: str) -> None:
    run_id = active(w, hosted).run_id
    w.settle(hosted, caller="runner-1", attempt=1)
    assert code(w.settle(hosted, caller="runner-1", attempt=1, run_id=run_id)) == "run_not_active"
    assert code(w.append(hosted, "runner-1", attempt=1, run_id=run_id)) == "run_not_active"
    assert code(w.background(hosted, run_id)) == "run_not_active"


def test_queued_run_takes_nothing(w: World) -> None:
    _, ids = w.spawn("P", host="runner")
    assert code(w.append(ids.session_id)) == "run_not_active"
    assert code(w.settle(ids.session_id)) == "run_not_active"


# append


@pytest.mark.parametrize(
    ("first", "expected", "why"),
    [
        (None, Decided, "without a place it comes next"),
        (2, Decided, "the history has one message, so the next is the second"),
        (3, NotYet, "the second is missing: it waits"),
        (1, Refusal, "the first is there already, and nothing is written over"),
    ],
)
def test_append_names_its_place(w: World, first: int | None, expected: type, why: str) -> None:
    body: dict[str, Any] = {} if first is None else {"from": first}
    assert isinstance(w.append("P", **body), expected), why


def test_append_keeps_what_messages_carry(w: World) -> None:
    w.append("P", messages=[{"role": "tool", "content": [1], "tool_call_id": "c", "index": 99}])
    assert w.history["P"][1] == {
        "index": 2,
        "run_id": active(w, "P").run_id,
        "role": "tool",
        "content": [1],
        "tool_call_id": "c",
    }


@pytest.mark.parametrize(
    ("steps", "expected", "after", "why"),
    [
        ([2], None, 2, "2 of 3"),
        ([2, 1], None, 3, "2 + 1 = 3, which is all"),
        ([2, 2], "step_budget_exhausted", 2, "2 + 2 > 3: refused, and nothing is counted"),
        ([3, 0], None, 3, "what is no step may still be said"),
        ([3, None], None, 3, "and so may what does not say that it is one"),
        ([4], "step_budget_exhausted", 0, "4 > 3"),
    ],
)
def test_step_budget(w: World, steps: list[int | None], expected: str | None, after: int, why: str) -> None:
    _, ids = w.spawn("P", host="self", step_budget=3)
    bodies: list[dict[str, Any]] = [{} if n is None else {"steps": n} for n in steps]
    decisions = [w.append(ids.session_id, **body) for body in bodies]
    assert code(decisions[-1]) == expected, why
    assert active(w, ids.session_id).steps == after
    assert active(w, ids.session_id).status is RunStatus.RUNNING, "the run is left to its host"


# settle


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "halted", "timed_out"])
def test_settle(w: World, child: str, outcome: str) -> None:
    run_id = active(w, child).run_id
    w.settle(child, outcome, answer="A", error="E")
    run = w.runs[run_id]
    assert (run.status, run.outcome, run.answer, run.error) == (RunStatus.SETTLED, Outcome(outcome), "A", "E")
    assert (run.settled_at, run.holder) == (w.now, "P")
    assert w.states[child].run is None


def test_settle_waits_for_its_history(w: World) -> None:
    assert isinstance(w.settle("P", history_seq=2), NotYet)
    w.append("P")
    assert isinstance(w.settle("P", history_seq=2), Decided)


def test_late_settle_of_a_cancelled_host_lets_go(w: World) -> None:
    """It is refused, and the session is idle after it."""
    _, ids = w.spawn("P", host="self", lease_ms=60_000)
    run_id = active(w, ids.session_id).run_id
    w.cancel(ids.session_id)
    w.pass_time(1_000)
    assert w.states[ids.session_id].status.value == "busy"
    assert w.runs[run_id].outcome is Outcome.CANCELLED
    assert code(w.settle(ids.session_id, run_id=run_id)) == "run_not_active"
    assert w.states[ids.session_id].status.value == "idle"


# time limits


def test_time_limit_settles_the_run(w: World) -> None:
    _, ids = w.spawn("P", host="self", timeout_ms=700)
    run_id = active(w, ids.session_id).run_id
    w.pass_time(699)
    assert w.states[ids.session_id].run is not None
    w.pass_time(1)
    assert w.runs[run_id].outcome is Outcome.TIMED_OUT
    assert "700 ms" in (w.runs[run_id].error or "")


def test_time_limit_counts_from_the_first_holder(w: World) -> None:
    """Not from the dispatch; and a run that is taken over has the rest of its time."""
    _, ids = w.spawn("P", host="runner", timeout_ms=700)
    w.pass_time(4_000)
    w.claim(ids.session_id, "runner-1")
    w.pass_time(400)
    w.gone(ids.session_id)
    w.claim(ids.session_id, "runner-2")
    w.pass_time(299)
    assert w.states[ids.session_id].run is not None
    w.pass_time(1)
    assert w.states[ids.session_id].run is None


@pytest.mark.parametrize(
    ("now", "paused", "over", "why"),
    [
        (700, 0, True, "700 ms of 700"),
        (700, 1, False, "a question waited for 1 ms of them"),
        (1_200, 500, True, "1200 - 500 = 700"),
        (1_200, 501, False, "1200 - 501 < 700"),
    ],
)
def test_time_stands_still_while_a_question_waits(
    w: World, now: int, paused: int, over: bool, why: str
) -> None:
    from upcall_session.decisions.deadlines import end_limit

    _, ids = w.spawn("P", host="self", timeout_ms=700)
    ended = end_limit(w.states[ids.session_id], w.now + now, paused)
    assert (ended is not None) is over, why


def test_time_that_gives_somebody_time_counts_from_the_decision() -> None:
    """After an outage a command may be old: nobody could claim, begin or settle before it was decided."""
    from upcall_contracts.commands import SessionSpawn
    from upcall_contracts.log import CommandMark
    from upcall_session.decisions import spawning
    from upcall_session.decisions.deadlines import deadlines
    from upcall_session.decisions.results import Asked
    from upcall_session.decisions.spawning import NewIds

    w = World()
    w.open("P")
    asked = Asked("P", CommandMark(key="k", fingerprint="f"), "c", w.now, w.now + 100_000)
    due = {}
    for host in ("self", "runner"):
        body = parse(SessionSpawn, agent="a", task="t", host=host, timeout_ms=700)
        made = spawning.make_child(w.states["P"], None, body, asked, NewIds("C", "R"), w.rules)
        due |= deadlines(made.state, w.now, w.rules)
    assert due == {"limit": w.now + 100_700, "queue": w.now + 105_000}


def test_queue_time_counts_anew_for_each_attempt(w: World) -> None:
    _, ids = w.spawn("P", host="runner")
    w.pass_time(4_999)
    w.claim(ids.session_id, "runner-1")
    w.pass_time(60_000)
    w.gone(ids.session_id)
    w.pass_time(4_999)
    assert active(w, ids.session_id).attempt == 2
    w.pass_time(1)
    run = w.runs[ids.run_id]
    assert (run.outcome, run.answer) == (Outcome.FAILED, None)
    assert "No runner serves the agent worker" in (run.error or "")


# background


def test_background_sets_the_caller_free(w: World) -> None:
    _, ids = w.spawn("P", host="self", background=False)
    w.background(ids.session_id, ids.run_id)
    state = w.states[ids.session_id]
    assert state.period is not None
    assert (state.period.foreground, state.period.for_run) == (False, None)
    assert active(w, ids.session_id).background
    assert isinstance(w.background(ids.session_id, ids.run_id), Repeated), "done again it changes nothing"
    w.settle(ids.session_id, background=[{"work_id": "w", "kind": "shell", "label": "x"}])
    assert w.states[ids.session_id].period is not None, "it waits for its work like any other"
