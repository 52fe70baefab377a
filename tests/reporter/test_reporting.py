"""The reporter against a real NATS and Redis: entries of sessions in; topics, inbox and lists out."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from upcall_contracts import keys, log, streams
from upcall_contracts.records import Outcome

from .deployment import Deployment, body, eventually, status
from .periods import GRANDCHILD, SHELL, T0, closed, held, session, top
from .proxy import proxy


async def test_a_delivered_report_stands_in_all_its_places(d: Deployment) -> None:
    """One message in the log makes the topic's event, its equal copy above, and the item in the inbox."""
    async with d.reporter():
        await d.closes(closed())
        entry = body(await d.decided("C-p1"))
        places = await eventually(
            lambda: d.read(streams.TOPICS, "run.*.report.>", "run.*.child.*.report.>"), lambda p: len(p) == 2
        )
    assert {p.subject for p in places} == {
        "run.C-r1.report.C-p1.delivered",
        "run.P-r1.child.C-r1.report.C-p1.delivered",
    }
    assert places[0].body == places[1].body
    (item,) = await d.read(streams.INBOX, "inbox.>")
    assert item.subject == "inbox.P.C-p1"
    assert body(item) == entry
    assert entry["type"] == "report_delivered"
    assert entry["item"]["text"].splitlines() == [
        '<subagent session_id="C" state="completed" description="find the tests">',
        "They are in tests/.",
        "</subagent>",
    ]
    assert entry["data"]["answer"] == "They are in tests/."
    assert "history" not in entry


async def test_without_a_parent_run_there_is_no_copy(d: Deployment) -> None:
    """The parent hears of it in its inbox all the same."""
    async with d.reporter():
        await d.closes(closed(), parent_run_id=None)
        await d.decided("C-p1")
        await eventually(lambda: d.read(streams.INBOX, "inbox.P.>"), bool)
    assert [p.subject for p in await d.read(streams.TOPICS, "run.*.report.>", "run.*.child.*.report.>")] == [
        "run.C-r1.report.C-p1.delivered"
    ]


async def test_suppressed_reports_stand_on_the_topic_only(d: Deployment) -> None:
    """Silent, of a top-level session, to a closed parent: decided, and in nobody's inbox."""
    await d.say(top("Q", closed_at=T0))
    async with d.reporter():
        await d.closes(closed("silent", notify=False))
        await d.closes(closed("alone", run_id="P-r1"), top("P"), parent_run_id=None)
        await d.closes(closed("orphaned"), session("D", parent_session_id="Q", ancestors=["Q"]))
        reasons = {p: body(await d.decided(p))["data"]["reason"] for p in ("silent", "alone", "orphaned")}
        await d.caught_up()
    assert reasons == {"silent": "silent", "alone": "no_parent", "orphaned": "parent_closed"}
    assert await d.read(streams.INBOX, "inbox.>") == []


async def test_held_then_delivered(d: Deployment) -> None:
    """Held for each thing it waits for, told once each, and delivered once, named after the last run."""
    async with d.reporter():
        await d.holds(held())
        await d.holds(held())
        await d.holds(held(reason="children_pending", pending=[GRANDCHILD]))
        await d.closes(closed(run_id="C-r2", runs=["C-r1", "C-r2"], held_since=T0 + 2000))
        await d.decided("C-p1")
        await d.caught_up()
    stored = await d.reports("C-p1")
    said = [(status(s), body(s)["data"]["reason"], body(s)["run_id"]) for s in stored]
    assert said == [
        ("held", "work_pending", "C-r1"),
        ("held", "children_pending", "C-r1"),
        ("delivered", None, "C-r2"),
    ]
    assert len({body(s)["data"]["created_at"] for s in stored}) == 1


async def test_a_note_that_closes_a_period_has_its_last_runs_answer(d: Deployment) -> None:
    """A period closed by a release, a bound or a child's report reads the run's own last entry."""
    async with d.reporter():
        await d.say(session(), settled="C-r1", answer="Built.")
        await d.say(session(), settled="C-r0", answer="Older.")
        await d.say(session(closed_period=closed(outcome=Outcome.COMPLETED, pending=[SHELL])))
        data = body(await d.decided("C-p1"))["data"]
    assert (data["answer"], data["parent_run_id"], data["task_id"]) == ("Built.", "P-r1", "T-1")
    assert data["pending"] == [SHELL.to_wire()]


