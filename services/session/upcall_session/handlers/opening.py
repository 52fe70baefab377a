"""session.open."""

from collections.abc import Awaitable, Callable

from upcall_contracts.commands import SessionOpen
from upcall_contracts.errors import Refusal
from upcall_contracts.states import SessionState
from upcall_session.decisions import opening
from upcall_session.sessions import Decision, Sessions
from upcall_shell.commands import Command

from .common import Reply, asked, unless_full


class Opening:
    """Opens sessions."""

    def __init__(self, sessions: Sessions, overloaded: Callable[[], Awaitable[bool]]) -> None:
        self._sessions = sessions
        self._overloaded = overloaded

    async def open(self, command: Command[SessionOpen]) -> Reply:
        """session.open: the caller's id becomes the session's."""
        who, overloaded = asked(command), await self._overloaded()

        async def decide(state: SessionState | None) -> Decision:
            decided = opening.open_session(state, command.body, who, self._sessions.rules)
            return unless_full(decided, overloaded=overloaded)

        outcome = await self._sessions.change(command.caller, decide, who)
        if isinstance(outcome.decision, Refusal):
            return outcome.decision
        return {"session": outcome.state.record().to_wire()}
