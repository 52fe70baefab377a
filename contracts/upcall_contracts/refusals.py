"""One function for each situation in which something is refused: the code, the details and the sentence.

An error teaches: its message says what happened and what to do next. What is not there and what is somebody
else's get one and the same refusal.
"""

from collections.abc import Mapping, Sequence

from upcall_contracts import limits
from upcall_contracts.errors import ErrorCode, Refusal
from upcall_contracts.records import QuestionRecord
from upcall_contracts.times import to_wire

_NOTHING_CHANGED = "Nothing was changed."


# Bad input


def invalid(fields: Sequence[Mapping[str, str]]) -> Refusal:
    """Fields of the body break a rule; each entry has `field` and `problem`."""
    return Refusal(ErrorCode.INVALID, _name_fields(fields), {"fields": [dict(entry) for entry in fields]})


def invalid_field(field: str, problem: str) -> Refusal:
    """One field breaks a rule that only the service can check, such as a cursor or a missing attempt."""
    return invalid([{"field": field, "problem": problem}])


def attempt_required() -> Refusal:
    """A runner speaks for a run without naming the attempt that it holds."""
    return invalid_field("attempt", "is required from runners: give the attempt that the claim answered with")


def order_not_met(field: str, wanted: int, have: int) -> Refusal:
    """An append or settle waited in vain for the messages that belong before it."""
    return invalid_field(
        field,
        f"names index {wanted}, but the history ends at {have}: append what is missing first",
    )


def invalid_json(problem: str) -> Refusal:
    """The body is not a JSON object in UTF-8."""
    return Refusal(
        ErrorCode.INVALID_JSON, f"The body is not a JSON object in UTF-8: {problem}. Send one JSON object."
    )


def invalid_id(fields: Sequence[Mapping[str, str]]) -> Refusal:
    """The only thing wrong with the body is that ids are not tokens."""
    return Refusal(ErrorCode.INVALID_ID, _name_fields(fields), {"fields": [dict(entry) for entry in fields]})


def invalid_caller(caller: str) -> Refusal:
    """The caller's token in the subject is not an id."""
    problem = f"must be 1 to {limits.TOKEN_MAX_CHARS} characters of A-Z a-z 0-9 _ -"
    return Refusal(
        ErrorCode.INVALID_ID,
        f"The caller in the subject {problem}: {caller[:80]!r}.",
        {"fields": [{"field": "caller", "problem": problem}]},
    )


def operator_cannot_open() -> Refusal:
    """Somebody tried to open a session called `operator`."""
    problem = "operator is reserved: open a session under an id of its own"
    return Refusal(
        ErrorCode.INVALID_ID,
        "No session can have the id operator. Publish the command with the session's own id as the caller.",
        {"fields": [{"field": "caller", "problem": problem}]},
    )


def too_large(size: int) -> Refusal:
    """The body is over the limit."""
    return Refusal(
        ErrorCode.TOO_LARGE,
        f"The body has {size} bytes and at most {limits.BODY_MAX_BYTES} are taken. "
        "Send less, such as the messages in several appends.",
        {"size": size, "limit": limits.BODY_MAX_BYTES},
    )


def too_much(size: int, fix: str) -> Refusal:
    """What the command makes is over what a message may hold. `fix` says what to do."""
    return Refusal(
        ErrorCode.TOO_LARGE,
        f"What comes of this has {size} bytes, and that is too much for one message. {fix}",
        {"size": size, "limit": limits.PAYLOAD_MAX_BYTES},
    )


def unknown_verb(subject: str, known: Sequence[str]) -> Refusal:
    """The subject names no command or query that exists."""
    return Refusal(
        ErrorCode.UNKNOWN_VERB,
        f"{subject[:200]} names nothing that can be done. Known are: {', '.join(known)}.",
        {"known": list(known)},
    )


# Not there, or not the caller's


def unknown_session(session_id: str) -> Refusal:
    """No such session, or somebody else's."""
    return Refusal(
        ErrorCode.UNKNOWN_SESSION,
        f"There is no session {session_id} among yours. "
        "Use the session_id that spawning returned; session.list shows yours.",
    )


def unknown_run(run_id: str) -> Refusal:
    """No such run, or somebody else's."""
    return Refusal(
        ErrorCode.UNKNOWN_RUN,
        f"There is no run {run_id} among yours. "
        "Use the run_id that spawning, continuing or claiming returned.",
    )