async def test_nothing_follows_a_decision(d: Deployment) -> None:
    """A hold that comes late, and the same period closed again, change nothing."""
    async with d.reporter():
        await d.closes(closed())
        await d.decided("C-p1")
        await d.holds(held())
        await d.closes(closed(notify=False))
        await d.caught_up()
    assert [status(s) for s in await d.reports("C-p1")] == ["delivered"]


async def test_r1_three_busy_periods_three_reports(d: Deployment) -> None:
    """Each period has a report of its own, and the last one has the newest text."""
    async with d.reporter():
        for n in (1, 2, 3):
            await d.closes(closed(f"C-p{n}", run_id=f"C-r{n}"), answer=f"Answer {n}.")
        await d.caught_up()
    assert [body(s)["data"]["answer"] for s in await d.reports()] == ["Answer 1.", "Answer 2.", "Answer 3."]


POINTS = {
    "before it is stored": (b" log.report.C-p1.", False),
    "stored, and the answer lost": (b" log.report.C-p1.", True),
    "stored, and not acknowledged": (b"$JS.ACK.LOG.reporter-periods.", False),
}


@pytest.mark.parametrize("point", POINTS)
async def test_r8_killed_between_storing_and_acknowledging(d: Deployment, tmp_path: Path, point: str) -> None:
    """The next reporter finishes what the dead one had in hand: one report, in the inbox and in the list."""
    await d.say(session())
    await _short_ack_wait(d)
    sign, let_through = POINTS[point]
    async with proxy(d.nats_port, sign, let_sign_through=let_through) as gate:
        # The opening of P and C is handled, and acknowledged, before the gate is up.
        async with d.reporter():
            await d.caught_up()
        doomed = d.process(gate.port, tmp_path / "doomed.log")
        try:
            await d.closes(closed())
            async with asyncio.timeout(30):
                await gate.seen.wait()
            if let_through:
                await d.decided("C-p1")
        finally:
            doomed.kill()
            doomed.wait()
    assert len(await d.reports("C-p1")) == (0 if point == "before it is stored" else 1)
    async with d.reporter():
        await d.decided("C-p1")
        await d.caught_up()
        assert await d.listed("P") == ["C-p1"]
    assert [status(s) for s in await d.reports("C-p1")] == ["delivered"]
    assert len(await d.read(streams.INBOX, "inbox.P.>")) == 1


async def test_a_process_without_a_connection_ends(d: Deployment, tmp_path: Path) -> None:
    """The server ended it with an error after which nats-py does not connect again: whoever runs the process
    starts another one."""
    async with proxy(d.nats_port, b" never said ", let_sign_through=True) as gate:
        process = d.process(gate.port, tmp_path / "reporter.log")
        try:
            await d.closes(closed())
            await d.decided("C-p1")
            await d.caught_up()
            gate.say(b"-ERR 'Maximum Payload Violation'\r\n")
            ended = await asyncio.to_thread(process.wait, 30)
        finally:
            process.kill()
            process.wait()
    assert ended != 0
    assert "the connection to NATS was closed for good" in (tmp_path / "reporter.log").read_text()


async def test_two_instances_and_every_entry_twice(d: Deployment) -> None:
    """Entries doubled and shuffled between two instances: each closed period has one report, at its end."""
    rng = random.Random(7)
    entries = [("close", n) for n in range(60)] * 2 + [("hold", n) for n in range(0, 60, 2)] * 2
    rng.shuffle(entries)
    async with d.reporter(), d.reporter():
        for kind, n in entries:
            child = session(f"C{n}")
            if kind == "close":
                await d.closes(closed(f"p{n}", run_id=f"r{n}"), child)
            else:
                await d.holds(held(f"p{n}", run_id=f"r{n}"), child)
        await d.caught_up()
        assert set(await d.listed("P")) == {f"p{n}" for n in range(60)}
    stored = await d.reports()
    assert Counter(s.subject.split(".")[2] for s in stored if status(s) == "delivered") == Counter(
        f"p{n}" for n in range(60)
    )
    last = {s.subject.split(".")[2]: status(s) for s in stored}
    assert set(last.values()) == {"delivered"}
    assert len(await d.read(streams.INBOX, "inbox.P.>")) == 60


