"""JetStream's API as raw JSON: nats-py's dataclasses lag behind the server's fields."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
from nats.aio.client import Client
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from upcall_shell.nats_client import SturdyClient, tls_context
from upcall_shell.settings import ShellSettings

DEFAULT_PATIENCE = 30.0

STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
# Codes of a JetStream that is still starting or electing a leader (the server's errors.json): cluster not
# available, no suitable peers, system temporarily unavailable, not enabled yet for the account or at all.
NOT_READY = frozenset({10004, 10005, 10008, 10009, 10039, 10076})


class ApiError(Exception):
    """JetStream refused a request; its own words, and its code."""

    def __init__(self, subject: str, code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({code})")
        self.code = code
        self.description = description


class NotReadyError(Exception):
    """JetStream can't be reached, or does not answer yet; asking again later may help."""


class JetStreamApi:
    """Sends requests to `$JS.API.…` and waits, up to `patience` seconds, while JetStream isn't ready."""

    def __init__(self, connection: Client, patience: float) -> None:
        self._connection = connection
        self._patience = patience

    async def request(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer, or ApiError. Every request made here may be sent twice without harm."""
        return await _retrying(self._patience)(self._once, subject, body or {})

    async def find(self, subject: str, not_found: int) -> dict[str, Any] | None:
        """The answer, or None where JetStream says `not_found` (or knows not even the stream)."""
        try:
            return await self.request(subject)
        except ApiError as error:
            if error.code in (not_found, STREAM_NOT_FOUND):
                return None
            raise

    async def _once(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            message = await self._connection.request(
                f"$JS.API.{subject}", json.dumps(body).encode(), timeout=5
            )
        except (nats.errors.Error, TimeoutError) as error:
            raise NotReadyError(f"JetStream does not answer: {error or type(error).__name__}") from error
        answer: dict[str, Any] = json.loads(message.data)
        if "error" not in answer:
            return answer
        code, description = answer["error"].get("err_code", 0), answer["error"].get("description", "")
        if code in NOT_READY:
            raise NotReadyError(f"JetStream is not ready: {description} ({code})")
        raise ApiError(subject, code, description)


@asynccontextmanager
async def connected(
    settings: ShellSettings, *, patience: float = DEFAULT_PATIENCE
) -> AsyncIterator[JetStreamApi]:
    """A connection of its own, with the settings of a service, waited for up to `patience` seconds."""
    connection = SturdyClient()
    connecting = asyncio.create_task(
        connection.connect(
            settings.nats_servers(),
            name="upcall-provision",
            connect_timeout=2,
            # Without an end: it is our patience that ends a first connect that nobody answers.
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,  # pyright: ignore[reportArgumentType] - any fraction of a second will do
            error_cb=_say_nothing,
            user=settings.nats_user,
            password=settings.nats_password,
            tls=tls_context(settings),
        )
    )
    try:
        await _ended(connecting, patience)
    except (TimeoutError, nats.errors.NoServersError, OSError) as error:
        await connection.close()
        raise NotReadyError(
            f"NATS can't be reached at {settings.nats_url} (tried for {patience:g} s)"
        ) from error
    try:
        yield JetStreamApi(connection, patience)
    finally:
        await connection.close()


async def _ended(connecting: asyncio.Task[None], patience: float) -> None:
    """Wait for a connect; TimeoutError after `patience` seconds. A cancel that nats-py loses is repeated."""
    await asyncio.wait({connecting}, timeout=patience)
    late = not connecting.done()
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=0.2)
    if late:
        raise TimeoutError
    connecting.result()


async def _say_nothing(_: Exception) -> None:
    """What goes wrong on the connection is told by the request that fails for it."""


def _retrying(patience: float) -> AsyncRetrying:
    return AsyncRetrying(
        retry=retry_if_exception_type(NotReadyError),
        wait=wait_exponential(multiplier=0.02, max=1),
        stop=stop_after_delay(patience),
        reraise=True,
    )
