"""What a decision takes besides the state, and what it comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcall_contracts.errors import Refusal
from upcall_contracts.events import Item
from upcall_contracts.log import CommandMark
from upcall_contracts.records import RunRecord, WorkRecord
from upcall_contracts.states import SessionState


@dataclass(frozen=True, slots=True)
class Asked:
    """A command, as far as every decision needs it."""

    caller: str
    mark: CommandMark
    """What the entry remembers of it."""
    command_id: str | None
    """The command_id; None where none was given."""
    now: int
    """Epoch ms at which JetStream stored it: the command's time."""
    decided_at: int = 0
    """Epoch ms at which it is decided."""

    @property
    def from_now(self) -> int:
        """Epoch ms from which a deadline counts that gives somebody time: nobody heard of it before."""
        return max(self.now, self.decided_at)


@dataclass(frozen=True, slots=True)
class Decided:
    """One entry of the log."""

    subject: str
    type: str
    state: SessionState
    """The whole state after it."""
    run_id: str = ""
    """The run that the event is of; empty for a note."""
    parent_run_id: str | None = None
    """The run on whose topic its copy stands."""
    task_id: str | None = None
    data: RunRecord | WorkRecord | None = None
    """The record as it stands after the decision."""
    item: Item | None = None
    """Where the event is an item of the session's own inbox."""
    history: Sequence[dict[str, Any]] = ()
    """Messages that it adds to the session's history."""
    mark: CommandMark | None = None
    """The command that it carries out."""
    more: bool = False
    """The command is not carried out yet: decide again on the state after this entry."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same command was carried out before; `result` has what its reply is made of."""

    result: Mapping[str, int | str | None]


@dataclass(frozen=True, slots=True)
class NotYet:
    """What belongs before it is missing; waited for in vain, it is refused."""

    refusal: Refusal
