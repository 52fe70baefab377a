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
