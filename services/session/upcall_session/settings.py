"""The session service's settings: `UPCALL_…`. Durations are ms."""

from pydantic import Field

from upcall_contracts import limits
from upcall_shell.settings import ShellSettings

from .decisions.rules import Rules

_DAY_MS = 86_400_000


class SessionSettings(ShellSettings):
    """What an operator may set."""

    max_depth: int = Field(default=limits.DEFAULT_MAX_DEPTH, ge=0)
    """A spawn deeper than this below its root is refused as too_deep."""
    max_attempts: int = Field(default=limits.DEFAULT_MAX_ATTEMPTS, gt=0)
    """How many holders a run may have before it is lost."""
    queue_ms: int = Field(default=limits.DEFAULT_QUEUE_MS, gt=0)
    """How long an attempt of a run may wait for a runner."""
    cancel_grace_ms: int = Field(default=limits.DEFAULT_CANCEL_GRACE_MS, ge=0)
    """How long a host has to settle a run that is being cancelled."""
    lease_ms: int = Field(default=limits.DEFAULT_LEASE_MS, gt=0)
    """The lease of a runner-hosted session that names none."""
    max_hold_ms: int = Field(default=limits.DEFAULT_MAX_HOLD_MS, gt=0)
    """How long a report is held at most."""
    retention_ms: int = Field(default=limits.DEFAULT_RETENTION_MS, gt=0)
    """A closed tree is purged so long after its root closed."""
    idle_retention_ms: int = Field(default=30 * _DAY_MS, gt=0)
    """A tree in which nothing happens and nothing is open is purged after so long (DESIGN.md section 8)."""

    def rules(self) -> Rules:
        """The settings that decisions take."""
        return Rules(
            max_depth=self.max_depth,
            max_attempts=self.max_attempts,
            queue_ms=self.queue_ms,
            cancel_grace_ms=self.cancel_grace_ms,
            lease_ms=self.lease_ms,
            max_hold_ms=self.max_hold_ms,
            retention_ms=self.retention_ms,
            idle_retention_ms=self.idle_retention_ms,
        )
