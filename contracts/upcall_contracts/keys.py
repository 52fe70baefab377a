"""Redis keys: the only place where they are spelled. All of it can be rebuilt from the log."""

from typing import Final

PREFIX: Final = "upcall:"


def ready(service: str) -> str:
    """Set while the service's index is whole; lost with a flush, and then the index is rebuilt."""
    return f"{PREFIX}ready:{service}"


def rebuilding(service: str) -> str:
    """The token of the rebuild under way; a flush takes it along, and then the rebuild does not count."""
    return f"{PREFIX}rebuilding:{service}"


def lock(aggregate: str) -> str:
    """The lock that serialises those who would collide on an aggregate, such as `question:<run>`."""
    return f"{PREFIX}lock:{aggregate}"


def failures(consumer: str, seq: int) -> str:
    """How often the message of a sequence has failed at a consumer, all instances together."""
    return f"{PREFIX}failures:{consumer}:{seq}"


def command(key: str) -> str:
    """Hash of the tries of a command, by aggregate and fingerprint: which it was, and where its entry is."""
    return f"{PREFIX}commands:{key}"


def run_session(run_id: str) -> str:
    """The session of a run."""
    return f"{PREFIX}run:{run_id}"


def question_run(request_id: str) -> str:
    """The run of a question."""
    return f"{PREFIX}question:{request_id}"


def questions_of_parent(session_id: str) -> str:
    """Sorted set of a parent session's questions, by created_at: request_id."""
    return f"{PREFIX}questions:parent:{session_id}"


def questions_open() -> str:
    """Sorted set of all waiting questions, by created_at."""
    return f"{PREFIX}questions:open"


def questions_all() -> str:
    """Sorted set of all questions, by created_at."""
    return f"{PREFIX}questions:all"


def reports_of_parent(session_id: str) -> str:
    """Sorted set of the periods reported to a parent session, by created_at."""
    return f"{PREFIX}reports:parent:{session_id}"


def reports_held() -> str:
    """Sorted set of the periods whose report is held, by created_at."""
    return f"{PREFIX}reports:held"


def reports_all() -> str:
    """Sorted set of all reported periods, by created_at."""
    return f"{PREFIX}reports:all"


def period_session(period_id: str) -> str:
    """The session of a period."""
    return f"{PREFIX}period:{period_id}"


def sessions_all() -> str:
    """Sorted set of all sessions, by created_at."""
    return f"{PREFIX}sessions:all"


def leases() -> str:
    """Sorted set of leased sessions, by the epoch ms at which the lease passes."""
    return f"{PREFIX}leases"


def history(session_id: str) -> str:
    """Sorted set of a session's log entries that hold history, by first index: stream sequence."""
    return f"{PREFIX}history:{session_id}"
