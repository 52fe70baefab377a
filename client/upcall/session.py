"""A session that this program hosts: the parent at the top of a tree, or a `self` child."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from upcall_contracts.records import RunRecord, SessionRecord, Trigger

from .heartbeat import beating
from .parent import Parent
from .run import Run
from .wire import Wire


class Session(Parent):
    """One conversation of one agent, spoken for by this program."""

    def __init__(self, wire: Wire, session_id: str) -> None:
        super().__init__(wire, session_id, session_id)
        self._beating: asyncio.Task[None] | None = None

    async def start(
        self,
        task: str | None = None,
        *,
        trigger: str = Trigger.SELF,
        causes: Sequence[str] = (),
        command_id: str | None = None,
    ) -> Run:
        """A run of this session, carried out here: `async with await session.start("…") as run`.

        `causes` are the inbox items that it takes up; an item is the cause of one run at most.
        """
        body = {"task": task, "trigger": trigger, "causes": list(causes)}
        record = RunRecord.model_validate((await self.command("run.start", body, command_id))["run"])
        return await Run.of_self(self.wire, self.session_id, record.run_id)

    def keep_alive(self, record: SessionRecord) -> None:
        """Beat for it as long as this program is connected, if it has a lease."""
        if record.lease_ms and self._beating is None:
            self._beating = self.wire.read(self._beat(record.lease_ms))

    async def detach(self) -> None:
        """Stop beating. The session stays; with a lease it is gone once that has passed."""
        if self._beating:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None

    async def _beat(self, lease_ms: int) -> None:
        async with beating(self.wire, self.session_id, lease_ms):
            await asyncio.get_running_loop().create_future()
