"""`upcall.connect`: the one way in."""

from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from upcall_contracts.records import Host, SessionRecord

from .session import Session
from .wire import CONNECT_TIMEOUT, Wire


class Upcall:
    """One connection. Everything made from it shares it; it reconnects by itself."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def open_session(
        self,
        session_id: str | None = None,
        *,
        agent: str,
        title: str | None = None,
        host: str = Host.SELF,
        lease_ms: int = 0,
        meta: Mapping[str, Any] | None = None,
        command_id: str | None = None,
    ) -> Session:
        """Open a top-level session, or open it again with this new process: its run, if active, is lost.

        With a lease this program beats for it; without one (0) it is never gone.
        """
        session = self.session(session_id or f"s-{uuid4().hex}")
        body = {
            "agent": agent,
            "title": title,
            "host": host,
            "lease_ms": lease_ms,
            "meta": None if meta is None else dict(meta),
        }
        result = await session.command("session.open", body, command_id)
        session.keep_alive(SessionRecord.model_validate(result["session"]))
        return session

    def session(self, session_id: str) -> Session:
        """A session that is open already, to go on with after a mere reconnect."""
        return Session(self.wire, session_id)

    async def close(self) -> None:
        """Disconnect. Sessions stay open."""
        await self.wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Connecting:
    """`await connect(…)` and `async with connect(…)` both work."""

    def __init__(self, url: str | None, timeout: float, options: dict[str, Any]) -> None:
        self._arguments = url, timeout, options
        self._up: Upcall | None = None

    def __await__(self) -> Generator[Any, None, Upcall]:
        return self._connect().__await__()

    async def __aenter__(self) -> Upcall:
        self._up = await self._connect()
        return self._up

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._up:
            await self._up.close()

    async def _connect(self) -> Upcall:
        wire = Wire()
        await wire.connect(*self._arguments)
        return Upcall(wire)


def connect(url: str | None = None, *, timeout: float = CONNECT_TIMEOUT, **nats_options: Any) -> _Connecting:
    """Connect to NATS: `async with upcall.connect(url) as up`.

    Without a url, UPCALL_NATS_URL, else nats://127.0.0.1:4222. The options are those of nats.connect
    (user_credentials, tls, …).
    """
    return _Connecting(url, timeout, nats_options)
