"""The command on background work: finish."""

from typing import Literal

from upcall_contracts.fields import LongText
from upcall_contracts.ids import Token
from upcall_contracts.records import WorkOutcome

from .base import CommandBody


class WorkFinish(CommandBody):
    """Say that background work has ended; it may come before the settle that names the work."""

    work_id: Token
    """The work."""
    outcome: Literal[WorkOutcome.COMPLETED, WorkOutcome.FAILED, WorkOutcome.CANCELLED]
    """How it ended."""
    session_id: Token | None = None
    """The session that left it; absent, the caller's own."""
    summary: LongText | None = None
    """What came of it."""
