"""What the operator set, as the decisions take it. All durations are ms."""

from dataclasses import dataclass

from upcall_contracts import limits


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that shape decisions; each is the setting UPCALL_<NAME>."""

    max_depth: int = limits.DEFAULT_MAX_DEPTH
    """Steps from the root that a session may stand at most."""
    max_attempts: int = limits.DEFAULT_MAX_ATTEMPTS
    """How many holders a run may have before it is lost."""
    queue_ms: int = limits.DEFAULT_QUEUE_MS
    """How long an attempt may wait for a runner."""
    cancel_grace_ms: int = limits.DEFAULT_CANCEL_GRACE_MS
    """How long a host has to settle a run that is being cancelled."""
    lease_ms: int = limits.DEFAULT_LEASE_MS
    """The lease of a runner-hosted session that names none."""
    max_hold_ms: int = limits.DEFAULT_MAX_HOLD_MS
    """How long a report is held at most."""
    retention_ms: int = limits.DEFAULT_RETENTION_MS
    """How long a closed tree is kept after its root closed."""
    idle_retention_ms: int = 30 * 86_400_000
    """How long a tree is kept in which nothing happens and nothing is open (DESIGN.md section 8: 30 days)."""
