"""Who may see a session, speak for it, and continue it. What the caller is comes from the subject alone.

All else is answered as if it did not exist.
"""

from collections.abc import Iterable

from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import Host, RunRecord
from upcall_contracts.states import SessionState


def speaks_for(caller: str, session: SessionState) -> bool:
    """Whether the caller may say for a session's run what the session may say.

    That is the session, its holder, a runner that left work there, and an operator.
    """
    return caller in (OPERATOR, session.session_id, session.holder) or any(
        link.holder == caller for link in session.work
    )


def carries_out(caller: str, session: SessionState, run: RunRecord) -> bool:
    """Whether the caller is who carries a run out: its holder, its session, or an operator.

    Who left work in the session, or has lost a run there, is not.
    """
    if caller in (OPERATOR, session.session_id, run.holder):
        return True
    return session.host is Host.SELF and caller == session.holder


def spoke_for(caller: str, session: SessionState, run: RunRecord) -> bool:
    """Whether the caller may hear what became of a run: it speaks for it, held it, or has lost it."""
    return speaks_for(caller, session) or caller == run.holder or caller in session.former_holders


def is_runner(caller: str, session: SessionState) -> bool:
    """Whether the caller speaks as a runner, and so must name its attempt."""
    return session.host is Host.RUNNER and caller not in (OPERATOR, session.session_id)


def sees(caller: str, line: Iterable[SessionState]) -> bool:
    """Whether the caller may see what belongs to a session; `line` is the session and its ancestors.

    A session sees itself and what is below it, a runner what it holds and what is below that.
    """
    return caller == OPERATOR or any(speaks_for(caller, session) for session in line)


def may_continue(caller: str, session: SessionState, parent: SessionState | None) -> bool:
    """Whether the caller may continue a session: its parent, the session itself, or an operator.

    A runner may for the session that it holds, and for the children of that session. Who spawned a
    self-hosted session may carry its runs out, and is no parent of its children for that.
    """
    if caller in (OPERATOR, session.session_id) or _holds(caller, session):
        return True
    return is_for_parent(caller, session, parent)


def is_for_parent(caller: str, session: SessionState, parent: SessionState | None) -> bool:
    """Whether the caller continues a session for its parent, so that the parent's period waits for it."""
    if parent is None or caller in (OPERATOR, session.session_id):
        return False
    return caller == parent.session_id or _holds(caller, parent)


def _holds(runner: str, session: SessionState) -> bool:
    return session.host is Host.RUNNER and speaks_for(runner, session)
