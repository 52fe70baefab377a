"""Streams and consumers: their one definition, as the JSON that the JetStream API takes.

The topics and the inbox are derived from the log by JetStream itself: sources with subject transforms, so
that they can be neither forgotten nor doubled (DESIGN.md sections 2 and 9).
"""

from dataclasses import dataclass, field
from typing import Any, Final

from . import log, subjects

_MS: Final = 1_000_000  # JetStream's durations are nanoseconds
_DAY_NS: Final = 86_400_000 * _MS

COMMANDS: Final = "COMMANDS"
TOPICS: Final = "TOPICS"
INBOX: Final = "INBOX"
LOG: Final = "LOG"
TIMERS: Final = "TIMERS"
DISPATCH: Final = "DISPATCH"
DEAD: Final = "DEAD"

ACK_WAIT_MS: Final = 5_000
"""How long a service may be silent about a message before another instance gets it."""
MAX_ACK_PENDING: Final = 512
"""How many messages a service may have in hand."""
DISPATCH_ACK_WAIT_MS: Final = 30_000
"""WIRE.md, DISPATCH."""

ANSWERS: Final = "cmd.*.question.answer"
"""Answers in COMMANDS: those still there are not handled yet."""

TIMERS_ALL: Final = "timers.>"
TIMERS_DUE_QUESTIONS: Final = "timers.due.question.>"
TIMERS_DUE_SESSIONS: Final = "timers.due.session.>"


def question_timer(run_id: str, request_id: str) -> tuple[str, str]:
    """Where the deadline of a question is scheduled, and where it fires."""
    return f"timers.at.question.{run_id}.{request_id}", f"timers.due.question.{run_id}.{request_id}"


def session_timer(session_id: str, kind: str) -> tuple[str, str]:
    """Where a session's deadline is scheduled (a later one of a kind replaces it), and where it fires."""
    return f"timers.at.session.{session_id}.{kind}", f"timers.due.session.{session_id}.{kind}"


def _w(*places: int) -> list[str]:
    return [f"{{{{wildcard({n})}}}}" for n in places]


def _run(run: int, *rest: str) -> str:
    return ".".join(["run", *_w(run), *rest])


_SESSION_7: Final = "log.session.*.*.*.*.*.*.*"
_SESSION_5: Final = "log.session.*.*.*.*.*"
_QUESTION_6: Final = "log.question.*.*.*.*.*.*"
_QUESTION_5: Final = "log.question.*.*.*.*.*"
_REPORT_6: Final = "log.report.*.*.*.*.*.*"
_REPORT_5: Final = "log.report.*.*.*.*.*"
_REPORT_4: Final = "log.report.*.*.*.*"


def _transform(src: str, dest: str) -> dict[str, str]:
    return {"src": src, "dest": dest}


_OWN_TOPIC: Final = [
    _transform(_SESSION_7, _run(2, *_w(3, 4, 5))),
    _transform(_SESSION_5, _run(2, *_w(3, 4, 5))),
    _transform(_QUESTION_6, _run(1, "question", *_w(2, 3))),
    _transform(_QUESTION_5, _run(1, "question", *_w(2, 3))),
    _transform(_REPORT_6, _run(3, "report", *_w(1, 2))),
    _transform(_REPORT_5, _run(3, "report", *_w(1, 2))),
    _transform(_REPORT_4, _run(3, "report", *_w(1, 2))),
]
_PARENT_TOPIC: Final = [
    _transform(_SESSION_7, _run(6, "child", *_w(2, 3, 4, 5))),
    _transform(_QUESTION_6, _run(5, "child", *_w(1), "question", *_w(2, 3))),
    _transform(_REPORT_6, _run(5, "child", *_w(3), "report", *_w(1, 2))),
]
_INBOX: Final = [
    _transform(_QUESTION_6, ".".join(["inbox", *_w(6, 2)])),
    _transform(_QUESTION_5, ".".join(["inbox", *_w(5, 2)])),
    _transform("log.report.*.delivered.*.*.*.*", ".".join(["inbox", *_w(5, 1)])),
    _transform("log.report.*.delivered.*.*.*", ".".join(["inbox", *_w(4, 1)])),
    _transform("log.session.*.*.work.*.finished.*.*", ".".join(["inbox", *_w(1, 3)])),
    _transform("log.session.*.*.work.*.finished", ".".join(["inbox", *_w(1, 3)])),
]


