"""Spawning and continuing: who may, what is refused, and who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest

from tests.session.world import Decision, World, parse
from upcall_contracts.commands import SessionContinue as _Continue
from upcall_contracts.errors import Refusal
from upcall_contracts.records import QuestionRecord
from upcall_session.decisions import continuing, counting
from upcall_session.decisions.continuing import ContinueFacts
from upcall_session.decisions.results import Decided


def code(decision: Decision) -> str | None:
    return decision.code.value if isinstance(decision, Refusal) else None


# spawn


def test_child_stands_below_its_parent(w: World) -> None:
    _, one = w.spawn("P", host="self", meta={"k": 1}, model="m", variant="v")
    _, two = w.spawn(one.session_id, host="runner")
    child, grandchild = w.states[one.session_id], w.states[two.session_id]
    assert (child.ancestors, child.depth, child.root_session_id) == (["P"], 1, "P")
    assert (grandchild.ancestors, grandchild.depth, grandchild.root_session_id) == (
        ["P", one.session_id],
        2,
        "P",
    )
    assert (child.holder, grandchild.holder) == ("P", None)
    assert (child.lease_ms, grandchild.lease_ms) == (0, 15_000)
    assert (child.model, child.variant, child.meta) == ("m", "v", {"k": 1})


@pytest.mark.parametrize(
    ("above", "given", "expected", "why"),
    [
        (None, None, True, "true where nobody says anything"),
        (None, False, False, "as the spawn says"),
        (False, None, False, "inherited"),
        (False, True, True, "unless the spawn says otherwise"),
    ],
)
def test_notify_is_inherited(
    w: World, above: bool | None, given: bool | None, expected: bool, why: str
) -> None:
    _, one = w.spawn("P", host="self", notify=above)
    _, two = w.spawn(one.session_id, host="self", notify=given)
    assert w.states[two.session_id].notify is expected, why


@pytest.mark.parametrize(
    ("task", "given", "expected"),
    [
        ("First.\nSecond.", None, "First."),
        ("x" * 100, None, "x" * 80),
        ("\n  \n Third.", None, "Third."),
        ("First.", "Given.", "Given."),
    ],
)
def test_description_is_the_tasks_first_line(w: World, task: str, given: str | None, expected: str) -> None:
    _, ids = w.spawn("P", host="self", task=task, description=given)
    assert w.runs[ids.run_id].description == expected


def test_spawn_refused(w: World) -> None:
    run = w.states["P"].run
    assert run is not None
    chain = ["P"]
    while len(chain) < 6:
        chain.append(w.spawn(chain[-1], host="self")[1].session_id)
    assert code(w.spawn(chain[-1])[0]) == "too_deep", "five levels below the root are all there is"
    w.cancel("P", cascade=False)
    assert code(w.spawn("P", run_id=run.run_id)[0]) == "run_not_active", "a run that is being cancelled"
    assert code(w.spawn("P")[0]) == "run_not_active", "meant, though not named"
    w.settle("P", "cancelled")
    assert code(w.spawn("P", run_id=run.run_id)[0]) == "run_not_active", "a run that is settled"
    assert code(w.spawn("P")[0]) is None, "an idle parent may spawn"
    w.close("P", cascade=False)
    assert code(w.spawn("P")[0]) == "session_closed"


def test_parent_counts_the_child_before_it_is_made(w: World) -> None:
    """The entry on the parent comes first, and names the run whose report lets go."""
    _, ids = w.spawn("P", host="self", description="Build")
    first, second = w.entries[-2:]
    assert first.subject == f"log.session.P.child.{ids.session_id}"
    assert second.subject.startswith(f"log.session.{ids.session_id}.{ids.run_id}.lifecycle.1.started.")
    assert [(c.session_id, c.run_id, c.label) for c in w.states["P"].children] == [
        (ids.session_id, ids.run_id, "Build")
    ]


def test_parent_without_a_period_waits_for_nobody(w: World) -> None:
    """It hears of the child all the same: the item is an ordinary one."""
    w.settle("P")
    w.report_all()
    _, ids = w.spawn("P", host="self", background=False)
    assert w.states["P"].children == []
    w.settle(ids.session_id)
    w.report_all()
    slot = w.slots("P")[w.closed[-1][1].period_id]
    assert (slot.wakes, slot.for_run) == (True, None)


def test_child_that_was_refused_is_not_waited_for(w: World, child: str) -> None:
    """A parent whose only child could not be made becomes quiet in the same entry."""
    run_id = w.states["P"].children[0].run_id
    w.settle("P")
    assert w.states["P"].period is not None
    w.change("P", lambda s: counting.uncount(s or w.states["P"], child, run_id, w.now))
    assert w.states["P"].period is None


# continue: its checks, in the order of the contract

EVERYTHING_WRONG: list[tuple[dict[str, Any], str | None]] = [
    ({"caller": "stranger"}, "unknown_session"),
    ({"agent": "other"}, "agent_mismatch"),
    ({"closed": True}, "session_closed"),
    ({"question": True}, "question_open"),
    ({"busy": True}, "session_busy"),
    ({}, None),
]


@pytest.mark.parametrize("first", range(len(EVERYTHING_WRONG)))
def test_continue_is_refused_by_the_first_rule_that_holds(w: World, child: str, first: int) -> None:
    """With this and all later reasons at once, this one is named."""
    wrong: dict[str, Any] = {}
    for reasons, _ in EVERYTHING_WRONG[first:]:
        wrong |= reasons
    if not wrong.get("busy"):
        w.settle(child)
    state = w.states[child]
    if wrong.get("closed"):
        state = state.model_copy(update={"closed_at": w.now})
    question = QuestionRecord(request_id="q") if wrong.get("question") else None
    body = parse(_Continue, session_id=child, task="Go on.", agent=wrong.get("agent"))
    refused = continuing.refuse(state, ContinueFacts(w.states["P"], question), body, wrong.get("caller", "P"))
    assert code(refused) == EVERYTHING_WRONG[first][1]


def test_unknown_and_foreign_are_one_answer(w: World, child: str) -> None:
    body = parse(_Continue, session_id=child, task="Go on.")
    facts = ContinueFacts(w.states["P"], None)
    foreign = continuing.refuse(w.states[child], facts, body, "stranger")
    assert foreign == continuing.refuse(None, ContinueFacts(None, None), body, "stranger")


@pytest.mark.parametrize(
    ("who", "may", "waits", "why"),
    [
        ("P", True, True, "its parent, whose period waits for the report"),
        ("itself", True, False, "a person who types into it"),
        ("operator", True, False, "an operator"),
        ("grandparent", False, False, "who sees it, and has no conversation with it"),
        ("sibling", False, False, "a sibling"),
        ("runner-1", False, False, "a runner that holds nothing here"),
    ],
)
def test_who_may_continue(w: World, child: str, who: str, may: bool, waits: bool, why: str) -> None:
    _, sibling = w.spawn("P", host="self")
    w.open("root")
    target = child
    if who == "grandparent":
        _, below = w.spawn(child, host="self")
        target, who = below.session_id, "P"
    w.settle(target)
    w.report_all()
    caller = {"itself": target, "sibling": sibling.session_id}.get(who, who)
    decision, run_id = w.continue_(caller, target)
    assert (code(decision) is None) is may, why
    parent = w.states[w.states[target].parent_session_id or ""]
    assert any(c.run_id == run_id for c in parent.children) is waits, why


def test_continue_keeps_and_changes(w: World) -> None:
    """Id, history, host and model stay; a model given now stays; budget and answer are this run's own."""
    _, ids = w.spawn("P", host="self", model="m-1", variant="low", step_budget=1)
    w.append(ids.session_id, steps=1)
    w.settle(ids.session_id, answer="Old.")
    _, second = w.continue_("P", ids.session_id, model="m-2", step_budget=2)
    run = w.runs[second]
    assert (run.model, run.variant, run.steps, run.step_budget, run.answer) == ("m-2", "low", 0, 2, None)
    assert (run.ordinal, run.history_from) == (2, 3)
    w.settle(ids.session_id)
    _, third = w.continue_("P", ids.session_id)
    assert (w.runs[third].model, w.runs[third].step_budget) == ("m-2", None)
    assert [m["index"] for m in w.history[ids.session_id]] == [1, 2, 3, 4]


