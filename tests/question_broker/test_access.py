"""Who may see a question: sessions downwards, runners what they hold, operators everything."""

import pytest

from tests.question_broker.situations import CHILD, PARENT, RUNNER, Situation, child_state, parent_state
from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import Host
from upcall_contracts.states import SessionState
from upcall_question_broker.decisions import access

SELF_LINE = [child_state(), parent_state()]
CHILD_HELD = [Situation().held_by_runner().child, parent_state()]
PARENT_HELD = [child_state(), parent_state(host=Host.RUNNER, holder=RUNNER)]


@pytest.mark.parametrize(
    ("line", "caller", "sees"),
    [
        pytest.param(SELF_LINE, CHILD, True, id="a session itself"),
        pytest.param(SELF_LINE, PARENT, True, id="its parent"),
        pytest.param(SELF_LINE, OPERATOR, True, id="an operator"),
        pytest.param([], OPERATOR, True, id="an operator, where nothing is left of the session"),
        pytest.param([parent_state()], CHILD, False, id="not a child what is its parent's"),
        pytest.param(SELF_LINE, "stranger", False, id="not a stranger"),
        pytest.param(CHILD_HELD, RUNNER, True, id="a runner what it holds"),
        pytest.param(PARENT_HELD, RUNNER, True, id="and what is below"),
        pytest.param([parent_state()], RUNNER, False, id="but not what is above"),
        pytest.param([], PARENT, False, id="nobody else, where nothing is left of the session"),
    ],
)
def test_who_may_see(line: list[SessionState], caller: str, sees: bool) -> None:
    assert access.may_see(caller, line) is sees