@dataclass(frozen=True)
class StreamDefinition:
    """A stream: its name, and its settings without replicas."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def config(self, replicas: int = 1) -> dict[str, Any]:
        """The configuration for STREAM.CREATE and STREAM.UPDATE."""
        return {"name": self.name, "storage": "file", "num_replicas": replicas, **self.settings}


@dataclass(frozen=True)
class ConsumerDefinition:
    """A durable push consumer whose deliveries the instances of a service share."""

    stream: str
    name: str
    filters: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def config(self, replicas: int = 1) -> dict[str, Any]:
        """The configuration for CONSUMER.CREATE."""
        return {
            "name": self.name,
            "durable_name": self.name,
            "deliver_subject": f"deliver.{self.name}",
            "deliver_group": self.name,
            "filter_subjects": list(self.filters),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": ACK_WAIT_MS * _MS,
            "max_ack_pending": MAX_ACK_PENDING,
            "max_deliver": -1,
            **self.settings,
        }


def dispatch_consumer(agent: str) -> dict[str, Any]:
    """The configuration of an agent's pull consumer on DISPATCH; WIRE.md has just these settings."""
    return {
        "name": agent,
        "durable_name": agent,
        "filter_subject": subjects.dispatch(agent),
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": DISPATCH_ACK_WAIT_MS * _MS,
        "max_deliver": -1,
    }


STREAMS: Final[tuple[StreamDefinition, ...]] = (
    StreamDefinition(
        COMMANDS,
        {
            "subjects": list(subjects.COMMAND_FILTERS.values()),
            "retention": "workqueue",
            "duplicate_window": 100 * _MS,
            "allow_direct": True,
        },
    ),
    StreamDefinition(
        LOG,
        {"subjects": [log.LOG_ALL], "discard": "new", "allow_direct": True, "duplicate_window": 100 * _MS},
    ),
    StreamDefinition(
        TOPICS,
        {
            "sources": [
                {"name": LOG, "subject_transforms": _OWN_TOPIC},
                {"name": LOG, "subject_transforms": _PARENT_TOPIC},
            ],
            "republish": {"src": subjects.TOPIC_ALL, "dest": subjects.TOPIC_ALL},
            "allow_direct": True,
        },
    ),
    StreamDefinition(
        INBOX,
        {
            "subjects": [subjects.INBOX_ALL],
            "max_msgs_per_subject": 1,
            "sources": [{"name": LOG, "subject_transforms": _INBOX}],
            "allow_direct": True,
            "duplicate_window": 100 * _MS,
        },
    ),
    StreamDefinition(
        TIMERS,
        {
            "subjects": [TIMERS_ALL],
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "allow_msg_schedules": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "duplicate_window": 100 * _MS,
        },
    ),
    StreamDefinition(
        DISPATCH,
        {"subjects": [subjects.DISPATCH_ALL], "retention": "workqueue", "duplicate_window": 120_000 * _MS},
    ),
    StreamDefinition(DEAD, {"subjects": [subjects.DEAD_ALL], "max_age": 30 * _DAY_NS}),
)
"""All streams, in an order in which they can be created."""

_F = subjects.COMMAND_FILTERS

CONSUMERS: Final[tuple[ConsumerDefinition, ...]] = (
    ConsumerDefinition(
        COMMANDS, "session", (_F["session"], _F["run"], _F["work"], _F["inbox"], _F["report"])
    ),
    ConsumerDefinition(COMMANDS, "question_broker", (_F["question"],)),
    ConsumerDefinition(TIMERS, "question_broker-timers", (TIMERS_DUE_QUESTIONS,)),
    ConsumerDefinition(TIMERS, "session-timers", (TIMERS_DUE_SESSIONS,)),
    ConsumerDefinition(
        LOG,
        "question_broker-ends",  # what ends questions: a run's end or cancel, a parent closed or gone
        (
            "log.session.*.*.lifecycle.*.settled",
            "log.session.*.*.lifecycle.*.settled.*.*",
            "log.session.*.*.lifecycle.*.cancel_requested",
            "log.session.*.*.lifecycle.*.cancel_requested.*.*",
            "log.session.*.closed",
            "log.session.*.gone",
        ),
    ),
    ConsumerDefinition(
        LOG,
        "reporter-periods",  # an entry may close a period, or leave its report held
        (_SESSION_7, _SESSION_5, "log.session.*.*"),
    ),
    ConsumerDefinition(
        LOG,
        "session-reports",  # a decided report is counted on the parent's session
        ("log.report.*.delivered.>", "log.report.*.suppressed.>"),
    ),
    ConsumerDefinition(LOG, "session-questions", ("log.question.*.*.requested.>",)),
)
"""The services' durable consumers."""
