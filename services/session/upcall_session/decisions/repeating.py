"""A repeated command decides nothing new. The log remembers the last commands beside the state."""

from upcall_contracts import refusals
from upcall_contracts.errors import Refusal
from upcall_contracts.states import DoneCommand, SessionState

from .results import Asked, Repeated

DONE_MAX = 16
"""How many commands a state remembers. The index knows the others, and the log knows them all; this is the
cheap part of it, and what settles two deliveries of one command that are handled at once."""


def repeated(state: SessionState, asked: Asked) -> Repeated | Refusal | None:
    """What to say of a command that was carried out here before; None if it was not."""
    for done in state.done:
        if done.key == asked.mark.key:
            if done.fingerprint != asked.mark.fingerprint:
                return refusals.command_id_reused(asked.command_id or "")
            return Repeated(done.result)
    return None


def done(state: SessionState, asked: Asked, **result: int | str | None) -> SessionState:
    """The state that remembers the command, with what its reply is made of."""
    entry = DoneCommand(key=asked.mark.key, fingerprint=asked.mark.fingerprint, result=result)
    return state.model_copy(update={"done": [*state.done, entry][-DONE_MAX:]})
