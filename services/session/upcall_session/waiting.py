"""run.wait: until a run is settled, or asks its parent something."""

import asyncio
from typing import Any

from nats.aio.msg import Msg

from upcall_contracts import subjects
from upcall_contracts.errors import Refusal
from upcall_contracts.queries import RunWait
from upcall_contracts.records import QuestionRecord, RunRecord, RunStatus
from upcall_shell.process import Service
from upcall_shell.queries import Query

from .log_store import SessionLog
from .reach import Reach

_LOOK_S = 5.0  # how often the log is asked all the same: a core subscription may miss an event


class Waiting:
    """Waits on behalf of whoever asks."""

    def __init__(self, service: Service, sessions: SessionLog, reach: Reach) -> None:
        self._service = service
        self._sessions = sessions
        self._reach = reach

    async def wait(self, query: Query[RunWait]) -> dict[str, Any] | Refusal:
        """run.wait: subscribe first, look then, so that nothing falls in between."""
        run_id = query.body.run_id
        changed = asyncio.Event()

        async def wake(_: Msg) -> None:
            changed.set()

        subscription = await self._service.connection().subscribe(subjects.run_topic(run_id), cb=wake)
        try:
            give_up = asyncio.get_running_loop().time() + query.body.timeout_ms / 1000
            while True:
                changed.clear()
                found = await self._look(query)
                left = give_up - asyncio.get_running_loop().time()
                if isinstance(found, Refusal) or found["state"] != "running" or left <= 0:
                    return found
                try:
                    await asyncio.wait_for(changed.wait(), min(left, _LOOK_S))
                except TimeoutError:
                    continue
        finally:
            await subscription.unsubscribe()

    async def _look(self, query: Query[RunWait]) -> dict[str, Any] | Refusal:
        found = await self._reach.visible_run(query.caller, query.body.run_id)
        if isinstance(found, Refusal):
            return found
        run = found.run
        if run.status is RunStatus.SETTLED:
            return _answer("settled", run, None)
        question = None if found.state.cancelling else await self._sessions.open_question(run.run_id)
        return _answer("question" if question is not None else "running", run, question)


def _answer(state: str, run: RunRecord, question: QuestionRecord | None) -> dict[str, Any]:
    asked = question.to_wire() if question is not None else None
    return {"state": state, "run": run.to_wire(), "question": asked}
