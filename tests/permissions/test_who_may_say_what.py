"""NATS itself refuses what a user may not say: no code of Upcall is involved here."""

import asyncio
import json
import uuid

import nats.errors
import pytest
from nats.aio.msg import Msg

from tests.settling import settle
from upcall_deploy import permissions

from .conftest import Connect
from .server import SHIPPED, WITHIN_S, User

PRIVATE = [
    "log.session.lead-1.opened",
    "log.question.run-1.q-1.answered.lead-1",
    "inbox.lead-1.item-1",
    "timers.due.question.q-1",
    "timers.at.session.lead-1.lease",
    "dispatch.explorer",
    "dead.session",
    "run.run-1.question.q-1.answered",
    "deliver.session",
    "$JS.API.STREAM.DELETE.LOG",
    "$JS.API.STREAM.PURGE.LOG",
    "$JS.API.STREAM.MSG.DELETE.LOG",
    "$JS.API.STREAM.MSG.GET.LOG",
    "$JS.API.DIRECT.GET.INBOX",
    "$JS.API.STREAM.INFO.INBOX",
    "$JS.API.CONSUMER.NAMES.INBOX",
    "$JS.ACK.COMMANDS.session.1.1.1.1.0",
    "$SYS.REQ.SERVER.PING",
]


async def stored(services: User, stream: str) -> int:
    return (await services.api(f"STREAM.INFO.{stream}"))["state"]["messages"]


@pytest.mark.parametrize("user", ["shop", "runner-1", "agents", "operator"])
@pytest.mark.parametrize("subject", PRIVATE)
async def test_what_is_the_services_alone_is_refused(
    subject: str, user: str, connect: Connect, services: User
) -> None:
    before = await stored(services, "LOG")
    speaker = await connect(user)
    assert await speaker.refused(subject)
    assert await stored(services, "LOG") == before


@pytest.mark.parametrize("caller", ["operator", "lead-3", "runner-1"])
@pytest.mark.parametrize("kind", ["cmd", "query"])
async def test_a_harness_speaks_as_its_own_sessions_only(harness: User, kind: str, caller: str) -> None:
    assert not await harness.refused(f"{kind}.lead-1.session.open")
    assert not await harness.refused(f"{kind}.lead-2.session.open")
    assert await harness.refused(f"{kind}.{caller}.session.open")


async def test_a_harness_beats_for_its_own_sessions_only(harness: User) -> None:
    assert not await harness.refused("heartbeat.lead-1")
    assert await harness.refused("heartbeat.lead-3")


@pytest.mark.parametrize("caller", ["operator", "lead-1", "runner-2"])
async def test_a_runner_speaks_as_itself_only(runner: User, caller: str) -> None:
    assert not await runner.refused("cmd.runner-1.run.claim")
    assert await runner.refused(f"cmd.{caller}.run.claim")


async def test_whoever_is_any_session_is_not_the_operator(connect: Connect) -> None:
    speaker = await connect("agents")
    assert not await speaker.refused("cmd.any-session.session.open")
    assert await speaker.refused("cmd.operator.session.close")
    assert await speaker.refused("query.operator.question.list")


async def test_an_operator_speaks_as_no_session(operator: User) -> None:
    assert not await operator.refused("cmd.operator.session.close")
    assert await operator.refused("cmd.lead-1.session.open")


async def test_a_command_is_acknowledged_and_stands_in_the_stream_as_it_was_sent(
    harness: User, services: User
) -> None:
    ack = await harness.nc.request(
        "cmd.lead-1.session.open",
        b'{"agent":"lead"}',
        headers={"reply_to": "_INBOX.shop.1"},
        timeout=WITHIN_S,
    )
    seq = json.loads(ack.data)["seq"]
    found = (await services.api("STREAM.MSG.GET.COMMANDS", {"seq": seq}))["message"]
    assert found["subject"] == "cmd.lead-1.session.open"


async def test_a_command_with_another_noun_fails_at_once(harness: User) -> None:
    with pytest.raises(nats.errors.NoRespondersError):
        await harness.nc.request("cmd.lead-1.shop.open", b"{}", timeout=WITHIN_S)


@pytest.mark.parametrize(
    "reply", ["log.session.lead-9.opened", "inbox.lead-9.item-1", "timers.due.question.q-9"]
)
@pytest.mark.parametrize("subject", ["cmd.lead-1.session.open", "$JS.API.INFO"])
async def test_a_reply_subject_of_the_services_gets_no_acknowledgement(
    harness: User, services: User, subject: str, reply: str
) -> None:
    """NATS checks no permission on reply subjects: it is the account that keeps them apart."""
    listening = await services.nc.subscribe(reply)
    await settle(services.nc)
    before = [await stored(services, name) for name in ("LOG", "INBOX", "TIMERS")]
    assert not await harness.refused(subject, reply=reply)
    await harness.nc.request("cmd.lead-1.session.open", b"{}", timeout=WITHIN_S)
    await settle(services.nc)
    assert [await stored(services, name) for name in ("LOG", "INBOX", "TIMERS")] == before
    assert listening.pending_msgs == 0


async def test_a_query_is_answered_under_the_inbox_of_who_asked(harness: User, services: User) -> None:
    noun = uuid.uuid4().hex

    async def answer(message: Msg) -> None:
        await services.nc.publish(message.reply, message.subject.encode())

    await services.nc.subscribe(f"query.*.{noun}.*", cb=answer)
    await settle(services.nc)
    answered = await harness.nc.request(f"query.lead-1.{noun}.get", b"{}", timeout=WITHIN_S)
    assert answered.data.decode() == f"query.lead-1.{noun}.get"