def unknown_request(request_id: str) -> Refusal:
    """No such question, or somebody else's."""
    return Refusal(
        ErrorCode.UNKNOWN_REQUEST,
        f"There is no question {request_id} among yours. question.list shows those that wait for you.",
    )


def nothing_open(run_id: str) -> Refusal:
    """question.cancel names a run that has no open question."""
    return Refusal(
        ErrorCode.UNKNOWN_REQUEST,
        f"Run {run_id} has no open question, so there is nothing to cancel.",
    )


def unknown_report(period_id: str) -> Refusal:
    """No such report, or somebody else's."""
    return Refusal(
        ErrorCode.UNKNOWN_REPORT,
        f"There is no report {period_id} among yours. report.list shows yours.",
    )


# Continuing, starting, spawning


def session_closed(session_id: str) -> Refusal:
    """The session was closed for good."""
    return Refusal(
        ErrorCode.SESSION_CLOSED,
        f"Session {session_id} is closed and takes nothing any more. Spawn a new one if you need it.",
    )


def session_busy(run_id: str | None) -> Refusal:
    """A run is active, or its host has not let go of the session."""
    what = f"Run {run_id} is still active" if run_id else "The session's last run has not been let go of"
    return Refusal(
        ErrorCode.SESSION_BUSY,
        f"{what}, and a session has one run at a time. Wait for it or cancel it, then try again.",
        {"run_id": run_id},
    )


def question_open(question: QuestionRecord) -> Refusal:
    """The session's active run waits for an answer."""
    return Refusal(
        ErrorCode.QUESTION_OPEN,
        f"The session waits for an answer to question {question.request_id}. "
        "Answer it with question.answer, or cancel the session, then try again.",
        {"question": question.to_wire()},
    )


def agent_mismatch(session_id: str, agent: str, named: str) -> Refusal:
    """The session belongs to another agent than the one named."""
    return Refusal(
        ErrorCode.AGENT_MISMATCH,
        f"Session {session_id} is of agent {agent}, not of {named}. "
        f"Name {agent} or no agent, or spawn a session of {named}.",
        {"agent": agent},
    )


def wrong_host(session_id: str) -> Refusal:
    """run.start on a session whose runs runners carry out."""
    return Refusal(
        ErrorCode.WRONG_HOST,
        f"Session {session_id} is hosted by runners, so its runs are not started by a host of its own. "
        "Use session.continue.",
    )


def too_deep(max_depth: int) -> Refusal:
    """The child would stand deeper than the tree may grow."""
    return Refusal(
        ErrorCode.TOO_DEEP,
        f"A tree of sessions is at most {max_depth} deep. "
        "Do the task here, or report back and let a parent spawn.",
        {"max_depth": max_depth},
    )


# Running


def run_not_active(run_id: str, status: str) -> Refusal:
    """The run is not running: queued, settled, or being cancelled. Status is said in words of the caller."""
    return Refusal(
        ErrorCode.RUN_NOT_ACTIVE,
        f"Run {run_id} is {status}, so this can't be done with it. "
        "Continue its session to start a further run.",
        {"run_id": run_id, "status": status},
    )


def no_active_run(session_id: str) -> Refusal:
    """The command needs a run of the caller's, and none is active."""
    return Refusal(
        ErrorCode.RUN_NOT_ACTIVE,
        f"Session {session_id} has no active run. Start or continue one first.",
    )


def run_not_claimable(run_id: str, status: str) -> Refusal:
    """Somebody else holds the run, or it is over."""
    return Refusal(
        ErrorCode.RUN_NOT_CLAIMABLE,
        f"Run {run_id} is {status} and not to be claimed. Acknowledge its dispatch and take the next one.",
        {"run_id": run_id, "status": status},
    )


def stale_attempt(run_id: str, attempt: int) -> Refusal:
    """What was sent names an attempt that is over."""
    return Refusal(
        ErrorCode.STALE_ATTEMPT,
        f"Run {run_id} is now at attempt {attempt}, which is not yours. "
        "Stop working on it and drop what you have.",
        {"run_id": run_id, "attempt": attempt},
    )


def step_budget_exhausted(run_id: str, step_budget: int) -> Refusal:
    """The append would go over the run's step budget."""
    return Refusal(
        ErrorCode.STEP_BUDGET_EXHAUSTED,
        f"Run {run_id} has used up its budget of {step_budget} steps. Settle it with outcome halted.",
        {"run_id": run_id, "step_budget": step_budget},
    )


# Asking


