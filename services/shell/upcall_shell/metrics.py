"""What every service counts."""

from prometheus_client import Counter, Gauge, Histogram

COMMANDS = Counter(
    "upcall_commands_total", "Commands by what came of them; code is ok or the refusal's", ["command", "code"]
)
COMMAND_SECONDS = Histogram("upcall_command_seconds", "From a command's delivery to its reply", ["command"])
QUERIES = Counter("upcall_queries_total", "Queries by what came of them", ["query", "code"])
REDELIVERIES = Counter("upcall_redeliveries_total", "Messages that came more than once", ["consumer"])
DEAD_LETTERS = Counter("upcall_dead_letters_total", "Messages written to DEAD", ["code"])
CONFLICTS = Counter("upcall_commit_conflicts_total", "Guarded appends that another decision forestalled")
IN_HAND = Gauge("upcall_in_hand", "Messages being worked on", ["consumer"])
REDIS_DOWN = Gauge("upcall_redis_down", "1 while Redis can't be reached")
READY = Gauge(
    "upcall_ready", "1 while the service can use it; serving: from its start to its stop", ["check"]
)

# Of the whole deployment, as every instance that serves sees it: take the max, not the sum.
PENDING = Gauge("upcall_consumer_pending", "Messages that wait for a consumer", ["stream", "consumer"])
ACK_PENDING = Gauge(
    "upcall_consumer_ack_pending", "Messages that a consumer's instances have in hand", ["stream", "consumer"]
)
ACK_FLOOR = Gauge(
    "upcall_consumer_ack_floor", "The sequence up to which a consumer has done all", ["stream", "consumer"]
)
STREAM_BYTES = Gauge("upcall_stream_bytes", "Size of a stream", ["stream"])
STREAM_MESSAGES = Gauge("upcall_stream_messages", "Messages in a stream", ["stream"])
LOG_LIMIT = Gauge("upcall_log_limit_bytes", "UPCALL_MAX_LOG_BYTES: over it, nothing new is opened")
FIGURES_FAILED = Counter("upcall_figures_failed_total", "Gauges that could not be read just then", ["figure"])
