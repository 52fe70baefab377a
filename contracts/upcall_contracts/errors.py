"""The error codes of the wire, and refusals as values. `refusals` has the sentence for each situation."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, cast


class ErrorCode(StrEnum):
    """Stable codes; a program decides by them and never by the message."""

    # bad input
    INVALID = "invalid"
    INVALID_JSON = "invalid_json"
    INVALID_ID = "invalid_id"
    TOO_LARGE = "too_large"
    UNKNOWN_VERB = "unknown_verb"
    # not there, or not the caller's
    UNKNOWN_SESSION = "unknown_session"
    UNKNOWN_RUN = "unknown_run"
    UNKNOWN_REQUEST = "unknown_request"
    UNKNOWN_REPORT = "unknown_report"
    # continuing, starting, spawning
    SESSION_CLOSED = "session_closed"
    SESSION_BUSY = "session_busy"
    QUESTION_OPEN = "question_open"
    AGENT_MISMATCH = "agent_mismatch"
    WRONG_HOST = "wrong_host"
    TOO_DEEP = "too_deep"
    # running
    RUN_NOT_ACTIVE = "run_not_active"
    RUN_NOT_CLAIMABLE = "run_not_claimable"
    STALE_ATTEMPT = "stale_attempt"
    STEP_BUDGET_EXHAUSTED = "step_budget_exhausted"
    # asking
    NO_PARENT = "no_parent"
    PARENT_UNAVAILABLE = "parent_unavailable"
    FALLBACK_REQUIRED = "fallback_required"
    INVALID_RECOMMENDATION = "invalid_recommendation"
    DUPLICATE_QUESTION = "duplicate_question"
    QUESTION_ALREADY_OPEN = "question_already_open"
    QUESTION_LIMIT_REACHED = "question_limit_reached"
    # answering
    UNKNOWN_OPTION = "unknown_option"
    ALREADY_RESOLVED = "already_resolved"
    # releasing
    NOT_HELD = "not_held"
    # any command
    COMMAND_ID_REUSED = "command_id_reused"
    # ours
    OVERLOADED = "overloaded"
    INTERNAL = "internal"


RETRYABLE: Final = frozenset(
    {ErrorCode.SESSION_BUSY, ErrorCode.QUESTION_OPEN, ErrorCode.OVERLOADED, ErrorCode.INTERNAL}
)
"""The codes for which the same command may succeed later."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a command or query was refused: nothing has changed."""

    code: ErrorCode
    message: str  # one sentence or two: what happened, and what to do next
    details: dict[str, Any] = field(default_factory=dict[str, Any])  # JSON values only

    @property
    def retryable(self) -> bool:
        """Whether the same command may succeed later."""
        return self.code in RETRYABLE

    def to_reply(self) -> dict[str, Any]:
        """The reply that tells the caller."""
        return {
            "ok": False,
            "error": {
                "code": self.code.value,
                "message": self.message,
                "retryable": self.retryable,
                "details": self.details,
            },
        }


def ok(result: dict[str, Any]) -> dict[str, Any]:
    """The reply to a command or query that was carried out."""
    return {"ok": True, "result": result}


def parse_reply(raw: bytes | str) -> dict[str, Any] | Refusal:
    """Read a reply as its result or a refusal. ValueError if it is no reply.

    A code of a newer server becomes `internal` where it is retryable and `invalid` where not, and stays
    readable as details["code"].
    """
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("a reply is a JSON object")
    reply = cast(dict[str, Any], body)
    result, error = reply.get("result"), reply.get("error")
    if reply.get("ok") is True and isinstance(result, dict):
        return cast(dict[str, Any], result)
    if reply.get("ok") is False and isinstance(error, dict):
        return _read_error(cast(dict[str, Any], error))
    raise ValueError("a reply has ok and result, or ok and error")


def _read_error(error: dict[str, Any]) -> Refusal:
    code, message, details = str(error.get("code")), str(error.get("message", "")), error.get("details")
    known = dict(cast(dict[str, Any], details)) if isinstance(details, dict) else {}
    try:
        return Refusal(ErrorCode(code), message, known)
    except ValueError:
        nearest = ErrorCode.INTERNAL if error.get("retryable") is True else ErrorCode.INVALID
        return Refusal(nearest, message, {**known, "code": code})
