"""Commands on the wire: parse, hand to the service's handler, acknowledge, reply."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from nats.aio.msg import Msg

from upcall_contracts import limits, refusals, subjects
from upcall_contracts.commands import CommandBody
from upcall_contracts.errors import ErrorCode, Refusal, ok
from upcall_contracts.ids import derive_id
from upcall_contracts.log import CommandMark
from upcall_contracts.parsing import body_fingerprint, parse_command_message

from . import tracing
from .dead_letters import DeadLetters
from .delivery import Again
from .metrics import COMMAND_SECONDS, COMMANDS
from .stamps import stored_at

logger = structlog.get_logger()
B = TypeVar("B", bound=CommandBody)

_RECORDED = frozenset({ErrorCode.INVALID_JSON, ErrorCode.TOO_LARGE, ErrorCode.UNKNOWN_VERB})
"""DESIGN.md section 7: these leave a record in DEAD, too."""


@dataclass(frozen=True, slots=True)
class Command(Generic[B]):
    """A command as a handler gets it."""

    caller: str
    noun: str
    verb: str
    body: B
    stored_at: int
    """Epoch ms at which JetStream stored it: the command's time."""
    seq: int
    """Its sequence in COMMANDS."""
    given_id: str | None
    """The command_id; null where none was given."""

    @property
    def key(self) -> str:
        """What makes it the same command when it is sent, or delivered, again.

        The command_id, or the stream's sequence where none was given: apart, so that no id passes for one.
        """
        verb = f"{self.caller}/{self.noun}.{self.verb}"
        return f"{verb}/{self.given_id}" if self.given_id is not None else f"{verb}#{self.seq}"

    def derive_id(self, prefix: str) -> str:
        """The id of what it makes."""
        name = (self.given_id,) if self.given_id is not None else ("#", str(self.seq))
        return derive_id(prefix, self.caller, f"{self.noun}.{self.verb}", *name)

    def mark(self) -> CommandMark:
        """What the entry that carries it out remembers of it."""
        return CommandMark(key=self.key, fingerprint=body_fingerprint(self.body))


Outcome = dict[str, Any] | Refusal | Again
CommandHandler = Callable[[Command[Any]], Awaitable[Outcome]]
Reply = Callable[[str, bytes], Awaitable[None]]


class CommandDesk:
    """Handles deliveries of COMMANDS for one service."""

    def __init__(
        self, handlers: Mapping[tuple[str, str], CommandHandler], dead: DeadLetters, reply: Reply
    ) -> None:
        self._handlers = handlers
        self._dead = dead
        self._reply = reply

    async def handle(self, message: Msg) -> Again | None:
        """Carry a command out or refuse it; Again where its time has not come."""
        begun = time.perf_counter()
        metadata = message.metadata
        parsed = parse_command_message(message.subject, message.data)
        if isinstance(parsed, Refusal):
            if parsed.code in _RECORDED:
                await self._dead.record(message, parsed, parsed.message, metadata.num_delivered)
            await self._answer(message, "unparsed", parsed, begun)
            return None
        address, body = parsed
        handler = self._handlers.get((address.noun, address.verb))
        if handler is None:
            raise LookupError(f"no handler for {address.noun}.{address.verb}")
        command = Command(
            address.caller,
            address.noun,
            address.verb,
            body,
            stored_at(message),
            metadata.sequence.stream,
            body.command_id,
        )
        outcome = await handler(command)
        if isinstance(outcome, Again):
            return outcome
        await self._answer(message, f"{address.noun}.{address.verb}", outcome, begun)
        return None

    async def parked(self, message: Msg) -> None:
        """Tell the caller of a command that was parked."""
        await self._send(message, refusals.internal().to_reply())

    async def _answer(self, message: Msg, name: str, outcome: dict[str, Any] | Refusal, begun: float) -> None:
        refused = isinstance(outcome, Refusal)
        code = outcome.code.value if refused else "ok"
        COMMANDS.labels(name, code).inc()
        tracing.answered(code)
        await message.ack()
        await self._send(message, outcome.to_reply() if refused else ok(outcome))
        COMMAND_SECONDS.labels(name).observe(time.perf_counter() - begun)

    async def _send(self, message: Msg, reply: dict[str, Any]) -> None:
        to = (message.headers or {}).get(subjects.H_REPLY_TO)
        if to is not None and subjects.is_reply_subject(to):
            raw = json.dumps(reply, separators=(",", ":")).encode()
            if len(raw) > limits.REPLY_MAX_BYTES:
                logger.error("reply too large", subject=message.subject, size=len(raw))
                raw = json.dumps(refusals.internal().to_reply()).encode()
            await self._reply(to, raw)
