"""Commands: one strict model for each body, with the keys that its result has."""

from dataclasses import dataclass
from typing import Final

from .base import CommandBody
from .inbox import InboxHandle
from .question import QuestionAnswer, QuestionAsk, QuestionCancel
from .report import ReportRelease
from .run import Background, Message, RunAppend, RunClaim, RunSettle, RunStart
from .session import (
    SessionBackground,
    SessionCancel,
    SessionClose,
    SessionContinue,
    SessionOpen,
    SessionSpawn,
)
from .work import WorkFinish

__all__ = [
    "COMMANDS",
    "Background",
    "CommandBody",
    "CommandSpec",
    "InboxHandle",
    "Message",
    "QuestionAnswer",
    "QuestionAsk",
    "QuestionCancel",
    "ReportRelease",
    "RunAppend",
    "RunClaim",
    "RunSettle",
    "RunStart",
    "SessionBackground",
    "SessionCancel",
    "SessionClose",
    "SessionContinue",
    "SessionOpen",
    "SessionSpawn",
    "WorkFinish",
]


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A row of the command table."""

    model: type[CommandBody]
    result_keys: tuple[str, ...]  # what the result of the reply holds


_ADMITTED = ("session_id", "run_id", "period_id", "status")

COMMANDS: Final[dict[tuple[str, str], CommandSpec]] = {
    ("session", "open"): CommandSpec(SessionOpen, ("session",)),
    ("session", "spawn"): CommandSpec(SessionSpawn, _ADMITTED),
    ("session", "continue"): CommandSpec(SessionContinue, _ADMITTED),
    ("session", "background"): CommandSpec(SessionBackground, ("run",)),
    ("session", "cancel"): CommandSpec(SessionCancel, ("cancelled",)),
    ("session", "close"): CommandSpec(SessionClose, ("session",)),
    ("run", "start"): CommandSpec(RunStart, ("run",)),
    ("run", "claim"): CommandSpec(RunClaim, ("run", "session", "questions", "questions_left")),
    ("run", "append"): CommandSpec(RunAppend, ("history_seq",)),
    ("run", "settle"): CommandSpec(RunSettle, ("run",)),
    ("work", "finish"): CommandSpec(WorkFinish, ("work",)),
    ("inbox", "handle"): CommandSpec(InboxHandle, ("handled",)),
    ("question", "ask"): CommandSpec(QuestionAsk, ("question",)),
    ("question", "answer"): CommandSpec(QuestionAnswer, ("question",)),
    ("question", "cancel"): CommandSpec(QuestionCancel, ("question",)),
    ("report", "release"): CommandSpec(ReportRelease, ("report",)),
}
"""Every command by (noun, verb)."""
