"""Commands on sessions: open, spawn, continue, background, cancel and close."""

from upcall_contracts.fields import Label, LeaseMs, LongText, Meta, Positive, RequiredText, TimeoutMs
from upcall_contracts.ids import Token
from upcall_contracts.records import Host

from .base import CommandBody


class SessionOpen(CommandBody):
    """Open a session under the caller's id, or open it again with a new process."""

    agent: Token
    """The agent's name; opened again, it must be the same."""
    title: str | None = None
    """What people call it; given again, it replaces."""
    host: Host = Host.SELF
    """Who carries out its runs."""
    lease_ms: LeaseMs = 0
    """How long it may go without a heartbeat; 0 is for ever."""
    meta: Meta | None = None
    """What to keep with it; given again, it replaces."""


class SessionSpawn(CommandBody):
    """Make a child session with its first run."""

    agent: Token
    """The agent's name."""
    task: RequiredText
    """What the child is asked to do."""
    run_id: Token | None = None
    """The caller's run that spawns; absent, its active run."""
    description: Label | None = None
    """The task in a few words; absent, its first line."""
    task_id: Token | None = None
    """The caller's own id of the task."""
    host: Host = Host.RUNNER
    """Who carries out its runs."""
    lease_ms: LeaseMs | None = None
    """How long it may go without a heartbeat; absent, 0 for self and UPCALL_LEASE_MS for runner."""
    background: bool = True
    """False: the caller waits for the result."""
    notify: bool | None = None
    """False: its reports are suppressed; absent, inherited from the parent, else true."""
    model: str | None = None
    """The model to use."""
    variant: str | None = None
    """The model's variant."""
    step_budget: Positive | None = None
    """How many steps the run may take; absent, no limit."""
    timeout_ms: TimeoutMs | None = None
    """How long the run may take, not counting open questions; absent, no limit."""
    meta: Meta | None = None
    """What to keep with the session."""


class SessionContinue(CommandBody):
    """Start a further run on an earlier session, with all that it knew."""

    session_id: Token
    """The session."""
    task: RequiredText
    """What it is asked to do now."""
    run_id: Token | None = None
    """The caller's run that continues; absent, its active run."""
    agent: Token | None = None
    """The name that the session's agent is expected to have."""
    description: Label | None = None
    """The task in a few words; absent, its first line."""
    task_id: Token | None = None
    """The caller's own id of the task."""
    background: bool = True
    """False: the caller waits for the result."""
    notify: bool | None = None
    """Whether its reports are delivered from now on; absent, as before."""
    model: str | None = None
    """The model to use from now on; absent, as before."""
    variant: str | None = None
    """The model's variant from now on; absent, as before."""
    step_budget: Positive | None = None
    """How many steps this run may take; absent, no limit."""
    timeout_ms: TimeoutMs | None = None
    """How long this run may take, not counting open questions; absent, no limit."""


class SessionBackground(CommandBody):
    """Turn a foreground child's run into a background one."""

    run_id: Token
    """The child's run."""


class SessionCancel(CommandBody):
    """Cancel what a session is doing."""

    session_id: Token
    """The session."""
    reason: LongText | None = None
    """Why."""
    cascade: bool = True
    """True: its descendants too."""


class SessionClose(CommandBody):
    """Close a session for good."""

    session_id: Token | None = None
    """The session; absent, the caller's own."""
    cascade: bool = True
    """True: its descendants too, leaves first."""
