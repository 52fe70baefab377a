"""nats-py's client, made to survive what anybody may publish, and a server that goes while a client connects.

The server takes a subject or a header of nearly any bytes. In nats-py 2.16 such a message ends the read loop
(a subject or reply that is no UTF-8, a header that is no header) or the connection (white space other than
blank and tab in a subject), and JetStream then delivers it to the next instance. Here it arrives like any
other, with U+FFFD for what cannot be read, and is refused at our own edge. A message that we publish ends the
connection as well, for good, if only its headers make it larger than the server takes: here that is an error
of its publish. Drop this once nats-py does so.
"""

import re
import ssl
from typing import Any, cast

import nats.errors
import structlog
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol import parser

from .settings import ShellSettings

logger = structlog.get_logger()

# As nats-py has them, but with the server's own idea of what ends a word: blank, tab and the end of the line.
_WORD = rb"([^ \t\r\n]+)"
_GAP = rb"[ \t]+"
_REPLY = rb"(" + _WORD + _GAP + rb")?"
parser.MSG_RE = re.compile(rb"\AMSG" + _GAP + _WORD + _GAP + _WORD + _GAP + _REPLY + rb"(\d+)\r\n")
parser.HMSG_RE = re.compile(
    rb"\AHMSG" + _GAP + _WORD + _GAP + _WORD + _GAP + _REPLY + rb"(\d+)" + _GAP + rb"(\d+)\r\n"
)


class SturdyClient(Client):
    """A client whose connection no message can end, and whose connect no server can hold up for ever."""

    async def _process_connect_init(self) -> None:
        """nats-py waits for the end of what it could not set up before it tries again. asyncio never tells of
        that end where a TLS handshake was begun and failed, so such a connection is let go here."""
        try:
            await super()._process_connect_init()
        except BaseException:
            if self._transport is not None:
                self._transport.close()
                self._transport = None
            raise

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        """Publish; MaxPayloadError where body and headers together are too much for the server."""
        if headers and len(payload) + _size(headers) > self.max_payload:
            raise nats.errors.MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            return cast(dict[str, str] | None, await super()._process_headers(headers))
        except (IndexError, ValueError):
            logger.warning("a message's header can't be read", header=repr((headers or b"")[:200]))
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return self.msg_class(
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )


def _size(headers: dict[str, Any]) -> int:
    """Bytes of a message's headers as they are sent: a first line, a line each, and an empty one."""
    return len("NATS/1.0\r\n\r\n") + sum(
        len(f"{name}: {value}\r\n".encode()) for name, value in headers.items()
    )


class SturdyBroker(NatsBroker):
    """FastStream's broker on such a client."""

    async def _connect(self) -> Client:
        connection = SturdyClient()
        await connection.connect(**cast(dict[str, Any], self._connection_kwargs))
        self.config.connect(connection)
        return connection


def tls_context(settings: ShellSettings) -> ssl.SSLContext | None:
    """What a connection to NATS is secured with; None where no CA is set."""
    if settings.nats_tls_ca is None:
        return None
    context = ssl.create_default_context(cafile=settings.nats_tls_ca)
    if settings.nats_tls_cert is not None:
        context.load_cert_chain(settings.nats_tls_cert, settings.nats_tls_key)
    return context
