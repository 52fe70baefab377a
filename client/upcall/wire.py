"""One connection to NATS: commands that are sent until they are answered, queries, and topics.

A command is a JetStream publish, so its reply comes to an inbox named in a header. It is sent again under the
same command_id when no reply comes (a service restarts) or the connection was cut: the services carry it out
once.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, cast
from uuid import uuid4

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from upcall_contracts import limits, refusals, subjects
from upcall_contracts.errors import Refusal, parse_reply
from upcall_contracts.ids import is_token

from . import tracing
from .errors import ConnectError, ForbiddenError, NoReplyError, UpcallError, refused

log = logging.getLogger("upcall")

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
CONNECT_TIMEOUT: Final = 10.0
COMMAND_TIMEOUT: Final = 60.0
QUERY_TIMEOUT: Final = 30.0

_PUBLISH_TIMEOUT: Final = 5.0
_RESEND_AFTER: Final = (3.0, 5.0, 10.0)  # then every 10 s: a service may rightly take 30 s (append, settle)
_QUERY_PATIENCE: Final = 5.0
_PAUSE: Final = 0.25
_CLOSE_WITHIN: Final = 1.0

_violation = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)

# JetStream gone for a moment looks like this; so does an API call that the server answers late.
TROUBLE: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


class Wire:
    """What every object of this package speaks through."""

    def __init__(self) -> None:
        self.nc = Client()
        self._replies: dict[str, asyncio.Future[bytes]] = {}
        self._reply_prefix = ""
        self._reconnect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_error: Exception | None = None
        self._not_let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.violations: set[str] = set()
        """Subjects, in lower case, that NATS did not let this user publish to."""
        self._forbidden: dict[str, asyncio.Future[None]] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def connect(self, url: str | None, within: float, options: dict[str, Any]) -> None:
        """Connect, or ConnectError; from then on it reconnects by itself for ever."""
        servers = (url or os.environ.get("UPCALL_NATS_URL") or DEFAULT_URL).split(",")
        settings: dict[str, Any] = {
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "connect_timeout": 2,
            "error_cb": self._on_error,
            "reconnected_cb": self._on_reconnected,
            "user": os.environ.get("UPCALL_NATS_USER"),
            "password": os.environ.get("UPCALL_NATS_PASSWORD"),
            **options,
        }
        if isinstance(user := settings["user"], str) and is_token(user):
            # Where permissions are strict, a user hears replies under a prefix of its own and nowhere else.
            settings.setdefault("inbox_prefix", f"{subjects.REPLY_PREFIX}{user}")
        connecting = asyncio.ensure_future(self.nc.connect(servers, **settings))
        try:
            await _first(connecting, self._not_let_in, within=within)
            if not connecting.done():
                raise self._last_error or TimeoutError("nothing came back")
            connecting.result()
        except TROUBLE as error:
            connecting.cancel()
            # asyncio never tells of the end of a stream whose TLS handshake failed, and nats-py waits for it.
            with suppress(Exception):
                await asyncio.wait_for(self.nc.close(), _CLOSE_WITHIN)
            raise self._not_connected(servers, error) from error
        finally:
            connecting.cancel()
        self._reply_prefix = self.nc.new_inbox()
        await self.nc.subscribe(f"{self._reply_prefix}.*", cb=self._on_reply)

    def _not_connected(self, servers: list[str], error: Exception) -> ConnectError:
        where = ", ".join(servers)
        if self._not_let_in.done():
            return ConnectError(
                f"NATS at {where} does not let this user in. Check the user and password "
                "(UPCALL_NATS_USER and UPCALL_NATS_PASSWORD), or the credentials given to connect()."
            )
        return ConnectError(
            f"No NATS server answers at {where} ({error!r}). "
            "Start one (`make up`), or name yours in UPCALL_NATS_URL."
        )

    async def close(self) -> None:
        """Send what is still to be sent, and disconnect."""
        for reader in list(self._readers):
            reader.cancel()
        if self._readers:
            await asyncio.wait(self._readers)
        if self.nc.is_connected:
            with suppress(*TROUBLE):
                await self.nc.flush(2)
        await self.nc.close()

    async def reconnected(self) -> None:
        """Return at the next reconnect: what was published to core subscribers meanwhile is lost."""
        await asyncio.shield(self._reconnect)

    async def command(
        self,
        caller: str,
        name: str,
        body: dict[str, Any],
        *,
        command_id: str | None = None,
        within: float = COMMAND_TIMEOUT,
    ) -> dict[str, Any]:
        """Have a command (`question.ask`) carried out; its result, RefusedError or NoReplyError."""
        command_id = command_id or uuid4().hex
        if not is_token(caller):
            raise refused(refusals.invalid_caller(caller))
        subject = subjects.command(caller, *name.split("."))
        payload = _encode({**body, "command_id": command_id})
        if len(payload) > limits.BODY_MAX_BYTES:
            raise refused(refusals.too_large(len(payload)))
        token = uuid4().hex
        reply = self._replies[token] = asyncio.get_running_loop().create_future()
        reply_to = {subjects.H_REPLY_TO: f"{self._reply_prefix}.{token}"}
        try:
            with tracing.sending(name, caller, body) as trace:
                headers = {**trace, **reply_to}
                return _read(await self._send(subject, payload, headers, reply, command_id, within))
        finally:
            del self._replies[token]

    async def query(
        self,
        caller: str,
        name: str,
        body: dict[str, Any],
        *,
        waits: float = 0.0,
        within: float = QUERY_TIMEOUT,
    ) -> dict[str, Any]:
        """Ask a query (`session.get`); its result, RefusedError or NoReplyError.

        `waits` is how many seconds the service itself may rightly take (run.wait, question.wait).
        """
        if not is_token(caller):
            raise refused(refusals.invalid_caller(caller))
        subject = subjects.query(caller, *name.split("."))
        payload = _encode(body)
        deadline = _now() + waits + within
        last: Exception | None = None
        while (left := deadline - _now()) > 0:
            self._check_open()
            try:
                patience = min(waits + _QUERY_PATIENCE, left)
                return _read(await self._ask(subject, payload, patience, tracing.asking()))
            except TROUBLE as error:
                last = _telling(last, error, left)
                await asyncio.sleep(min(_PAUSE, left))
        raise NoReplyError(subject, waits + within, None, False, last)

    async def subscribe(
        self, subject: str, on_message: Callable[[str, dict[str, Any]], None]
    ) -> Callable[[], Awaitable[None]]:
        """Hear committed events from now on; returns what ends it. What comes while reconnecting is lost."""

        async def hear(message: Msg) -> None:
            body = cast(dict[str, Any], json.loads(message.data))
            with tracing.because_of(tracing.origin_of(message.headers)):
                on_message(message.subject, body)

        subscription: Subscription = await self.nc.subscribe(subject, cb=hear)
        with suppress(*TROUBLE):
            await self.nc.flush(5)  # the server knows of it before anything is asked

        async def end() -> None:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

        return end

    def read(self, reader: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something read until it ends, or this connection does."""
        task = asyncio.create_task(reader)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        return task

    async def beat(self, session_id: str, body: dict[str, Any]) -> None:
        """One heartbeat; none is kept for later while there is no connection."""
        if self.nc.is_connected:
            with suppress(*TROUBLE):
                await self.nc.publish(subjects.heartbeat(session_id), _encode(body))

    async def _send(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str],
        reply: asyncio.Future[bytes],
        command_id: str,
        within: float,
    ) -> bytes:
        deadline = _now() + within
        stored, sent, last = False, 0, cast(Exception | None, None)
        while (left := deadline - _now()) > 0:
            self._check_open()
            if not self.nc.is_connected:  # what is published now would only pile up
                await _first(self._reconnect, within=left)
                continue
            try:
                await self._publish(subject, payload, headers, min(_PUBLISH_TIMEOUT, left))
                stored = True
                patience = _RESEND_AFTER[min(sent, len(_RESEND_AFTER) - 1)]
                sent += 1
            except TROUBLE as error:
                last, patience = _telling(last, error, left), _PAUSE
            await _first(reply, self._reconnect, within=min(patience, max(0.0, deadline - _now())))
            if reply.done():
                return reply.result()
        raise NoReplyError(subject, within, command_id, stored, last)

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str], within: float) -> None:
        """Publish to JetStream and await its acknowledgement, which is not the reply."""
        ack = await self._ask(subject, payload, within, headers)
        error = cast(dict[str, Any], json.loads(ack)).get("error")
        if error:
            raise nats.js.errors.APIError.from_error(error)

    async def _ask(
        self, subject: str, payload: bytes, within: float, headers: dict[str, str] | None = None
    ) -> bytes:
        """One request; given up when the connection breaks, since what comes back is then lost."""
        loop = asyncio.get_running_loop()
        forbidden = self._forbidden.setdefault(subject.lower(), loop.create_future())
        request = asyncio.ensure_future(self.nc.request(subject, payload, timeout=within, headers=headers))
        try:
            await _first(request, self._reconnect, forbidden, within=within + 1)
            if request.done():
                return request.result().data
            if forbidden.done():
                raise ForbiddenError(f"publish to {subject}", subject.split(".")[1])
            raise TimeoutError("the connection broke")
        finally:
            request.cancel()

    def _check_open(self) -> None:
        if self.nc.is_closed:
            raise UpcallError("This connection is closed. Open a new one with upcall.connect().")

    async def _on_reply(self, message: Msg) -> None:
        future = self._replies.get(message.subject.rpartition(".")[2])
        if future and not future.done():
            future.set_result(message.data)

    async def _on_reconnected(self) -> None:
        log.info("reconnected to NATS")
        done, self._reconnect = self._reconnect, asyncio.get_running_loop().create_future()
        done.set_result(None)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        log.debug("NATS: %r", error)
        if "authorization violation" in str(error).lower() and not self._not_let_in.done():
            self._not_let_in.set_result(None)
        # NATS tells this to the connection and not to the request, in lower case.
        if found := _violation.search(str(error)):
            log.warning("%s", error)
            self.violations.add(found[1])
            forbidden = self._forbidden.pop(found[1], None)
            if forbidden and not forbidden.done():
                forbidden.set_result(None)


async def _first(*futures: asyncio.Future[Any], within: float) -> None:
    await asyncio.wait(futures, timeout=within, return_when=asyncio.FIRST_COMPLETED)


def _telling(before: Exception | None, error: Exception, had: float) -> Exception:
    """What went wrong at last. That an attempt with hardly any time left got no answer says nothing."""
    return before if before and isinstance(error, TimeoutError) and had < _PAUSE else error


def _now() -> float:
    return asyncio.get_running_loop().time()


def _encode(body: dict[str, Any]) -> bytes:
    """JSON without what is None, which on this wire is the same as absent."""
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return _json(given)
    except (TypeError, ValueError):
        raise refused(refusals.invalid(list(_no_json(given)))) from None


def _no_json(given: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name, value in given.items():
        try:
            _json(value)
        except (TypeError, ValueError) as error:
            yield {"field": name, "problem": f"can't be written as JSON: {error}"}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _read(raw: bytes) -> dict[str, Any]:
    reply = parse_reply(raw)
    if isinstance(reply, Refusal):
        raise refused(reply)
    return reply
