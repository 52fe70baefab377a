"""The command on an inbox: handle."""

from upcall_contracts.ids import Token

from .base import CommandBody


class InboxHandle(CommandBody):
    """Say that items have been handled; what is unknown or handled already is skipped."""

    item_ids: list[Token]
    """The items."""
    session_id: Token | None = None
    """Whose inbox; absent, the caller's own."""
