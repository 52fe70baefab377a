"""A wait and the inbox beside it: a report comes through one of them, and is never lost."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

import upcall
import upcall.parent
from upcall_contracts.records import Admitted, ReportRecord, ReportStatus

pytestmark = pytest.mark.usefixtures("runner")


class Watched(upcall.Session):
    """A session whose `inbox.handle` is counted, and whose replies to it may be kept back."""

    def __init__(self, up: upcall.Upcall, session_id: str) -> None:
        super().__init__(up.session(session_id).wire, session_id)
        self.replying = True
        self.commands = 0
        self.carried_out = asyncio.Event()

    async def command(self, name: str, body: dict[str, Any], command_id: str | None = None) -> dict[str, Any]:
        reply = await super().command(name, body, command_id)
        if name == "inbox.handle":
            self.commands += 1
            self.carried_out.set()
            if not self.replying:
                await asyncio.get_running_loop().create_future()
        return reply

    async def listed(self) -> set[str]:
        """The items that the services say are not handled."""
        items = (await self.query("inbox.list", {"session_id": self.session_id}))["items"]
        return {str(item["item"]["item_id"]) for item in items}

    async def until_listed(self, *children: upcall.Child) -> None:
        """Look until the reports of these stand in the inbox."""
        async with asyncio.timeout(15):
            while not {child.period_id for child in children} <= await self.listed():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
async def parent(live: upcall.Upcall) -> Watched:
    opened = await live.open_session(f"p-{uuid4().hex}", agent="planner")
    return Watched(live, opened.session_id)


async def next_report(inbox: upcall.Inbox) -> upcall.Report:
    item = await inbox.next(15)
    assert isinstance(item, upcall.Report)
    return item


async def given_up_midway(parent: Watched, child: upcall.Child) -> None:
    """Wait for the child, and give up when its report was handled but nobody has heard so."""
    parent.replying = False
    waiting = asyncio.create_task(child.wait())
    await asyncio.wait_for(parent.carried_out.wait(), 15)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    parent.replying = True
    assert await parent.listed() == set()


async def test_reports_stay_when_the_wait_for_all_fails(parent: Watched) -> None:
    done = [await parent.spawn("echo", f"task {n}") for n in range(3)]
    asks = await parent.spawn("asks", "Keep v1?")

    async def answer(question: upcall.Question) -> None:
        await parent.until_listed(*done)
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        await parent.wait_all([*done, asks], answer)

    assert await parent.listed() >= {child.period_id for child in done}
    await asks.cancel()
    async with parent.inbox() as inbox:
        seen = {(await next_report(inbox)).session_id for _ in range(4)}
    assert seen == {child.session_id for child in [*done, asks]}
    assert (await parent.wait_all(done)).succeeded == 3


async def test_all_are_taken_by_one_command(parent: Watched) -> None:
    children = [await parent.spawn("echo", f"task {n}") for n in range(3)]
    await parent.until_listed(*children)

    assert (await parent.wait_all(children)).succeeded == 3

    assert parent.commands == 1
    assert await parent.listed() == set()


async def test_a_report_taken_while_its_wait_is_given_up_comes_through_an_inbox(parent: Watched) -> None:
    """Both through one that is read already, and through one that is opened later."""
    async with parent.inbox() as reading:
        reader = asyncio.create_task(next_report(reading))
        child = await parent.spawn("echo", "this")
        await given_up_midway(parent, child)
        assert (await reader).answer == "did this"

    async with parent.inbox() as fresh:
        report = await next_report(fresh)
        assert report.session_id == child.session_id
        await report.handle()
        assert await fresh.next(0.3) is None
    async with parent.inbox() as fresh:
        assert await fresh.next(0.3) is None, "it has been dealt with"


async def test_a_report_taken_while_its_wait_is_given_up_comes_through_a_later_wait(parent: Watched) -> None:
    child = await parent.spawn("echo", "this")
    await given_up_midway(parent, child)

    assert (await child.result()).answer == "did this"

    assert parent.commands == 2, "the second one is told at once what the first one has handled"
    async with parent.inbox() as inbox:
        assert await inbox.next(0.3) is None


async def test_a_silent_report_is_no_item_when_its_wait_is_given_up(parent: Watched) -> None:
    silent = await parent.spawn("echo", "this", notify=False)
    told = await parent.spawn("echo", "that")
    parent.replying = False
    waiting = asyncio.create_task(parent.wait_all([told, silent]))
    await asyncio.wait_for(parent.carried_out.wait(), 15)
    waiting.cancel()
    await asyncio.wait([waiting])

    report = await silent.report()
    assert report is not None
    assert report.status is ReportStatus.SUPPRESSED
    async with parent.inbox() as inbox:
        assert (await next_report(inbox)).session_id == told.session_id
        assert await inbox.next(0.3) is None


async def test_within_ends_a_wait_and_loses_nothing(parent: Watched) -> None:
    child = await parent.spawn("helper", "do it", host="self")
    async with await child.carry_out() as run:
        for wait in (
            child.wait(within=0.1),
            child.result(within=0.1),
            parent.wait_all([child], within=0.1),
        ):
            with pytest.raises(TimeoutError):
                await wait
        run.output = "done"

    async with parent.inbox() as inbox:
        assert (await next_report(inbox)).answer == "done"
    assert (await child.result(within=15)).answer == "done"


async def the_child_of(parent: Watched) -> upcall.Child:
    """A handle on the only child: whoever gave up a call has none."""
    (session,) = [each for each in await parent.tree() if each.session_id != parent.session_id]
    assert session.run_id is not None
    return parent.child(Admitted(session_id=session.session_id, run_id=session.run_id))


async def test_within_ends_a_call_and_loses_nothing(parent: Watched) -> None:
    with pytest.raises(TimeoutError):
        await parent.call("helper", "do it", host="self", within=0.1)

    async with parent.inbox() as inbox:
        async with await (await the_child_of(parent)).carry_out() as run:
            run.output = "done"
        assert (await next_report(inbox)).answer == "done"


async def test_a_call_that_a_run_has_given_up_is_reported_after_the_run(parent: Watched) -> None:
    async with await parent.start("lead") as lead, parent.inbox() as inbox:
        with pytest.raises(TimeoutError):
            await lead.call("helper", "do it", host="self", within=0.1)
        async with await (await the_child_of(parent)).carry_out() as run:
            run.output = "done"
        assert await inbox.next(0.3) is None, "the run could still take it"
    async with parent.inbox() as inbox:
        assert (await next_report(inbox)).answer == "done"


async def test_a_call_that_ends_in_time_gives_its_result(parent: Watched) -> None:
    seen = await parent.call("echo", "this", within=60)

    assert isinstance(seen, upcall.Result)
    assert seen.answer == "did this"


async def test_what_a_wait_returns_does_not_come_through_an_inbox_beside_it(parent: Watched) -> None:
    async with parent.inbox() as inbox:
        reader = asyncio.create_task(next_report(inbox))
        children = [await parent.spawn("helper", f"task {n}", host="self") for n in range(3)]
        waits = [asyncio.create_task(wait) for wait in (children[0].wait(), parent.wait_all(children[1:]))]
        for child in children:
            async with await child.carry_out() as run:
                run.output = "done"
        await asyncio.gather(*waits)
        last = await parent.spawn("echo", "nobody waits for this")

        assert (await reader).session_id == last.session_id


async def test_a_question_comes_through_both_and_the_first_answer_counts(parent: Watched) -> None:
    child = await parent.spawn("asks", "Keep v1?")
    async with parent.inbox() as inbox:
        waited, item = await asyncio.gather(child.wait(), inbox.next(15))
    assert isinstance(waited, upcall.Question)
    assert waited == item

    await waited.answer(option="keep")
    assert isinstance(item, upcall.Question)
    with pytest.raises(upcall.AlreadyResolvedError):
        await item.answer(option="drop")

    assert (await child.result()).answer == "keep in attempt 1: keep"


async def test_a_report_is_held_back_until_its_wait_is_given_up(parent: Watched) -> None:
    early = await parent.spawn("helper", "early", host="self")
    never = await parent.spawn("sleeps", "long")
    waiting = asyncio.create_task(parent.wait_all([early, never]))
    async with parent.inbox() as inbox:
        async with await early.carry_out() as run:
            run.output = "done"
        await parent.until_listed(early)
        other = await parent.spawn("echo", "nobody waits for this")
        assert (await next_report(inbox)).session_id == other.session_id

        reader = asyncio.create_task(next_report(inbox))
        waiting.cancel()

        assert (await reader).session_id == early.session_id
    await never.cancel()


async def test_a_report_that_the_inbox_has_not_yet_is_taken_once_it_is_there(
    parent: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upcall.parent, "_TAKE_TRIES", 1_000)
    monkeypatch.setattr(upcall.parent, "_OLD_MS", 60_000)
    child = await parent.spawn("helper", "do it", host="self")
    early = ReportRecord(
        period_id=child.period_id, status=ReportStatus.DELIVERED, delivered_at=int(time.time() * 1000)
    )
    taking = asyncio.create_task(parent.take([early]))
    await asyncio.wait_for(parent.carried_out.wait(), 15)
    async with await child.carry_out() as run:
        run.output = "done"

    await asyncio.wait_for(taking, 15)

    assert parent.commands > 1
    assert child.period_id in parent.waits.handled
    assert await parent.listed() == set()


async def test_two_waits_for_one_report_both_return_it(parent: Watched) -> None:
    child = await parent.spawn("echo", "this")

    one, other = await asyncio.gather(child.wait(), child.wait())

    assert one == other
    async with parent.inbox() as inbox:
        assert await inbox.next(0.3) is None


async def test_a_wait_for_what_was_returned_needs_no_command(parent: Watched) -> None:
    child = await parent.spawn("echo", "this")
    first = await child.wait()
    sent = parent.commands

    assert await child.wait() == first

    assert parent.commands == sent


async def test_a_wait_for_what_was_handled_needs_no_command(parent: Watched) -> None:
    child = await parent.spawn("echo", "this")
    async with parent.inbox() as inbox:
        await (await next_report(inbox)).handle()
    assert parent.commands == 1

    assert isinstance(await child.wait(), upcall.Result)

    assert parent.commands == 1


async def test_a_wait_for_what_was_handled_elsewhere_does_not_try_for_long(
    parent: Watched, live: upcall.Upcall, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await parent.spawn("echo", "this")
    async with live.session(parent.session_id).inbox() as inbox:
        await (await next_report(inbox)).handle()
    monkeypatch.setattr(upcall.parent, "_OLD_MS", -60_000)

    assert isinstance(await child.wait(), upcall.Result)

    assert parent.commands <= 3


async def test_a_wait_for_what_a_wait_elsewhere_has_taken_is_told_so(
    parent: Watched, live: upcall.Upcall
) -> None:
    child = await parent.spawn("echo", "this")
    await parent.until_listed(child)
    await child.wait()
    again = Watched(live, parent.session_id)

    assert isinstance(await again.child(child.admitted).wait(), upcall.Result)

    assert again.commands == 1
