"""The Python client of Upcall: a subagent asks its parent, is continued by its id, and is reported once.

async with upcall.connect() as up:
    planner = await up.open_session("planner-1", agent="planner")
    child = await planner.spawn("explorer", "map the API")
    async for item in planner.inbox():
        match item:
            case upcall.Question(): await item.answer("keep v1", rationale="clients depend on it")
            case upcall.Report(): print(item.text); await item.handle()
"""

from .asking import Answer
from .children import Child, Result, Results
from .connection import Upcall, connect
from .errors import (
    AlreadyAskedError,
    AlreadyResolvedError,
    ChildrenFailedError,
    ConnectError,
    ForbiddenError,
    InvalidError,
    NoAnswerError,
    NoParentError,
    NoReplyError,
    NotFoundError,
    OverloadedError,
    ParentGoneError,
    ParentUnavailableError,
    QuestionCancelledError,
    QuestionOpenError,
    QuestionTimedOutError,
    RefusedError,
    RunNotActiveError,
    SessionBusyError,
    SessionClosedError,
    StaleAttemptError,
    StepBudgetError,
    UnknownOptionError,
    UpcallError,
)
from .inbox import Inbox
from .items import Item, Question, Report, Work
from .run import Background, Run
from .runner import Runner
from .session import Session

__all__ = [
    "AlreadyAskedError",
    "AlreadyResolvedError",
    "Answer",
    "Background",
    "Child",
    "ChildrenFailedError",
    "ConnectError",
    "ForbiddenError",
    "Inbox",
    "InvalidError",
    "Item",
    "NoAnswerError",
    "NoParentError",
    "NoReplyError",
    "NotFoundError",
    "OverloadedError",
    "ParentGoneError",
    "ParentUnavailableError",
    "Question",
    "QuestionCancelledError",
    "QuestionOpenError",
    "QuestionTimedOutError",
    "RefusedError",
    "Report",
    "Result",
    "Results",
    "Run",
    "RunNotActiveError",
    "Runner",
    "Session",
    "SessionBusyError",
    "SessionClosedError",
    "StaleAttemptError",
    "StepBudgetError",
    "UnknownOptionError",
    "Upcall",
    "UpcallError",
    "Work",
    "connect",
]
