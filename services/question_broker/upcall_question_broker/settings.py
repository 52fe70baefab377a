"""The broker's settings: `UPCALL_…`."""

from pydantic import Field

from upcall_contracts import limits
from upcall_shell.settings import ShellSettings


class BrokerSettings(ShellSettings):
    """What an operator may set."""

    max_questions_per_run: int = Field(default=limits.DEFAULT_MAX_QUESTIONS_PER_RUN, gt=0)
    """Over it, an ask is refused as question_limit_reached."""
