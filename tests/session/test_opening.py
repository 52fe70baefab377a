"""session.open: new sessions, and new processes for old ones."""

from __future__ import annotations

import pytest

from tests.session.world import World
from upcall_contracts.errors import Refusal
from upcall_contracts.records import Host, Outcome
from upcall_session.decisions.results import Decided, Repeated


def test_caller_becomes_a_root() -> None:
    """Who opens is its own root and its own host, live, idle, and never gone."""
    w = World()
    w.open("S", title="Shop", meta={"k": 1})
    state = w.states["S"]
    assert (state.root_session_id, state.parent_session_id, state.depth) == ("S", None, 0)
    assert (state.holder, state.live, state.lease_ms, state.status.value) == ("S", True, 0, "idle")
    assert (state.title, state.meta) == ("Shop", {"k": 1})


@pytest.mark.parametrize(
    ("body", "lease", "why"),
    [
        ({"host": "self"}, 0, "a person, or a script, is never gone"),
        ({"host": "self", "lease_ms": 5000}, 5000, "unless it says so"),
        ({"host": "runner"}, 15_000, "runners use UPCALL_LEASE_MS"),
        ({"host": "runner", "lease_ms": 0}, 0, "unless the opener says otherwise"),
    ],
)
def test_lease(body: dict[str, object], lease: int, why: str) -> None:
    w = World()
    w.open("S", **body)
    assert w.states["S"].lease_ms == lease, why


def test_operator_cannot_open() -> None:
    """No session can have the operator's name."""
    decision = World().open("operator")
    assert isinstance(decision, Refusal)
    assert decision.code == "invalid_id"


def test_refusals_of_a_second_open(w: World) -> None:
    """Another agent is a mismatch, and that is said before that the session is closed."""
    mismatch = w.open("P", agent="other")
    w.close("P")
    closed, both = w.open("P"), w.open("P", agent="other")
    assert [d.code for d in (mismatch, closed, both) if isinstance(d, Refusal)] == [
        "agent_mismatch",
        "session_closed",
        "agent_mismatch",
    ]


def test_given_again_replaces_and_the_rest_stays(w: World) -> None:
    w.open("P", title="Shop", meta={"a": 1}, lease_ms=1000)
    w.open("P", title="Store")
    assert (w.states["P"].title, w.states["P"].meta, w.states["P"].lease_ms) == ("Store", {"a": 1}, 1000)


def test_new_process_loses_the_active_run_and_the_shells(w: World) -> None:
    """Nobody carries out what the old process had begun; what it had left running died with it."""
    w.settle("P", background=[{"work_id": "sh", "kind": "shell", "label": "x"}])
    w.start("P")
    run = w.states["P"].run
    assert run is not None
    w.open("P")
    assert w.runs[run.run_id].outcome is Outcome.LOST
    assert w.works["P", "sh"].outcome == "lost"
    assert w.states["P"].live
    assert w.states["P"].period is None


def test_new_process_of_a_gone_session_is_live(w: World) -> None:
    w.open("P", lease_ms=1000)
    w.gone("P")
    assert not w.states["P"].live
    w.open("P")
    assert w.states["P"].live


def test_runner_hosted_session_opened_again_keeps_its_run(w: World, hosted: str) -> None:
    """Its runs are its runners' business: opening it gives it a title and takes nothing from it."""
    w.open(hosted, agent="worker", title="Mine")
    state = w.states[hosted]
    assert state.host is Host.RUNNER
    assert state.run is not None
    assert (state.title, state.holder) == ("Mine", "runner-1")


def test_repeated_command_decides_nothing(w: World) -> None:
    """Sent again it is recognised; with another body it is refused."""
    from upcall_contracts.commands import SessionOpen
    from upcall_contracts.log import CommandMark
    from upcall_session.decisions import opening
    from upcall_session.decisions.results import Asked

    body = SessionOpen(agent="lead")
    asked = Asked("P", CommandMark(key="P/session.open/c", fingerprint="f"), "c", w.now)
    first = opening.open_session(w.states["P"], body, asked, w.rules)
    while isinstance(first, Decided) and first.more:
        first = opening.open_session(first.state, body, asked, w.rules)
    assert isinstance(first, Decided)
    assert isinstance(opening.open_session(first.state, body, asked, w.rules), Repeated)
    other = Asked("P", CommandMark(key="P/session.open/c", fingerprint="g"), "c", w.now)
    refused = opening.open_session(first.state, body, other, w.rules)
    assert isinstance(refused, Refusal)
    assert refused.code == "command_id_reused"
