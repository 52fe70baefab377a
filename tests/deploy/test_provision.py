"""Provisioning against a real nats-server."""

import asyncio
import re
from dataclasses import dataclass, field, replace
from typing import Any

import nats
import pytest

from upcall_deploy.differences import ADD_A_SOURCE_INSTEAD
from upcall_deploy.jetstream_api import JetStreamApi, NotReadyError, connected
from upcall_deploy.ports import HOST, Ports
from upcall_deploy.processes import Part
from upcall_deploy.provision import ProvisioningError, main, provision
from upcall_shell.settings import ShellSettings


@dataclass(frozen=True)
class Stream:
    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self, replicas: int) -> dict[str, Any]:
        return {"name": self.name, "storage": "file", "num_replicas": replicas, **self.settings}

    def but(self, **settings: Any) -> "Stream":
        return replace(self, settings={**self.settings, **settings})


@dataclass(frozen=True)
class Consumer(Stream):
    stream: str = "LOG"

    def config(self, replicas: int) -> dict[str, Any]:
        return {"durable_name": self.name, "ack_policy": "explicit", **self.settings}


def _from_log(dest: str) -> dict[str, Any]:
    return {"name": "LOG", "subject_transforms": [{"src": "log.*", "dest": dest}]}


LOG = Stream("LOG", {"subjects": ["log.>"], "discard": "new", "allow_direct": True})
TOPICS = Stream(
    "TOPICS",
    {"sources": [_from_log("run.{{wildcard(1)}}")], "republish": {"src": "run.>", "dest": "run.>"}},
)
TIMERS = Stream("TIMERS", {"subjects": ["timer.>"], "allow_msg_schedules": True, "max_age": 10**9})
READER = Consumer("reader", {"filter_subjects": ["log.a", "log.b"], "max_deliver": 7})
STREAMS, CONSUMERS = (LOG, TOPICS, TIMERS), (READER,)


async def _messages(api: JetStreamApi, stream: str) -> int:
    return (await api.request(f"STREAM.INFO.{stream}"))["state"]["messages"]


async def _until_derived(api: JetStreamApi, count: int) -> None:
    async with asyncio.timeout(5):
        while await _messages(api, "TOPICS") != count:  # noqa: ASYNC110 - nothing to wait on: JetStream derives it
            await asyncio.sleep(0.01)


async def _publish(server: Part, *subjects: str) -> None:
    connection = await nats.connect(server.spec.url)
    for subject in subjects:
        await connection.request(subject, b"{}")
    await connection.close()


async def test_the_second_time_there_is_nothing_to_change(api: JetStreamApi) -> None:
    assert await provision(api, STREAMS, CONSUMERS) == [
        "stream LOG: created",
        "stream TOPICS: created",
        "stream TIMERS: created",
        "consumer reader of LOG: created",
    ]
    assert await provision(api, STREAMS, CONSUMERS) == []


async def test_only_what_differs_is_changed_and_said(api: JetStreamApi, nats_server: Part) -> None:
    await provision(api, STREAMS, CONSUMERS)
    await _publish(nats_server, "log.a", "log.b")
    wider = LOG.but(subjects=["log.>", "log2.>"], max_bytes=10**9)
    other = replace(READER, settings={**READER.settings, "filter_subjects": ["log.c"]})
    expected = [
        "stream LOG: max_bytes (not set) -> 1000000000",
        "stream LOG: subjects ['log.>'] -> ['log.>', 'log2.>']",
        "consumer reader of LOG: filter_subjects ['log.a', 'log.b'] -> ['log.c']",
    ]
    assert await provision(api, (wider, TOPICS, TIMERS), (other,), only_look=True) == expected
    assert await provision(api, (wider, TOPICS, TIMERS), (other,)) == expected
    assert await provision(api, (wider, TOPICS, TIMERS), (other,)) == []
    assert (await api.request("CONSUMER.INFO.LOG.reader"))["config"]["filter_subjects"] == ["log.c"]
    assert await _messages(api, "LOG") == 2
    await _until_derived(api, 2)


