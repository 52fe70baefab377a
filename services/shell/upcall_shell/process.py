"""A service's process: its connections, what it listens to, and how it starts and stops."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

import nats.errors
import structlog
from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsMessage
from faststream.security import BaseSecurity, SASLPlaintext
from nats.aio.client import Client

from upcall_contracts import streams, subjects

from . import tracing
from .backlog import Backlog
from .commands import CommandDesk, CommandHandler
from .dead_letters import DeadLetters
from .delivery import Deliveries, Handle, Park
from .errors import Unavailable
from .figures import Figures
from .health import HealthServer
from .jetstream import StreamClient
from .logs import configure_logs
from .metrics import LOG_LIMIT, READY
from .nats_client import SturdyBroker, tls_context
from .queries import QueryDesk, QueryHandler
from .redis_gate import RedisGate
from .settings import ShellSettings
from .timers import Timers

logger = structlog.get_logger()
_SIZE_FOR_S = 1.0  # how long the log's size is believed
_STARTUP_PAUSE_S = 0.3
_FLUSH_S = 2


async def _whole(message: NatsMessage) -> NatsMessage:
    """FastStream's decoder: bodies are parsed at our own edge, so that bad ones get their own refusal."""
    return message


class Service:
    """The plumbing of one service process. `app()` gives what `faststream run` takes.

    Subscribers have `no_reply`, since FastStream would else publish what a handler returns, which is nothing,
    to wherever the `reply_to` of a message says, before the real reply and also outside `_INBOX.`.
    """

    def __init__(self, name: str, settings: ShellSettings) -> None:
        configure_logs(name, settings.log_level, as_json=settings.log_json)
        tracing.configure(name)
        self.name = name
        self.settings = settings
        self.broker = SturdyBroker(
            settings.nats_servers(),
            apply_types=False,
            logger=None,
            name=f"upcall-{name}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            # A server that is paused or cut off is noticed after two of these.
            ping_interval=2,
            max_outstanding_pings=2,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            error_cb=self._nats_error,
            closed_cb=self._closed,
            security=_security(settings),
        )
        self._client: Client | None = None
        self.log = self.stream(streams.LOG)
        self.commands = self.stream(streams.COMMANDS)
        self.inbox = self.stream(streams.INBOX)
        self.dispatch = self.stream(streams.DISPATCH)
        self.timers = Timers(self.stream(streams.TIMERS))
        self.dead = DeadLetters(self.stream(streams.DEAD), name)
        self.redis = RedisGate(settings.redis_url)
        self.nats_steady_since = time.monotonic()
        """When the connection to NATS was last made, on the monotonic clock."""
        self._deliveries: list[Deliveries] = []
        self._query_desks: list[QueryDesk] = []
        self._consumers: list[streams.ConsumerDefinition] = []
        self.figures = Figures(settings.figures_ms)
        """What is read on a slow schedule; a service adds its own."""
        self.figures.add("ready", self._set_ready, READY)
        Backlog(self.log, self._consumers).add_to(self.figures)
        LOG_LIMIT.set(settings.max_log_bytes)
        self._background: list[Callable[[], Awaitable[None]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._before: list[Callable[[], Awaitable[None]]] = []
        self._size: tuple[float, int] = (0.0, 0)
        self._serving = False
        self._app: FastStream | None = None
        self._stopping = False
        self._health = HealthServer(settings.http_host, settings.http_port, self.checks)

    # What a service is made of

    def connection(self) -> Client:
        """The connection to NATS. Raises Unavailable before there is one."""
        if self._client is None:
            raise Unavailable("not connected to NATS yet")
        return self._client

    def stream(self, name: str) -> StreamClient:
        """A client of a stream."""
        return StreamClient(self.connection, name)

    async def reply(self, to: str, body: bytes) -> None:
        """Publish a reply."""
        await self.connection().publish(to, body, headers=tracing.outgoing(None))

    def on_commands(self, consumer: str, handlers: Mapping[tuple[str, str], CommandHandler]) -> None:
        """Carry out the commands of a consumer of COMMANDS."""
        desk = CommandDesk(handlers, self.dead, self.reply)
        self.on_deliveries(streams.COMMANDS, consumer, desk.handle, desk.parked)

    def on_deliveries(
        self, stream: str, consumer: str, handle: Handle, on_parked: Park | None = None
    ) -> None:
        """Work on the deliveries of a durable consumer; `streams.CONSUMERS` defines it."""
        definition = next(c for c in streams.CONSUMERS if (c.stream, c.name) == (stream, consumer))
        pauses = self.settings.retry_pauses()
        count = self.redis.count_failure
        deliveries = Deliveries(consumer, handle, self.dead, on_parked, pauses, count)
        self._consumers.append(definition)
        self._deliveries.append(deliveries)

        async def take(message: NatsMessage) -> None:
            await deliveries.accept(message.raw_message)

        self.broker.subscriber(
            definition.filters[0],
            queue=consumer,
            stream=JStream(stream, declare=False),
            decoder=_whole,
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
        )(take)

    def on_queries(self, handlers: Mapping[tuple[str, str], QueryHandler]) -> None:
        """Answer queries; the instances of a service share them."""
        desk = QueryDesk(handlers, self.reply)
        self._query_desks.append(desk)

        async def take(message: NatsMessage) -> None:
            await desk.accept(message.raw_message)

        for noun in sorted({noun for noun, _ in handlers}):
            self.broker.subscriber(
                subjects.query_filter(noun),
                queue=self.name,
                decoder=_whole,
                ack_policy=AckPolicy.MANUAL,
                no_reply=True,
            )(take)

    def before_serving(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something once connected, before anything is consumed."""
        self._before.append(work)

    def in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something from the start until the stop; if it fails it is begun again."""
        self._background.append(work)

    # Health

    async def checks(self) -> dict[str, bool]:
        """What the service needs, and whether it can be used now."""
        connected = self._client is not None and self._client.is_connected
        jetstream = False
        if connected:
            with suppress(Unavailable):
                jetstream = "error" not in await self.log.info()
        return {
            "nats": connected,
            "jetstream": jetstream,
            "redis": await self.redis.ping(),
            "serving": self._serving,
        }

    async def _set_ready(self) -> None:
        for name, good in (await self.checks()).items():
            READY.labels(name).set(good)

    async def overloaded(self) -> bool:
        """Whether the log is over UPCALL_MAX_LOG_BYTES: then nothing new is opened."""
        read_at, size = self._size
        if time.monotonic() - read_at > _SIZE_FOR_S:
            size = int((await self.log.info()).get("state", {}).get("bytes", 0))
            self._size = (time.monotonic(), size)
        return size > self.settings.max_log_bytes

    # Running

    def app(self) -> FastStream:
        """The application for `faststream run`."""
        app = FastStream(self.broker, logger=None)
        app.on_startup(self._start)
        app.after_startup(self._started)
        app.on_shutdown(self._stop)
        app.after_shutdown(self._stopped)
        self._app = app
        return app

    async def _start(self) -> None:
        self._health.start()
        self._tasks.append(asyncio.create_task(self._keep_running(self.figures.run)))
        while self._client is None:
            try:
                self._client = await self.broker.connect()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                logger.warning("waiting for nats", error=repr(error))
                await asyncio.sleep(_STARTUP_PAUSE_S)
        while missing := await self._missing():
            logger.info("waiting for provisioning", missing=missing)
            await asyncio.sleep(_STARTUP_PAUSE_S)
        for work in self._before:
            await work()

    async def _missing(self) -> list[str]:
        missing: list[str] = []
        for consumer in self._consumers:
            try:
                info = await self.log.api(f"CONSUMER.INFO.{consumer.stream}.{consumer.name}", {})
            except Unavailable:
                return ["jetstream"]
            if "error" in info:
                missing.append(f"{consumer.stream}/{consumer.name}")
        return missing

    async def _started(self) -> None:
        await self._heard()
        self._tasks += [asyncio.create_task(self._keep_running(work)) for work in self._background]
        self._serving = True
        logger.info("serving")

    async def _heard(self) -> None:
        """Return once the server has taken in all subscriptions: whoever is told "ready" may ask at once.

        Twice, since the PING of nats-py's flush overtakes what the client still buffers. A connection that is
        lost here is no matter: the next one begins with all subscriptions.
        """
        for _ in range(2):
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await self.connection().flush(timeout=_FLUSH_S)

    async def _keep_running(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                logger.exception("background work failed", work=getattr(work, "__qualname__", repr(work)))
            await asyncio.sleep(1)

    async def _stop(self) -> None:
        self._serving, self._stopping = False, True
        grace = self.settings.stop_grace_ms / 1000
        await asyncio.gather(*[d.drain(grace) for d in self._deliveries])
        await asyncio.gather(*[d.drain(min(grace, 2.0)) for d in self._query_desks])
        await _end(self._tasks)
        if self._client is not None:
            with suppress(nats.errors.Error, TimeoutError):
                await self._client.flush(timeout=_FLUSH_S)

    async def _stopped(self) -> None:
        await self.redis.close()
        await self._health.stop()
        await asyncio.to_thread(tracing.end)
        logger.info("stopped")

    # The connection's own events

    async def _disconnected(self) -> None:
        logger.warning("nats disconnected")

    async def _reconnected(self) -> None:
        self.nats_steady_since = time.monotonic()
        logger.info("nats reconnected")

    async def _closed(self) -> None:
        """The server ended the connection with an error, after which nats-py does not connect again: the
        process ends, so that whoever runs it starts it anew."""
        if not self._stopping and self._app is not None:
            logger.critical("the connection to NATS was closed for good; ending")
            self._app.exit()

    async def _nats_error(self, error: Exception) -> None:
        logger.warning("nats error", error=repr(error))


def _security(settings: ShellSettings) -> BaseSecurity | None:
    context = tls_context(settings)
    if settings.nats_user is not None:
        return SASLPlaintext(settings.nats_user, settings.nats_password or "", ssl_context=context)
    return BaseSecurity(ssl_context=context) if context is not None else None


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end, so that what they hold is given back; again where one cancel was
    lost, as `asyncio.wait_for` of Python 3.11 loses those that come together with its result."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.5)
