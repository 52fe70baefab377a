"""Another leader for a stream, asked of a server that is alone: it refuses, and nothing else happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.in_process import serving, settings_for
from tests.question_broker.place import Place
from tests.question_broker.world import eventually, uid
from tests.settling import settle
from upcall_contracts import log, streams, subjects
from upcall_session.derivation import Derivation
from upcall_shell.process import Service
from upcall_shell.settings import ShellSettings


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place.running(tmp_path_factory.mktemp("derivation"), brokers=0) as place:
        yield place


@pytest.fixture
async def service(running: Place) -> AsyncIterator[Service]:
    """A process with nothing in it yet."""
    settings: dict[str, Any] = settings_for(running)
    async with serving(Service("derivation", ShellSettings(**settings))) as service:
        yield service


@pytest.fixture
async def calls(running: Place) -> AsyncIterator[list[str]]:
    """What is asked of JetStream about streams."""
    seen: list[str] = []

    async def hear(message: Msg) -> None:
        seen.append(message.subject.removeprefix("$JS.API."))

    connection: Client = await nats.connect(running.nats.url)
    await connection.subscribe("$JS.API.STREAM.>", cb=hear)
    await settle(connection)
    yield seen
    await connection.close()


async def derived(service: Service) -> None:
    """An entry of the log is on the topic, and in the inbox."""
    run_id, request_id, parent = uid("R"), uid("Q"), uid("P")
    subject = log.question_event(run_id, request_id, "requested", uid("S"), uid("PR"), parent)
    guard = log.question_guard(run_id)
    await service.log.append(subject, b"{}", guard=guard, expected=0, event_id=uid("e"))
    for stream, place in (
        (streams.TOPICS, subjects.run_topic(run_id)),
        (streams.INBOX, subjects.inbox_item(parent, request_id)),
    ):
        client = service.stream(stream)
        await eventually(lambda client=client, place=place: client.last(place))


async def test_a_lone_server_refuses_and_goes_on(service: Service, calls: list[str]) -> None:
    """The refusal is no error of ours, one instance asks for all, and what comes next is derived."""
    refused = await service.inbox.api(f"STREAM.LEADER.STEPDOWN.{streams.INBOX}", {})
    assert "cluster" in refused["error"]["description"]
    await derived(service)
    one, other = Derivation(service), Derivation(service)
    assert [await one.help(streams.INBOX), await other.help(streams.INBOX)] == [True, False]
    assert await one.help(streams.TOPICS)
    asked = [f"STREAM.LEADER.STEPDOWN.{name}" for name in ("INBOX", "INBOX", "TOPICS")]

    async def stepdowns() -> list[str]:
        return [call for call in calls if "STEPDOWN" in call]

    await eventually(stepdowns, lambda seen: seen == asked)
    await derived(service)


async def test_a_lone_server_is_not_asked(service: Service, calls: list[str]) -> None:
    """The log has no replicas, so nothing is asked for; next time in a minute."""
    assert await Derivation(service).once() == 60
    await service.log.api("STREAM.NAMES", {})  # comes after all that was asked before

    async def seen() -> bool:
        return "STREAM.NAMES" in calls

    await eventually(seen)
    assert f"STREAM.INFO.{streams.LOG}" in calls
    assert not [call for call in calls if "STEPDOWN" in call]
