"""Every exception of the client, in one tree; each message says what to do next.

UpcallError
├── ConnectError              no NATS server answered
├── ForbiddenError            NATS does not let this user say that
├── NoReplyError              a command or query got no reply in time
├── RefusedError              a service said no, and nothing has changed; see its code
│   ├── InvalidError          bad input: details["fields"] names all that is wrong
│   ├── NotFoundError         not there, or not yours
│   ├── SessionClosedError    closed for good
│   ├── SessionBusyError      its run is active; try again later
│   │   └── QuestionOpenError ... and waits for the answer to `question`
│   ├── RunNotActiveError     settled, queued, or being cancelled
│   │   └── StaleAttemptError another runner has the run now
│   ├── StepBudgetError       the run's steps are used up
│   ├── NoParentError         nobody to ask: a top-level session
│   ├── ParentUnavailableError the parent is closed or gone
│   ├── AlreadyAskedError     the run's question `request_id` is still open
│   ├── UnknownOptionError    not one of the options offered
│   ├── AlreadyResolvedError  the question has ended as `status`
│   └── OverloadedError       no room for anything new; try again later
├── NoAnswerError             a question ended without an answer, and the child may not go on without one
│   ├── QuestionTimedOutError
│   ├── QuestionCancelledError
│   └── ParentGoneError
└── ChildrenFailedError       Results.check(): not every child completed
"""

from typing import Any

from nats.errors import NoRespondersError

from upcall_contracts.errors import ErrorCode, Refusal
from upcall_contracts.records import QuestionRecord, QuestionStatus
from upcall_contracts.tools import ask_parent_result


class UpcallError(Exception):
    """The root of all that this package raises."""


class ConnectError(UpcallError):
    """No NATS server could be reached."""


class ForbiddenError(UpcallError):
    """NATS does not let this user do that."""

    def __init__(self, what: str, speaker: str) -> None:
        super().__init__(
            f"NATS does not let this user {what}. Connect as a user that may speak as {speaker}, or give "
            "this one the permission."
        )


class NoReplyError(UpcallError):
    """No reply came in time. A command that JetStream has stored is carried out all the same."""

    def __init__(
        self, subject: str, seconds: float, command_id: str | None, stored: bool, last: object
    ) -> None:
        if stored:
            what = "It is stored, and is carried out once the services are back"
        elif isinstance(last, NoRespondersError):
            what = "NATS runs, but Upcall does not: nobody listens there. Start it (`make up`)"
        else:
            what = f"Are the servers and services running? Last error: {last!r}"
        again = f" Send it again with command_id={command_id!r} to learn the outcome." if command_id else ""
        super().__init__(f"{subject} got no reply within {seconds:g} s. {what}.{again}")
        self.command_id = command_id
        self.stored = stored


class RefusedError(UpcallError):
    """A service refused, and nothing has changed. Decide by `code`, never by the message."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal

    @property
    def code(self) -> ErrorCode:
        """The stable code."""
        return self.refusal.code

    @property
    def message(self) -> str:
        """What happened, and what to do next."""
        return self.refusal.message

    @property
    def details(self) -> dict[str, Any]:
        """What the code's row in the contract says."""
        return self.refusal.details

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self.refusal.retryable


class InvalidError(RefusedError):
    """Bad input; details["fields"] names all that is wrong with it."""


class NotFoundError(RefusedError):
    """No such session, run, request or report, or somebody else's."""


class SessionClosedError(RefusedError):
    """The session is closed for good."""


class SessionBusyError(RefusedError):
    """The session has an active run, or its host has not let go of it."""


class QuestionOpenError(SessionBusyError):
    """The session's active run waits for an answer."""

    @property
    def question(self) -> QuestionRecord:
        """The question that it waits for."""
        return QuestionRecord.model_validate(self.details["question"])


class RunNotActiveError(RefusedError):
    """The run is settled, queued, or being cancelled."""


class StaleAttemptError(RunNotActiveError):
    """Another runner has the run now: stop, and drop what you have."""


class StepBudgetError(RefusedError):
    """The run's steps are used up; it settles as halted."""


class NoParentError(RefusedError):
    """A top-level session has nobody to ask."""


class ParentUnavailableError(RefusedError):
    """The parent session is closed or gone, so nobody can answer."""


class AlreadyAskedError(RefusedError):
    """The run has an open question, and may have one at a time."""

    @property
    def request_id(self) -> str:
        """The question that is open."""
        return str(self.details["request_id"])


class UnknownOptionError(RefusedError):
    """The option chosen is not one of those offered."""


class AlreadyResolvedError(RefusedError):
    """The question has ended; details name its final status."""


class OverloadedError(RefusedError):
    """There is no room for anything new; try again later."""


class NoAnswerError(UpcallError):
    """A question ended without an answer, and the child may not go on without one."""

    def __init__(self, question: QuestionRecord) -> None:
        super().__init__(ask_parent_result(question).text)
        self.question = question


class QuestionTimedOutError(NoAnswerError):
    """Nobody answered in time."""


class QuestionCancelledError(NoAnswerError):
    """The question was taken back, or its run or session was cancelled."""


class ParentGoneError(NoAnswerError):
    """The parent closed, or its host is gone."""


class ChildrenFailedError(UpcallError):
    """Not every child completed."""


_BY_CODE: dict[ErrorCode, type[RefusedError]] = {
    ErrorCode.INVALID: InvalidError,
    ErrorCode.INVALID_JSON: InvalidError,
    ErrorCode.INVALID_ID: InvalidError,
    ErrorCode.TOO_LARGE: InvalidError,
    ErrorCode.FALLBACK_REQUIRED: InvalidError,
    ErrorCode.INVALID_RECOMMENDATION: InvalidError,
    ErrorCode.UNKNOWN_SESSION: NotFoundError,
    ErrorCode.UNKNOWN_RUN: NotFoundError,
    ErrorCode.UNKNOWN_REQUEST: NotFoundError,
    ErrorCode.UNKNOWN_REPORT: NotFoundError,
    ErrorCode.SESSION_CLOSED: SessionClosedError,
    ErrorCode.SESSION_BUSY: SessionBusyError,
    ErrorCode.QUESTION_OPEN: QuestionOpenError,
    ErrorCode.RUN_NOT_ACTIVE: RunNotActiveError,
    ErrorCode.STALE_ATTEMPT: StaleAttemptError,
    ErrorCode.STEP_BUDGET_EXHAUSTED: StepBudgetError,
    ErrorCode.NO_PARENT: NoParentError,
    ErrorCode.PARENT_UNAVAILABLE: ParentUnavailableError,
    ErrorCode.DUPLICATE_QUESTION: AlreadyAskedError,
    ErrorCode.QUESTION_ALREADY_OPEN: AlreadyAskedError,
    ErrorCode.UNKNOWN_OPTION: UnknownOptionError,
    ErrorCode.ALREADY_RESOLVED: AlreadyResolvedError,
    ErrorCode.OVERLOADED: OverloadedError,
}

_BY_END: dict[QuestionStatus, type[NoAnswerError]] = {
    QuestionStatus.TIMED_OUT: QuestionTimedOutError,
    QuestionStatus.CANCELLED: QuestionCancelledError,
    QuestionStatus.ERROR: ParentGoneError,
}


def refused(refusal: Refusal) -> RefusedError:
    """The exception for a refusal."""
    return _BY_CODE.get(refusal.code, RefusedError)(refusal)


def no_answer(question: QuestionRecord) -> NoAnswerError:
    """The exception for a question that ended without an answer."""
    return _BY_END.get(question.status, NoAnswerError)(question)