async def test_a_log_read_again_from_its_beginning_changes_nothing(d: Deployment) -> None:
    """The consumer was removed and provisioned anew: everything comes again, and all was said already."""
    async with d.reporter():
        await d.holds(held())
        await d.closes(closed())
        await d.closes(closed("C-p2", notify=False))
        await d.caught_up()
    before = [s.seq for s in await d.reports()]
    stream = d.stream(streams.LOG)
    await stream.api("CONSUMER.DELETE.LOG.reporter-periods", {})
    definition = next(c for c in streams.CONSUMERS if c.name == "reporter-periods")
    await stream.api(
        "CONSUMER.CREATE.LOG.reporter-periods", {"stream_name": "LOG", "config": definition.config()}
    )
    async with d.reporter():
        await d.caught_up()
    assert [s.seq for s in await d.reports()] == before


# Redis


async def test_reports_are_decided_and_listed_without_redis(d: Deployment) -> None:
    """Redis is gone: reports go out, and lists are read from the log."""
    async with d.reporter():
        d.redis_server.kill()
        await d.holds(held("C-p0"))
        await d.closes(closed())
        await d.decided("C-p1")
        assert await d.listed("P") == ["C-p0", "C-p1"]
        assert await d.listed("P", status="held") == ["C-p0"]
        assert await d.listed("P", session_id="C") == ["C-p0", "C-p1"]
        assert await d.listed("operator", limit=1) == ["C-p0", "C-p1"]


async def test_lists_are_back_after_a_flush(d: Deployment) -> None:
    """FLUSHALL between two reports: no list lacks anything at any time, and the index is whole again soon."""
    async with d.reporter():
        await d.closes(closed())
        await d.decided("C-p1")
        await d.redis.flushall()
        await d.closes(closed("C-p2"))
        await d.decided("C-p2")
        await d.caught_up()
        assert await d.listed("P") == ["C-p1", "C-p2"]
        await eventually(lambda: d.redis.exists(keys.ready("reporter")), bool)
        assert await d.redis.zrange(keys.reports_of_parent("P"), 0, -1) == [b"C-p1", b"C-p2"]
        assert await d.redis.zrange(keys.reports_all(), 0, -1) == [b"C-p1", b"C-p2"]
        assert await d.redis.get(keys.period_session("C-p1")) == b"C"
        assert await d.listed("P") == ["C-p1", "C-p2"]


async def test_a_report_that_missed_the_index_is_in_it_after_a_start(d: Deployment) -> None:
    """An instance died when its report was in the log and not in the index."""
    async with d.reporter():
        await d.closes(closed())
        await d.decided("C-p1")
        await eventually(lambda: d.redis.exists(keys.ready("reporter")), bool)
        await d.caught_up()
    await d.redis.zrem(keys.reports_of_parent("P"), "C-p1")
    async with d.reporter():
        await eventually(lambda: d.listed("P"), bool)


async def test_what_was_purged_leaves_the_lists(d: Deployment) -> None:
    """The index is checked against the log: a purged report is shown to nobody and taken out."""
    async with d.reporter():
        await d.closes(closed())
        await d.closes(closed("C-p2"))
        await d.decided("C-p2")
        await eventually(lambda: d.redis.exists(keys.ready("reporter")), bool)
        await d.caught_up()
        await d.stream(streams.LOG).api("STREAM.PURGE.LOG", {"filter": log.report_guard("C-p1")})
        assert await d.listed("P") == ["C-p2"]
        assert await d.redis.zrange(keys.reports_all(), 0, -1) == [b"C-p2"]
        assert (await d.query("P", "get", period_id="C-p1"))["error"]["code"] == "unknown_report"


async def _short_ack_wait(d: Deployment) -> None:
    """What a dead instance had in hand comes again after 0.5 s."""
    definition = next(c for c in streams.CONSUMERS if c.name == "reporter-periods")
    request = {"stream_name": "LOG", "config": {**definition.config(), "ack_wait": 500_000_000}}
    answer = await d.stream(streams.LOG).api("CONSUMER.CREATE.LOG.reporter-periods", request)
    assert "error" not in answer
