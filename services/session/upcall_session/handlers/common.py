"""What all handlers of commands share."""

from typing import Any, TypeVar

from upcall_contracts.commands import CommandBody
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import derive_id
from upcall_session.decisions.results import Asked, Repeated
from upcall_session.sessions import Outcome
from upcall_shell.commands import Command

B = TypeVar("B", bound=CommandBody)
Reply = dict[str, Any] | Refusal


def asked(command: Command[Any]) -> Asked:
    """A command as decisions take it."""
    return Asked(command.caller, command.mark(), command.command_id, command.stored_at)


def new_id(prefix: str, command: Command[Any]) -> str:
    """An id that follows from the command."""
    return derive_id(prefix, command.caller, f"{command.noun}.{command.verb}", command.command_id)


def run_id_of(outcome: Outcome) -> str:
    """The run that a repeated command's result names."""
    decision = outcome.decision
    return str(decision.result["run_id"]) if isinstance(decision, Repeated) else ""
