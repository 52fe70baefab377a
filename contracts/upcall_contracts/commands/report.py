"""The command on reports: release."""

from upcall_contracts.fields import LongText
from upcall_contracts.ids import Token

from .base import CommandBody


class ReportRelease(CommandBody):
    """Have a held report delivered now; what still runs is named in it."""

    session_id: Token
    """The session whose report is held."""
    reason: LongText | None = None
    """Why."""
