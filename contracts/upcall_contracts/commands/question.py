"""Commands on questions: ask, answer and cancel.

What depends on the question itself (an option that was not offered, a fallback that is required) has codes of
its own and is not decided here.
"""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator

from upcall_contracts import limits
from upcall_contracts.base import CLOSED
from upcall_contracts.fields import (
    LongText,
    Meta,
    Options,
    Positive,
    QuestionText,
    TimeoutMs,
    is_blank,
    one_of,
    problem,
)
from upcall_contracts.ids import Token
from upcall_contracts.records import Action

from .base import CommandBody


class QuestionAsk(CommandBody):
    """Ask the parent session one question, and wait."""

    run_id: Token
    """The run that asks."""
    question: QuestionText
    """What is asked."""
    why_blocked: QuestionText
    """Why the child can't decide it."""
    options: Options = Field(default_factory=list[str])
    """The answers offered; none means that any text will do."""
    recommended_option: str | None = None
    """The option that the child would take; one of the options."""
    can_continue_without_answer: bool = False
    """True: without an answer the child goes on with the fallback."""
    fallback: LongText | None = None
    """What the child does without an answer."""
    timeout_ms: TimeoutMs = limits.QUESTION_TIMEOUT_DEFAULT_MS
    """How long to wait."""
    task_id: Token | None = None
    """The caller's own id of the task; absent, the run's."""
    attempt: Positive | None = None
    """The attempt that the caller holds; required from runners."""
    meta: Meta | None = None
    """What to keep with the question."""


class QuestionAnswer(CommandBody):
    """Decide a child's question, or decline to."""

    model_config = ConfigDict(
        json_schema_extra={
            **CLOSED,
            "anyOf": [
                {"required": ["answer"], "properties": {"answer": {"type": "string", "pattern": r"\S"}}},
                {"required": ["action"], "properties": {"action": {"const": Action.DECLINE.value}}},
            ],
        }
    )

    request_id: Token
    """The question."""
    # before the answer, whose rule needs it: pydantic validates in the order of definition
    action: Action = Action.ACCEPT
    """Whether the answer decides, or says that the parent won't."""
    answer: LongText | None = Field(None, validate_default=True)
    """What is decided; absent only when declining."""
    rationale: LongText | None = None
    """Why."""
    selected_option: str | None = None
    """The option chosen, as it was offered."""

    @field_validator("answer")
    @classmethod
    def _accepting_needs_an_answer(cls, answer: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("action") is Action.ACCEPT and is_blank(answer):
            raise problem("is required and must not be blank, unless action is decline")
        return answer


def _one_of_two(run_id: str | None, info: ValidationInfo) -> str | None:
    if "request_id" in info.data and (info.data["request_id"] is None) == (run_id is None):
        raise problem("give request_id or run_id, and not both")
    return run_id


class QuestionCancel(CommandBody):
    """Take a question back, by its id or as the open one of a run."""

    model_config = ConfigDict(json_schema_extra={**CLOSED, **one_of("request_id", "run_id")})

    request_id: Token | None = None
    """The question."""
    run_id: Annotated[Token | None, AfterValidator(_one_of_two)] = Field(None, validate_default=True)
    """The run whose open question is meant."""
    reason: LongText | None = None
    """Why."""
