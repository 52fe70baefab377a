"""DISPATCH: queued runs for the runners of an agent."""

from typing import Final

import orjson
import structlog

from upcall_contracts import streams, subjects
from upcall_contracts.records import RunRecord
from upcall_shell.errors import Unavailable
from upcall_shell.jetstream import Stored, StreamClient

logger = structlog.get_logger()

_NOT_FOUND = 10014
_EXISTS = frozenset({10013, 10148})
_READ_AT_ONCE: Final = 50
"""So many dispatches of an agent are all read to find those of one run; of more, so many from its time on."""


class Dispatcher:
    """Publishes queued runs, and withdraws those that have ended in the queue.

    Again does no harm: JetStream knows an attempt that it has, and a claim of a run that is not queued any
    more is refused.
    """

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream
        self._provisioned: set[str] = set()

    async def dispatch(self, run: RunRecord) -> None:
        """Publish a run for its agent's runners."""
        await self._provision(run.agent)
        body = orjson.dumps(run.to_wire())
        await self._stream.put(
            subjects.dispatch(run.agent), body, {"Nats-Msg-Id": f"{run.run_id}.{run.attempt}"}
        )

    async def withdraw(self, run: RunRecord) -> None:
        """Remove what is dispatched of a run that has ended without a claim.

        A runner that has it in hand just then is refused the claim, and its ack does no harm. What is not
        found here, or while JetStream is away, is left to the sweep (`dispatch_sweep.py`).
        """
        try:
            await self._withdraw(run)
        except Unavailable as error:
            logger.warning("dispatch not withdrawn", run_id=run.run_id, error=str(error))

    async def _withdraw(self, run: RunRecord) -> None:
        subject = subjects.dispatch(run.agent)
        waiting = (await self._stream.counts(subject)).get(subject, 0)
        if waiting == 0:
            return
        if waiting <= _READ_AT_ONCE:
            stored = await self._stream.next(subject, 1)
        else:
            stored = await self._stream.next_since(subject, run.queued_at or 0)
        for _ in range(_READ_AT_ONCE):
            if stored is None:
                return
            if named(stored) == (run.session_id, run.run_id):
                await self._stream.delete(stored.seq)
                if waiting > _READ_AT_ONCE:
                    return  # a second one is rare, and reading them all for it is not
            stored = await self._stream.next(subject, stored.seq + 1)

    async def _provision(self, agent: str) -> None:
        """Make the agent's consumer, unless a runner that came first has made it."""
        if agent in self._provisioned:
            return
        found = await self._stream.api(f"CONSUMER.INFO.{streams.DISPATCH}.{agent}", {})
        error = found.get("error")
        if error is not None:
            if error.get("err_code") != _NOT_FOUND:
                raise Unavailable(f"consumer of {agent}: {error}")
            config = streams.dispatch_consumer(agent)
            request = {"stream_name": streams.DISPATCH, "config": config, "action": "create"}
            verb = f"CONSUMER.CREATE.{streams.DISPATCH}.{agent}.{subjects.dispatch(agent)}"
            error = (await self._stream.api(verb, request)).get("error")
            if error is not None and error.get("err_code") not in _EXISTS:
                raise Unavailable(f"consumer of {agent}: {error}")
        self._provisioned.add(agent)


def named(dispatched: Stored) -> tuple[str, str] | None:
    """The session and the run that a dispatch is of; None where it is no record of a run."""
    try:
        record = orjson.loads(dispatched.body)
        return record["session_id"], record["run_id"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