async def test_replies_of_others_are_not_heard(harness: User, runner: User) -> None:
    for subject in ("_INBOX.>", "_INBOX.*.>", "_INBOX.runner-1.>", "inbox.lead-1.>", "log.>", "cmd.>", ">"):
        assert await harness.refused_to_hear(subject)
    assert not await harness.refused_to_hear("_INBOX.shop.>")


async def test_a_run_is_heard_by_core_subscribers(harness: User, services: User) -> None:
    topic = await harness.nc.subscribe("run.run-1.>")
    await settle(harness.nc)
    await services.nc.publish("run.run-1.lifecycle.1.started", b"{}")
    assert (await topic.next_msg(WITHIN_S)).subject == "run.run-1.lifecycle.1.started"


async def test_an_inbox_is_read_by_its_session_alone(harness: User, services: User) -> None:
    for session in ("lead-1", "lead-9"):
        await services.nc.request(f"inbox.{session}.item-1", b"{}", timeout=WITHIN_S)
    made = await harness.make_consumer("INBOX", "inbox.lead-1.>")
    pulled = await harness.pull("INBOX", made["name"])
    assert pulled.subject == "inbox.lead-1.item-1"
    assert pulled.reply
    await harness.nc.publish(pulled.reply, b"+ACK")
    for other in ("inbox.lead-9.>", "inbox.*.>", "inbox.>"):
        assert await harness.make_consumer("INBOX", other) == {}


@pytest.mark.parametrize(
    "config",
    [
        {"filter_subject": "inbox.lead-9.>"},
        {"filter_subject": None, "filter_subjects": ["inbox.lead-9.>"]},
        {"filter_subject": None},
    ],
)
async def test_a_consumer_reads_what_its_request_names_and_nothing_else(
    harness: User, config: dict[str, object]
) -> None:
    """What the subject of the request names is what is permitted; a body that says otherwise is refused."""
    wanted = {"name": "sly", "ack_policy": "none", "filter_subject": "inbox.lead-1.>", **config}
    body = {"stream_name": "INBOX", "config": {k: v for k, v in wanted.items() if v is not None}}
    answer = await harness.api("CONSUMER.CREATE.INBOX.sly.inbox.lead-1.>", body)
    assert "error" in answer, answer


async def test_a_consumer_that_pushes_elsewhere_reaches_no_subject_of_the_log(
    harness: User, services: User
) -> None:
    """JetStream pushes wherever a consumer says, but under the subject that the message has."""
    await services.nc.request("inbox.lead-2.item-1", b"{}", timeout=WITHIN_S)
    last = {"last_by_subj": "log.>"}
    before = await services.api("STREAM.MSG.GET.LOG", last)
    await harness.make_consumer(
        "INBOX", "inbox.lead-2.>", deliver_subject="log.session.lead-9.opened", ack_policy="none"
    )
    await asyncio.sleep(0.2)
    assert await services.api("STREAM.MSG.GET.LOG", last) == before


async def test_a_runner_takes_the_runs_of_its_agents_alone(runner: User, services: User) -> None:
    for agent in ("explorer", "reviewer"):
        await services.nc.request(f"dispatch.{agent}", agent.encode(), timeout=WITHIN_S)
    made = await runner.make_consumer(
        "DISPATCH", "dispatch.explorer", name="explorer", durable_name="explorer"
    )
    assert made["name"] == "explorer", made
    taken = await runner.pull("DISPATCH", "explorer")
    assert taken.data == b"explorer"
    acked = await runner.nc.request(taken.reply, b"+ACK", timeout=WITHIN_S)
    assert acked.data == b""
    assert await runner.make_consumer("DISPATCH", "dispatch.reviewer", name="reviewer") == {}
    assert await runner.make_consumer("DISPATCH", "dispatch.explorer", name="other") == {}


async def test_dead_letters_are_the_operators(harness: User, operator: User, services: User) -> None:
    await services.nc.request("dead.session", b"letter", timeout=WITHIN_S)
    made = await operator.make_consumer("DEAD", "dead.>")
    letter = await operator.pull("DEAD", made["name"])
    assert letter.data == b"letter"
    assert await harness.make_consumer("DEAD", "dead.>") == {}


async def test_a_monitor_looks_and_reads_no_message(connect: Connect, services: User) -> None:
    monitor = await connect("monitor")
    info = await monitor.api("STREAM.INFO.LOG")
    assert info["config"]["name"] == "LOG"
    assert (await monitor.api("CONSUMER.INFO.COMMANDS.session"))["name"] == "session"
    for subject in ("cmd.operator.session.close", "cmd.lead-1.session.open", "log.session.lead-1.opened"):
        assert await monitor.refused(subject)
    for verb in (
        "STREAM.MSG.GET.LOG",
        "DIRECT.GET.INBOX",
        "STREAM.PURGE.LOG",
        "CONSUMER.CREATE.TOPICS.a.run.>",
    ):
        assert await monitor.api(verb) == {}
    for subject in ("run.>", "log.>", "_INBOX.>"):
        assert await monitor.refused_to_hear(subject)


async def test_nobody_comes_in_without_a_password(connect: Connect) -> None:
    with pytest.raises(Exception, match="Authorization Violation"):
        await connect("services", password="wrong")


def test_the_shipped_files_are_what_the_generator_prints() -> None:
    assert (SHIPPED / "parts/accounts.conf").read_text() == permissions.accounts()
    users = permissions.users((SHIPPED / "users.toml").read_text())
    assert (SHIPPED / "parts/users.conf").read_text() == users
