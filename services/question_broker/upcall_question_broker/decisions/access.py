"""Who may speak for a run, answer a question, and see it. What the caller is comes from the subject."""

from collections.abc import Iterable

from upcall_contracts.ids import OPERATOR
from upcall_contracts.records import Host, RunRecord
from upcall_contracts.states import SessionState


def holds(caller: str, session: SessionState) -> bool:
    """Whether the caller is the runner that holds a session.

    A session that spawned a child to carry it out itself is none: it is whom the child asks, and it speaks
    for the child under the child's own id.
    """
    return session.host is Host.RUNNER and caller == session.holder


def speaks_for(caller: str, session: SessionState) -> bool:
    """Whether the caller may ask for a run: its session, or the runner that holds it."""
    return caller == session.session_id or holds(caller, session)


def spoke_for(caller: str, session: SessionState, run: RunRecord | None) -> bool:
    """Whether the caller may hear what became of a run: it speaks for it, held it, or has lost it."""
    held = {*session.former_holders, run.holder if run is not None else None}
    return speaks_for(caller, session) or (session.host is Host.RUNNER and caller in held)


def is_runner(caller: str, session: SessionState) -> bool:
    """Whether the caller speaks as a session's runner, and not as the session: it must name its attempt."""
    return session.host is Host.RUNNER and caller != session.session_id


def may_answer(caller: str, parent_session_id: str, parent: SessionState | None) -> bool:
    """Whether the caller may decide a question: the parent session, its runner, or an operator."""
    return caller in {OPERATOR, parent_session_id} or (parent is not None and holds(caller, parent))


def may_cancel(caller: str, child: SessionState) -> bool:
    """Whether the caller may take a question back: the child, who holds it, or an operator."""
    return caller == OPERATOR or speaks_for(caller, child)


def may_see(caller: str, line: Iterable[SessionState]) -> bool:
    """Whether the caller may see what belongs to a session.

    `line` is the session and its ancestors: each session sees itself and what is below it, a runner what it
    holds and what is below that, an operator everything.
    """
    return caller == OPERATOR or any(speaks_for(caller, session) for session in line)
