"""DISPATCH: queued runs for the runners of an agent."""

import orjson

from upcall_contracts import streams, subjects
from upcall_contracts.records import RunRecord
from upcall_shell.errors import Unavailable
from upcall_shell.jetstream import StreamClient

_NOT_FOUND = 10014
_EXISTS = frozenset({10013, 10148})


class Dispatcher:
    """Publishes queued runs.

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
