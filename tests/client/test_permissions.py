"""The client gets along with the permissions that the shipped configuration gives its users."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import upcall
from tests.permissions.server import PASSWORD, User, serving
from tests.settling import settle
from upcall_contracts.errors import ok
from upcall_contracts.events import Event, EventType, Item
from upcall_contracts.records import ItemKind, ReportRecord, RunRecord
from upcall_deploy.ports import HOST
from upcall_deploy.provision import provision_deployment
from upcall_shell.settings import ShellSettings


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(tmp_path_factory.mktemp("permissions")) as port:
        url = f"nats://{HOST}:{port}"
        settings = ShellSettings(nats_url=url, nats_user="services", nats_password=PASSWORD)
        asyncio.run(provision_deployment(settings))
        yield port


@pytest.fixture
async def services(port: int) -> AsyncIterator[User]:
    """Answers every command with what a test wants of it."""
    user = await User("services").connect(port)
    replies: dict[str, Any] = {
        "session.open": {"session": {"session_id": "lead-1"}},
        "inbox.handle": {"handled": ["p1"]},
        "run.claim": {
            "run": {"run_id": "r1", "session_id": "s1"},
            "session": {"session_id": "s1"},
            "questions": [],
        },
        "run.settle": {"run": {"run_id": "r1", "status": "settled"}},
    }

    async def hear(message: Any) -> None:
        name = message.subject.split(".", 2)[2]
        reply_to = (message.headers or {}).get("reply_to") or message.reply
        await user.nc.publish(reply_to, json.dumps(ok(replies[name])).encode())

    await user.nc.subscribe("cmd.>", cb=hear)
    await settle(user.nc)
    yield user
    await user.close()


def as_user(port: int, name: str) -> Any:
    return upcall.connect(f"nats://{HOST}:{port}", user=name, password=PASSWORD)


async def test_a_harness_opens_reads_its_inbox_and_handles(port: int, services: User) -> None:
    async with as_user(port, "shop") as up:
        session = await up.open_session("lead-1", agent="lead")
        event = Event(
            event_id="e1",
            type=EventType.REPORT_DELIVERED,
            time=1,
            run_id="r1",
            session_id="s1",
            data=ReportRecord(period_id="p1", answer="done").to_wire(),
            item=Item(item_id="p1", kind=ItemKind.REPORT, text="…"),
        )
        await services.nc.jetstream().publish("inbox.lead-1.p1", json.dumps(event.to_wire()).encode())
        async with session.inbox() as inbox:
            report = await inbox.next(5)
        assert isinstance(report, upcall.Report)
        await report.handle()


async def test_what_is_not_allowed_says_so_at_once(port: int, services: User) -> None:
    async with as_user(port, "shop") as up:
        with pytest.raises(
            upcall.ForbiddenError, match=r"publish to cmd\.lead-9\.session\.cancel.*speak as lead-9"
        ):
            await asyncio.wait_for(up.session("lead-9").cancel(), 3)
        with pytest.raises(upcall.ForbiddenError, match="read the inbox of lead-9"):
            await up.session("lead-9").inbox().next(10)
        with pytest.raises(upcall.ForbiddenError, match=r"query\.lead-9"):
            await asyncio.wait_for(up.session("lead-9").session(), 3)


async def test_a_runner_takes_runs(port: int, services: User) -> None:
    done: asyncio.Queue[str] = asyncio.Queue()
    async with as_user(port, "runner-1") as up:
        runner = upcall.Runner(up, id="runner-1")

        @runner.agent("explorer")
        async def explore(run: upcall.Run) -> None:
            await done.put(run.record.run_id)

        serving_ = asyncio.create_task(runner.run(handle_signals=False))
        await asyncio.wait_for(runner.serving.wait(), 5)
        record = RunRecord(run_id="r1", session_id="s1", agent="explorer")
        await services.nc.jetstream().publish("dispatch.explorer", json.dumps(record.to_wire()).encode())
        assert await asyncio.wait_for(done.get(), 5) == "r1"
        runner.stop()
        await serving_


async def test_a_user_that_is_not_let_in_is_told_so(port: int) -> None:
    with pytest.raises(upcall.ConnectError, match="does not let this user in"):
        await asyncio.wait_for(upcall.connect(f"nats://{HOST}:{port}", user="shop", password="wrong"), 2)