async def test_what_somebody_changed_by_hand_is_set_right(api: JetStreamApi) -> None:
    await provision(api, STREAMS, CONSUMERS)
    await api.request("STREAM.UPDATE.LOG", LOG.but(max_msgs=5, allow_direct=False).config(1))
    assert await provision(api, STREAMS, CONSUMERS) == [
        "stream LOG: allow_direct (not set) -> true",
        "stream LOG: max_msgs 5 -> (not set)",
    ]


async def test_a_changed_source_is_refused_and_nothing_else_is_changed(
    api: JetStreamApi, nats_server: Part
) -> None:
    """Accepted, JetStream would derive every message a second time."""
    await provision(api, STREAMS, CONSUMERS)
    await _publish(nats_server, "log.a")
    await _until_derived(api, 1)
    changed = TOPICS.but(sources=[_from_log("run.new.{{wildcard(1)}}")])
    with pytest.raises(ProvisioningError, match=re.escape(ADD_A_SOURCE_INSTEAD)) as refused:
        await provision(api, (LOG.but(max_bytes=10**9), changed, TIMERS), CONSUMERS)
    assert refused.value.done == ()
    assert "max_bytes" not in str(await provision(api, STREAMS, CONSUMERS))
    assert await _messages(api, "TOPICS") == 1


async def test_a_source_more_is_added(api: JetStreamApi, nats_server: Part) -> None:
    await provision(api, STREAMS, ())
    await _publish(nats_server, "log.a")
    more = TOPICS.but(sources=[*TOPICS.settings["sources"], _from_log("run.parent.{{wildcard(1)}}")])
    assert len(await provision(api, (LOG, more), ())) == 1
    assert await provision(api, (LOG, more), ()) == []


async def test_what_the_server_refuses_is_an_error_that_says_what_to_do(api: JetStreamApi) -> None:
    await provision(api, STREAMS, CONSUMERS)
    starts_late = replace(READER, settings={**READER.settings, "deliver_policy": "new"})
    with pytest.raises(ProvisioningError, match="deliver policy can not be updated") as refused:
        await provision(api, (LOG.but(max_bytes=10**9), TOPICS, TIMERS), (starts_late,))
    assert "nats consumer rm LOG reader" in str(refused.value)
    assert refused.value.done == ("stream LOG: max_bytes (not set) -> 1000000000",)


async def test_it_waits_for_a_server_that_is_still_starting(nats_server: Part) -> None:
    await nats_server.end()
    with pytest.raises(NotReadyError, match=f"NATS can't be reached at {nats_server.spec.url}"):
        async with connected(ShellSettings(nats_url=nats_server.spec.url), patience=0.1):
            pass
    later = Part(nats_server.spec, nats_server._log, say=lambda *_: None, changed=lambda _: None)
    asyncio.get_running_loop().call_later(0.3, later.start)
    async with connected(ShellSettings(nats_url=nats_server.spec.url), patience=10) as api:
        assert await provision(api, (LOG,), ()) == ["stream LOG: created"]
    await later.end()


async def test_the_contracts_streams_are_provisioned_once(
    nats_server: Part, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command, as an operator runs it: --check finds everything missing, then nothing."""
    arguments = ["--nats", nats_server.spec.url]

    async def run(*more: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*arguments, *more])
        return code, capsys.readouterr().out

    code, missing = await run("--check")
    assert code == 1
    assert "stream DEAD: created" in missing
    assert await run() == (0, missing)
    assert await run() == (0, "nothing to change\n")
    assert await run("--check") == (0, "nothing to change\n")


def test_without_a_server_the_command_says_so(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    port = Ports(tmp_path / "ports.json").give("nobody")
    assert main(["--nats", f"nats://{HOST}:{port}", "--wait", "0.1"]) == 2
    assert "NATS can't be reached" in capsys.readouterr().err
