"""What all handlers of commands share."""

from typing import Any, TypeVar

from upcall_contracts import refusals
from upcall_contracts.commands import CommandBody
from upcall_contracts.errors import Refusal
from upcall_contracts.states import SessionState
from upcall_session.clock import now_ms
from upcall_session.decisions.results import Asked, Decided, Repeated
from upcall_session.reach import Reach
from upcall_session.sessions import Decision, Outcome, Sessions
from upcall_shell.commands import Command

B = TypeVar("B", bound=CommandBody)
Reply = dict[str, Any] | Refusal


def asked(command: Command[Any]) -> Asked:
    """A command as decisions take it."""
    return Asked(command.caller, command.mark(), command.given_id, command.stored_at, now_ms())


async def visible_session(
    sessions: Sessions, reach: Reach, who: Asked, session_id: str
) -> SessionState | Refusal:
    """A session that the caller may see, or did this very command to when it could."""
    found = await reach.visible_session(who.caller, session_id)
    if isinstance(found, Refusal) and await sessions.remembers(session_id, who):
        return await reach.session(session_id) or found
    return found


def unless_full(decision: Decision, *, overloaded: bool) -> Decision:
    """Over UPCALL_MAX_LOG_BYTES nothing new is opened. What is no news is answered as ever."""
    return refusals.overloaded() if overloaded and isinstance(decision, Decided) else decision


def run_id_of(outcome: Outcome) -> str:
    """The run that a repeated command's result names."""
    decision = outcome.decision
    return str(decision.result["run_id"]) if isinstance(decision, Repeated) else ""