def test_continue_of_a_gone_self_host_makes_the_caller_its_host(w: World) -> None:
    _, ids = w.spawn("P", host="self", lease_ms=1000)
    w.open(ids.session_id, agent="worker")
    assert w.states[ids.session_id].holder == ids.session_id
    w.gone(ids.session_id)
    w.continue_("P", ids.session_id)
    state = w.states[ids.session_id]
    assert (state.live, state.holder) == (True, "P")


@pytest.mark.parametrize(
    ("named", "above", "expected", "why"),
    [
        (True, True, "named", "the run that is named"),
        (False, True, "active", "else the parent's active one"),
        (False, False, "last", "else the last that the session had"),
    ],
)
def test_parent_run(w: World, child: str, named: bool, above: bool, expected: str, why: str) -> None:
    first = w.runs[w.active(child).run_id].parent_run_id
    w.settle(child)
    w.settle("P")
    if above:
        w.start("P")
    current = w.active("P").run_id if above else None
    body = {"run_id": first} if named else {}
    _, run_id = w.continue_("P", child, **body)
    wanted = {"named": first, "active": current, "last": first}[expected]
    assert w.runs[run_id].parent_run_id == wanted, why


def test_foreground_run_first_closes_an_open_period(w: World, child: str) -> None:
    """Two entries: the earlier period is reported on its own."""
    w.settle(child, background=[{"work_id": "w", "kind": "shell", "label": "x"}])
    first = w.states[child].period
    assert first is not None
    _, run_id = w.continue_("P", child, background=False)
    assert [(s, p.period_id, [i.id for i in p.pending]) for s, p in w.closed] == [
        (child, first.period_id, ["w"])
    ]
    assert w.runs[run_id].period_id != first.period_id
    period = w.states[child].period
    assert period is not None
    assert (period.foreground, period.for_run) == (
        True,
        w.active("P").run_id,
    )


def test_background_run_joins_an_open_period(w: World, child: str) -> None:
    w.settle(child, background=[{"work_id": "w", "kind": "shell", "label": "x"}])
    first = w.states[child].period
    _, run_id = w.continue_("P", child)
    assert first is not None
    assert w.runs[run_id].period_id == first.period_id
    w.finish(child, "w")
    assert w.closed == []
    w.settle(child)
    assert [p.runs[-1] for _, p in w.closed] == [run_id]


def test_counting_lets_go_of_the_runs_of_the_report(w: World, child: str) -> None:
    """A report of an earlier period does not let go of a later run, and is counted once."""
    w.settle(child)
    w.continue_("P", child)
    w.report(*w.undecided[0])
    record = w.uncounted.pop()
    assert isinstance(w.count(record), Decided)
    assert w.count(record) is None
    assert [c.run_id for c in w.states["P"].children] == [w.active(child).run_id]