def no_parent(session_id: str) -> Refusal:
    """A top-level session has nobody to ask."""
    return Refusal(
        ErrorCode.NO_PARENT,
        f"Session {session_id} is at the top and has no parent to ask. "
        "Decide, or ask the person you work for.",
    )


def parent_unavailable() -> Refusal:
    """The parent session is closed or gone."""
    return Refusal(
        ErrorCode.PARENT_UNAVAILABLE,
        "The parent session is closed or gone, so nobody can answer. "
        "Go on with the fallback if you have a safe one, else end and say what is undecided.",
    )


def fallback_required() -> Refusal:
    """can_continue_without_answer without a fallback."""
    return Refusal(
        ErrorCode.FALLBACK_REQUIRED,
        "A question with can_continue_without_answer needs a fallback. "
        "Say what you will do without an answer, or leave can_continue_without_answer away.",
    )


def invalid_recommendation(options: Sequence[str]) -> Refusal:
    """The recommended option is not one of the options."""
    return Refusal(
        ErrorCode.INVALID_RECOMMENDATION,
        "recommended_option must be one of the options, letter by letter. Correct it, or leave it away.",
        {"options": list(options)},
    )


def duplicate_question(request_id: str, expires_at: int) -> Refusal:
    """The run's open question asks the same, or nearly."""
    return Refusal(
        ErrorCode.DUPLICATE_QUESTION,
        f"Question {request_id} of this run asks the same and is still open. Wait for its answer.",
        {"request_id": request_id, "expires_at": to_wire(expires_at)},
    )


def question_already_open(request_id: str, expires_at: int) -> Refusal:
    """The run has an open question; it may have one at a time."""
    return Refusal(
        ErrorCode.QUESTION_ALREADY_OPEN,
        f"This run already waits for question {request_id}, and may have one open at a time. "
        "Wait for its answer or cancel it, then ask.",
        {"request_id": request_id, "expires_at": to_wire(expires_at)},
    )


def question_limit_reached(limit: int) -> Refusal:
    """The run has asked as often as it may."""
    return Refusal(
        ErrorCode.QUESTION_LIMIT_REACHED,
        f"This run has asked {limit} questions, which is all it may. "
        "Go on with what is decided, or end and say what is undecided.",
        {"limit": limit},
    )


# Answering and releasing


def unknown_option(options: Sequence[str]) -> Refusal:
    """The option chosen was not offered."""
    offered = (
        "This question offers no options" if not options else "selected_option must be one of those offered"
    )
    return Refusal(
        ErrorCode.UNKNOWN_OPTION,
        f"{offered}. Name one letter by letter, or leave selected_option away and say it in the answer.",
        {"options": list(options)},
    )


def already_resolved(request_id: str, status: str) -> Refusal:
    """The question has come to an end."""
    return Refusal(
        ErrorCode.ALREADY_RESOLVED,
        f"Question {request_id} has ended as {status}, so nothing more can be decided about it. "
        "If the child still needs to know, continue its session with the text as its task.",
        {"request_id": request_id, "status": status},
    )


def not_held(session_id: str) -> Refusal:
    """report.release on a session without a held report."""
    return Refusal(
        ErrorCode.NOT_HELD,
        f"Session {session_id} has no held report to release. report.list shows its reports.",
    )


# Any command


def command_id_reused(command_id: str) -> Refusal:
    """The command id came before with another body."""
    return Refusal(
        ErrorCode.COMMAND_ID_REUSED,
        f"The command_id {command_id!r} was used before with another body. "
        "Send the same body to repeat a command, or a new command_id for another one.",
        {"command_id": command_id},
    )


def overloaded() -> Refusal:
    """The log is over its limit: what opens something is refused, what ends something still goes through."""
    return Refusal(
        ErrorCode.OVERLOADED,
        f"There is no room for anything new at the moment. {_NOTHING_CHANGED} Try again later.",
    )


def internal() -> Refusal:
    """Something failed that is ours."""
    return Refusal(
        ErrorCode.INTERNAL,
        "Something went wrong on our side, and the command was given up. "
        "Send it again with the same command_id: it is carried out at most once.",
    )


def _name_fields(fields: Sequence[Mapping[str, str]]) -> str:
    """The first problems in one sentence; all of them are in the details."""
    shown = "; ".join(f"{entry['field']} {entry['problem']}".strip() for entry in fields[:3])
    more = f"; and {len(fields) - 3} more" if len(fields) > 3 else ""
    return f"The body is not right: {shown}{more}. {_NOTHING_CHANGED} Correct the fields and send again."
