"""Commands on runs: start, claim, append and settle."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue

from upcall_contracts.base import StrictBody
from upcall_contracts.fields import (
    NULL_IS_EMPTY,
    Count,
    LongText,
    Positive,
    RequiredLabel,
    check_not_blank,
    problem,
)
from upcall_contracts.ids import Token
from upcall_contracts.records import Outcome, Trigger, WorkKind

from .base import CommandBody


class RunStart(CommandBody):
    """Start a run of the caller's own session, which it carries out itself."""

    task: LongText | None = None
    """What it is about; absent, what its causes say."""
    trigger: Literal[Trigger.SELF, Trigger.PROMPT] = Trigger.SELF
    """What started it: the host itself, or a person who typed something."""
    causes: Annotated[list[Token], NULL_IS_EMPTY] = Field(default_factory=list[Token])
    """The inbox items that it takes up."""


class RunClaim(CommandBody):
    """Become the holder of a dispatched run."""

    run_id: Token
    """The run."""


class Message(StrictBody):
    """One message of a history; whatever else stands in it is kept."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": True})
    if not TYPE_CHECKING:  # for pydantic: the types of extra fields; a checker would want them given
        __pydantic_extra__: dict[str, JsonValue]

    role: Annotated[str, AfterValidator(check_not_blank)]
    """Who speaks: user, assistant, tool, or what the harness calls it."""
    content: JsonValue
    """What is said: a text, or the harness's own blocks."""


class RunAppend(CommandBody):
    """Add messages to the history of a run."""

    run_id: Token
    """The run."""
    messages: Annotated[list[Message], Field(min_length=1)]
    """What to add, in order."""
    from_: Positive | None = Field(None, validation_alias="from", serialization_alias="from")
    """The index that the first message will have: the command waits for what belongs before it."""
    steps: Count | None = None
    """How many steps of the budget these messages are."""
    attempt: Positive | None = None
    """The attempt that the caller holds; required from runners."""


class Background(StrictBody):
    """Something that a run leaves running when it settles."""

    work_id: Token
    """Its id, for work.finish."""
    kind: Literal[WorkKind.SHELL, WorkKind.OTHER]
    """A process of the host, or anything else."""
    label: RequiredLabel
    """What to call it."""
    wakes: bool = False
    """True: its end wakes the session."""


def _each_once(background: list[Background]) -> list[Background]:
    if len({item.work_id for item in background}) < len(background):
        raise problem("must not hold the same work_id twice")
    return background


class RunSettle(CommandBody):
    """End a run, and say what it leaves running."""

    run_id: Token
    """The run."""
    outcome: Literal[Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED, Outcome.HALTED, Outcome.TIMED_OUT]
    """How it ended."""
    answer: LongText | None = None
    """What it produced."""
    error: LongText | None = None
    """Why it failed."""
    history_seq: Count | None = None
    """The index of the last message it stands on: the command waits for that one."""
    background: Annotated[list[Background], AfterValidator(_each_once), NULL_IS_EMPTY] = Field(
        default_factory=list[Background]
    )
    """All that it leaves running."""
    attempt: Positive | None = None
    """The attempt that the caller holds; required from runners."""
