"""Who may speak for a run, answer a question, and see it. What the caller is comes from the subject."""

from collections.abc import Iterable

from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import Host
from upcall_contracts.states import SessionState


def speaks_for(caller: str, session: SessionState) -> bool:
    """Whether the caller may say for a run what its session may say: the session, or whoever holds it."""
    return caller in {session.session_id, session.holder}


def is_runner(caller: str, session: SessionState) -> bool:
    """Whether the caller speaks as a session's runner, and not as the session: it must name its attempt."""
    return caller != session.session_id and session.host is Host.RUNNER


def may_answer(caller: str, parent_session_id: str, parent: SessionState | None) -> bool:
    """Whether the caller may decide a question: the parent session, who holds it, or an operator."""
    return caller in {OPERATOR, parent_session_id} or (parent is not None and caller == parent.holder)


def may_cancel(caller: str, child: SessionState) -> bool:
    """Whether the caller may take a question back: the child, who holds it, or an operator."""
    return caller == OPERATOR or speaks_for(caller, child)


def may_see(caller: str, line: Iterable[SessionState]) -> bool:
    """Whether the caller may see what belongs to a session.

    `line` is the session and its ancestors: each session sees itself and what is below it, a runner what it
    holds and what is below that, an operator everything.
    """
    return caller == OPERATOR or any(speaks_for(caller, session) for session in line)
