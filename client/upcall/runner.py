"""A runner: serves agents by carrying out the runs that are dispatched to them."""

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from uuid import uuid4

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import FetchTimeoutError, NotFoundError

from upcall_contracts import streams
from upcall_contracts.ids import is_token
from upcall_contracts.records import QuestionRecord, RunRecord, SessionRecord

from . import tracing
from .asking import read_question
from .connection import Upcall, connect
from .errors import NoReplyError, RefusedError
from .heartbeat import beating, lease_of_runner
from .run import Run
from .watch import Watch
from .wire import TROUBLE, Wire

log = logging.getLogger("upcall.runner")

Handler = Callable[[Run], Coroutine[Any, Any, str | None]]

_FETCH: Final = 5.0
_HEARTBEAT: Final = 1.5  # of the server, while it has nothing for us
_CLAIM_TIMEOUT: Final = 20.0  # below DISPATCH's ack_wait of 30 s: then somebody gets it again
_RETRY_AFTER: Final = 5.0
_PAUSE: Final = 0.5


class Runner:
    """Carries out the runs of the agents that have a handler.

        runner = upcall.Runner(concurrency=4)

        @runner.agent("explorer")
        async def explore(run: upcall.Run) -> str: ...

        asyncio.run(runner.run())

    What the handler returns is the answer. An exception settles the run as failed, a used-up budget as
    halted, a cancel as cancelled. A handler must not block the event loop: heartbeats stop, and the run is
    lost.
    """

    def __init__(
        self,
        up: Upcall | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - what it is on the wire
        concurrency: int = 4,
        stop_grace: float = 30.0,
    ) -> None:
        """`up`: a connection, or the url of one. `id`: the caller's token, of this process alone.

        `concurrency`: how many runs of each agent at a time. `stop_grace`: seconds that runs have to end when
        the runner stops; then they are let go of, and another runner takes them over.
        """
        self.id = id or f"runner-{uuid4().hex}"
        if not is_token(self.id):
            raise ValueError(f"A runner's id is 1 to 64 characters of A-Z a-z 0-9 _ -, not {self.id!r}.")
        self.serving = asyncio.Event()
        """Set once it takes runs."""
        self._up = up
        self._concurrency = concurrency
        self._stop_grace = stop_grace
        self._handlers: dict[str, Handler] = {}
        self._stopping = asyncio.Event()
        self._active: dict[tuple[str, int], asyncio.Task[None]] = {}

    def agent(self, name: str) -> Callable[[Handler], Handler]:
        """Serve the runs of an agent with this handler."""
        if not is_token(name):
            raise ValueError(f"An agent's name is 1 to 64 characters of A-Z a-z 0-9 _ -, not {name!r}.")

        def register(handler: Handler) -> Handler:
            if not inspect.iscoroutinefunction(handler):
                raise TypeError(
                    f"The handler of agent {name} must be async; asyncio.to_thread takes blocking work."
                )
            self._handlers[name] = handler
            return handler

        return register

    def stop(self) -> None:
        """Take no more runs, let those in hand end, then return from run()."""
        self._stopping.set()

    async def run(self, *, handle_signals: bool = True) -> None:
        """Serve until stop(), SIGINT or SIGTERM."""
        if not self._handlers:
            raise ValueError("This runner serves no agent: register one with @runner.agent(name).")
        async with AsyncExitStack() as stack:
            up = self._up
            if not isinstance(up, Upcall):
                up = await stack.enter_async_context(connect(up))
            if handle_signals and threading.current_thread() is threading.main_thread():
                stack.callback(_on_signals(self.stop))
            await self._run(up.wire)

    async def _run(self, wire: Wire) -> None:
        serving = [
            asyncio.create_task(self._serve(wire, name, handler)) for name, handler in self._handlers.items()
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        grace = 0.0
        try:
            done, _ = await asyncio.wait({stopping, *serving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            grace = self._stop_grace
        finally:
            for task in (stopping, *serving):
                task.cancel()
            await asyncio.wait({stopping, *serving})
            await self._finish(grace)

    async def _finish(self, grace: float) -> None:
        """Let the runs in hand end; those that don't are let go of, and keep their questions."""
        if self._active and grace:
            log.warning(
                "stopping: %d runs in hand have %g s to end, then another runner takes them over; "
                "a second signal stops at once",
                len(self._active),
                grace,
            )
            await asyncio.wait(self._active.values(), timeout=grace)
        left = list(self._active.values())
        for task in left:
            task.cancel()
        if left:
            log.warning("%d runs let go of", len(left))
            await asyncio.wait(left)

    async def _serve(self, wire: Wire, agent: str, handler: Handler) -> None:
        """Take runs of one agent, and never more at a time than may be carried out."""
        slots = asyncio.Semaphore(self._concurrency)
        while True:
            try:
                subscription = await _dispatch_of(wire, agent)
                self.serving.set()
                try:
                    while True:
                        await slots.acquire()
                        await self._take(wire, handler, subscription, slots)
                finally:
                    with suppress(*TROUBLE):
                        await subscription.unsubscribe()
            except TROUBLE as error:
                log.info("no dispatch for %s at the moment: %r", agent, error)
                await asyncio.sleep(_PAUSE)

    async def _take(
        self,
        wire: Wire,
        handler: Handler,
        subscription: JetStreamContext.PullSubscription,
        slots: asyncio.Semaphore,
    ) -> None:
        """Fetch one run. A fetch that hears nothing at all, not even a heartbeat, raises."""
        taken = False
        try:
            (message,) = await subscription.fetch(1, timeout=_FETCH, heartbeat=_HEARTBEAT)
            taken = await self._begin(wire, handler, message, slots)
        except FetchTimeoutError:
            return
        finally:
            if not taken:
                slots.release()

    async def _begin(self, wire: Wire, handler: Handler, message: Msg, slots: asyncio.Semaphore) -> bool:
        try:
            dispatched = RunRecord.model_validate_json(message.data)
        except ValueError:
            log.warning("a dispatch on %s is no run record; dropped", message.subject)
            await message.term()
            return False
        key = dispatched.run_id, dispatched.attempt
        if key in self._active:
            await message.ack()
            return False
        task = asyncio.create_task(self._carry_out(wire, handler, message, dispatched.run_id, slots))
        self._active[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return True

    def _ended(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        del self._active[key]
        if not task.cancelled() and (error := task.exception()):
            log.error("run %s was given up, and will be taken over", key[0], exc_info=error)

    async def _carry_out(
        self, wire: Wire, handler: Handler, message: Msg, run_id: str, slots: asyncio.Semaphore
    ) -> None:
        """One run, from its claim until the work that it left has ended."""
        async with AsyncExitStack() as slot:
            slot.callback(slots.release)
            slot.enter_context(tracing.within(_received(message, run_id)))
            async with Watch(wire, self.id, run_id) as watch:
                run = await self._claim(wire, run_id, message)
                if run is None:
                    return
                lease_ms = lease_of_runner(run.session_record.lease_ms)
                async with beating(wire, run.session_id, lease_ms, run_id, run.attempt):
                    error, output = await watch.let_run(run, handler(run))
                    if watch.over:
                        await run.cancel_work()
                    if not watch.lost:
                        await self._settle(run, error, output)
                    await slot.aclose()
                    await run.until_work_ended()

    async def _claim(self, wire: Wire, run_id: str, message: Msg) -> Run | None:
        """Become the run's holder; None if somebody else is. The dispatch is acked whatever the answer."""
        try:
            claim = await wire.command(self.id, "run.claim", {"run_id": run_id}, within=_CLAIM_TIMEOUT)
        except NoReplyError as error:
            log.warning("claiming run %s: %s", run_id, error)
            return None  # it is dispatched again
        except RefusedError as refusal:
            log.info("run %s is not ours: %s", run_id, refusal)
            with suppress(*TROUBLE):
                await (message.nak(delay=_RETRY_AFTER) if refusal.retryable else message.ack())
            return None
        with suppress(*TROUBLE):  # dispatched once more, it would be refused
            await message.ack()
        return Run(
            wire,
            self.id,
            RunRecord.model_validate(claim["run"]),
            SessionRecord.model_validate(claim["session"]),
            await self._questions(wire, claim),
        )

    async def _questions(self, wire: Wire, claim: dict[str, Any]) -> list[QuestionRecord]:
        """The questions of the former holders; those that a claim has no room for it only names."""
        left = claim.get("questions_left", [])  # a service of before has none
        return [
            *await asyncio.gather(*[read_question(wire, self.id, each) for each in left]),
            *[QuestionRecord.model_validate(question) for question in claim["questions"]],
        ]

    async def _settle(self, run: Run, error: BaseException | None, output: str | None) -> None:
        if error and not isinstance(error, asyncio.CancelledError | RefusedError):
            log.warning("run %s of %s failed", run.run_id, run.record.agent, exc_info=error)
        try:
            await run.end(error, output)
        except RefusedError as refusal:
            log.info("run %s was not settled by us: %s", run.run_id, refusal)
        except NoReplyError as no_reply:
            log.error("settling run %s: %s", run.run_id, no_reply)


async def _dispatch_of(wire: Wire, agent: str) -> JetStreamContext.PullSubscription:
    """The agent's durable consumer, made with the contract's settings where it is missing."""
    js = wire.nc.jetstream(timeout=5)
    try:
        await js.consumer_info(streams.DISPATCH, agent)
    except NotFoundError:
        config = ConsumerConfig.from_response(streams.dispatch_consumer(agent))
        await js.add_consumer(streams.DISPATCH, config)
    return await js.pull_subscribe_bind(consumer=agent, stream=streams.DISPATCH)


def _received(message: Msg, run_id: str) -> tracing.Origin | None:
    """The run's own trace begins, linked to what dispatched it; all that its handler does belongs to it."""
    ids = {"run_id": run_id, "agent": message.subject.rpartition(".")[2]}
    return tracing.received("dispatch", ids, tracing.origin_of(message.headers), begins=True)


def _on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Stop at the first signal; the second one has its usual effect. Returns what undoes this."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def undo() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        undo()
        stop()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    return undo
