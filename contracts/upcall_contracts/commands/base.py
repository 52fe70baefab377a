"""What every command's body shares."""

from upcall_contracts.base import StrictBody
from upcall_contracts.fields import CommandId


class CommandBody(StrictBody):
    """The body of a command. Null is the same as absent wherever absent means none."""

    command_id: CommandId | None = None
    """Makes the command idempotent within caller, noun and verb; without it the stream's sequence serves."""
