"""How often the message in hand was delivered: what came before may have carried it out, and died."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from nats.aio.msg import Msg

from upcall_shell.delivery import Again

_delivered: ContextVar[int] = ContextVar("delivered", default=1)
Handle = Callable[[Msg], Awaitable[Again | None]]


def is_redelivery() -> bool:
    """Whether somebody had the message in hand before."""
    return _delivered.get() > 1


def counted(handle: Handle) -> Handle:
    """The same handler, for which `is_redelivery` holds where it does. Each message has a task of its own."""

    async def handled(message: Msg) -> Again | None:
        _delivered.set(message.metadata.num_delivered)
        return await handle(message)

    return handled
