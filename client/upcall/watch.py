"""Watches the topic of a run that a handler carries out: asked to cancel, or not ours any more."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from upcall_contracts import subjects
from upcall_contracts.events import Event, EventType
from upcall_contracts.records import RunRecord, RunStatus

from .errors import NoReplyError, RefusedError
from .run import Run
from .wire import Wire


class Watch:
    """Cancels the handler when the run is to be cancelled, or was taken or ended by somebody else."""

    def __init__(self, wire: Wire, runner_id: str, run_id: str) -> None:
        self.cancelled = False
        """It was asked to cancel."""
        self.lost = False
        """It is not ours any more: nothing is to be said for it."""
        self._wire = wire
        self._runner_id = runner_id
        self._run_id = run_id
        self._attempt: int | None = None
        self._task: asyncio.Task[str | None] | None = None
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether the handler was told to end."""
        return self.cancelled or self.lost

    async def __aenter__(self) -> Self:
        """Listen from before the claim on, so that nothing is missed."""
        topic = subjects.run_topic(self._run_id).removesuffix(">") + "lifecycle.>"
        self._unsubscribe = await self._wire.subscribe(topic, lambda _, body: self._on_event(body))
        self._looking = asyncio.create_task(self._look_after_reconnects())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._looking:
            self._looking.cancel()
        if self._unsubscribe:
            await self._unsubscribe()

    async def let_run(
        self, run: Run, handler: Coroutine[Any, Any, str | None]
    ) -> tuple[BaseException | None, str | None]:
        """Let the handler run to its end; what it raised, and what it returned."""
        self._attempt = run.attempt
        self._task = asyncio.create_task(_contained(handler))
        if self.over:
            self._task.cancel()
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._task.cancel()  # the runner stops, and lets go of the run
            await asyncio.wait({self._task})
            raise
        task, self._task = self._task, None
        if task.cancelled() and not self.over:
            return RuntimeError("A cancel came from within the handler; nobody has cancelled the run."), None
        if task.cancelled():
            return asyncio.CancelledError(), None
        if error := task.exception():
            return error, None
        output: Any = task.result()
        if output is None or isinstance(output, str):
            return None, output
        return TypeError(
            f"The handler returned {type(output).__name__}; it must return a text or None."
        ), None

    def _on_event(self, body: dict[str, Any]) -> None:
        event = Event.model_validate(body)
        attempt = RunRecord.model_validate(event.data).attempt
        match event.type:
            case EventType.RUN_CANCEL_REQUESTED:
                self.cancelled = True
            case EventType.RUN_SETTLED:
                self.lost = True
            case EventType.RUN_INTERRUPTED if attempt == self._attempt:
                self.lost = True
            case EventType.RUN_QUEUED if self._attempt is not None and attempt > self._attempt:
                self.lost = True
            case _:
                return
        if self._task:
            self._task.cancel()

    async def look(self) -> None:
        """Read what the topic may have told while nobody listened."""
        with suppress(RefusedError, NoReplyError):
            result = await self._wire.query(self._runner_id, "run.get", {"run_id": self._run_id})
            run = RunRecord.model_validate(result["run"])
            if run.status is not RunStatus.SETTLED and run.holder == self._runner_id:
                await self._read_events_again()
            elif self._task:
                self.lost = True
                self._task.cancel()

    async def _look_after_reconnects(self) -> None:
        while True:
            await self._wire.reconnected()
            await self.look()

    async def _read_events_again(self) -> None:
        cursor: str | None = None
        while True:
            body = {"run_id": self._run_id, "cursor": cursor} if cursor else {"run_id": self._run_id}
            page = await self._wire.query(self._runner_id, "log.introspect", body)
            for event in page["events"]:
                if event.get("type") == EventType.RUN_CANCEL_REQUESTED:
                    self._on_event(event)
            cursor = page["cursor"]
            if not cursor:
                return


async def _contained(handler: Coroutine[Any, Any, str | None]) -> str | None:
    """Carry a handler out. One that exits ends its run, and not the runner with all its other runs."""
    try:
        return await handler
    except SystemExit as error:
        text = f"The handler exited with {error.code!r}; it ends its run by returning, or with an exception."
        raise RuntimeError(text) from error
