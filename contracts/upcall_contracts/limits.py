"""Every limit of the wire, with its unit and where it comes from. Sizes in bytes count UTF-8."""

from typing import Final

# The grammar of ids and agents' names (WIRE.md, first paragraph).
TOKEN_MAX_CHARS: Final = 64
COMMAND_ID_MAX_CHARS: Final = 128

# Bodies and texts (WIRE.md "Commands", Limits).
BODY_MAX_BYTES: Final = 512 * 1024
TEXT_MAX_BYTES: Final = 256 * 1024  # task, answer, rationale, fallback, error, summary
META_MAX_BYTES: Final = 8 * 1024  # as compact JSON
QUESTION_MAX_CHARS: Final = 4000  # question and why_blocked
OPTIONS_MAX: Final = 20
OPTION_MAX_CHARS: Final = 500
LABEL_MAX_CHARS: Final = 200  # description and label
DERIVED_DESCRIPTION_MAX_CHARS: Final = 80  # WIRE.md "Records", run: the first line of task, cut at 80

# Durations in ms (WIRE.md "Commands", Limits, and the command table).
TIMEOUT_MIN_MS: Final = 1
TIMEOUT_MAX_MS: Final = 604_800_000  # 7 days
QUESTION_TIMEOUT_DEFAULT_MS: Final = 300_000  # 5 minutes
LEASE_MIN_MS: Final = 1000  # 0, which means never gone, is allowed too
LEASE_MAX_MS: Final = 86_400_000  # 1 day

# Where a reply goes (ours: a longer subject would break the server's max_control_line of 4096 bytes, and with
# it the connection of the service that replies).
REPLY_SUBJECT_MAX_CHARS: Final = 1024

# Queries (WIRE.md "Queries"; the default of 100 is ours, the wire gives the maximum only).
WAIT_MAX_MS: Final = 60_000
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500
CURSOR_MAX_CHARS: Final = 1024  # ours: a cursor is a few dozen characters

# Numbers without a limit of their own stay exact in every JSON reader (RFC 8259, section 6).
INTEGER_MAX: Final = 2**53 - 1

# Late answers kept for one question (WIRE.md "Small print").
LATE_ANSWERS_MAX: Final = 10

# Problems named in one refusal; what goes beyond is counted (ours: a reply must stay far below max_payload).
PROBLEMS_MAX: Final = 100

# The servers' max_payload (WIRE.md "Small print").
PAYLOAD_MAX_BYTES: Final = 4 * 1024 * 1024

# A reply's body (ours: its headers, which may hold the context of a trace, count towards the message, too).
REPLY_MAX_BYTES: Final = PAYLOAD_MAX_BYTES - 1024

# The task of a run that is made of the texts of items, as JSON (ours: an entry of the log holds it twice).
ITEMS_TASK_MAX_BYTES: Final = 1024 * 1024

# Ends of work that are kept until the settle that names the work, as JSON (ours: they stand in the state).
EARLY_WORK_MAX_BYTES: Final = 1024 * 1024

# A page of a list, or an inbox, ends here at the latest, as JSON (ours).
PAGE_MAX_BYTES: Final = PAYLOAD_MAX_BYTES // 2

# Defaults of settings that shape what callers see (DESIGN.md, sections 3 to 6 and 8).
DEFAULT_MAX_QUESTIONS_PER_RUN: Final = 20  # UPCALL_MAX_QUESTIONS_PER_RUN
DEFAULT_MAX_ATTEMPTS: Final = 3  # UPCALL_MAX_ATTEMPTS
DEFAULT_MAX_DEPTH: Final = 5  # UPCALL_MAX_DEPTH
DEFAULT_QUEUE_MS: Final = 600_000  # UPCALL_QUEUE_MS
DEFAULT_CANCEL_GRACE_MS: Final = 10_000  # UPCALL_CANCEL_GRACE_MS
DEFAULT_LEASE_MS: Final = 15_000  # UPCALL_LEASE_MS
DEFAULT_MAX_HOLD_MS: Final = 3_600_000  # UPCALL_MAX_HOLD_MS
DEFAULT_RETENTION_MS: Final = 604_800_000  # UPCALL_RETENTION_MS
