"""What went wrong with continuing a child in real harnesses, retold as steps and the right result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from .deployment import Deployment
from .wire import OPERATOR, Json, Runner, Turn, Wire, eventually, now, select, uid, when

pytestmark = pytest.mark.asyncio(loop_scope="function")


async def children(w: Wire, parent: Turn) -> list[str]:
    return [s["session_id"] for s in await w.pages(parent.caller, "session.list", "sessions")]


async def contents(w: Wire, caller: str, session_id: str) -> list[str]:
    page = await w.query(caller, "session.history", session_id=session_id)
    return [message["content"] for message in page["messages"]]


async def dispatched_child(w: Wire, parent: Turn) -> tuple[str, str, Runner]:
    """A child for runners: its session, its run, and a runner of its agent."""
    agent = uid("agent")
    made = await w.do(
        parent.caller, "session.spawn", agent=agent, task="Review the schema.", run_id=parent.run_id
    )
    return made["session_id"], made["run_id"], Runner(w, agent)


async def test_c1_follow_up_goes_to_the_same_child(w: Wire) -> None:
    """A follow-up to a finished C adds no child: same id, and its history is there."""
    parent, child = await w.family(task="Review the schema.")
    await child.append("It has two flaws.")
    await child.settle(answer="Two flaws.")
    before = await children(w, parent)
    second = await parent.proceed(child, task="Which is worse?")
    assert second.session_id == child.session_id
    assert second.run_id != child.run_id
    assert await children(w, parent) == before == [child.session_id]
    assert await contents(w, second.caller, child.session_id) == [
        "Review the schema.",
        "It has two flaws.",
        "Which is worse?",
    ]


@pytest.mark.parametrize(
    ("name", "code"), [("worker", "unknown_session"), ("The Reviewer", "invalid_id"), ("", "invalid_id")]
)
async def test_c2_name_instead_of_an_id_is_refused(w: Wire, name: str, code: str) -> None:
    """Naming a child by its agent or its title is an explicit refusal, and starts nothing."""
    parent, child = await w.family(agent="worker", description="The Reviewer")
    await child.settle()
    before = await w.session(child.session_id)
    await w.refused(code, parent.caller, "session.continue", session_id=name, task="Go on.")
    assert await children(w, parent) == [child.session_id]
    assert await w.session(child.session_id) == before


async def test_c4_runner_that_never_comes_is_an_error_not_the_old_answer(quick: Wire) -> None:
    """A continued child whose runner cannot start fails, and what it said before is not its answer now."""
    parent = await quick.start(await quick.open())
    session_id, _, runner = await dispatched_child(quick, parent)
    await (await runner.take()).turn.settle(answer="The old answer.")
    receipt = await quick.do(
        parent.caller, "session.continue", session_id=session_id, task="And now?", background=False
    )
    assert receipt["status"] == "queued"
    waited = await quick.query(
        parent.caller, "run.wait", run_id=receipt["run_id"], timeout_ms=10_000, within=15
    )
    assert waited["state"] == "settled"
    run = waited["run"]
    assert (run["outcome"], run["answer"]) == ("failed", None)
    assert runner.agent in run["error"]
    report = await quick.until_report(receipt["period_id"], "delivered")
    assert (report["result"], report["answer"], report["for_run"]) == ("error", None, parent.run_id)
    item = await quick.until_item(parent.session_id, receipt["period_id"])
    assert "The old answer." not in item["item"]["text"]
    assert 'state="error"' in item["item"]["text"]


async def test_c4_runner_that_fails_at_once_is_an_error_not_the_old_answer(w: Wire) -> None:
    """A runner that claims and cannot start says so, and the old answer is not repeated."""
    parent = await w.start(await w.open())
    session_id, _, runner = await dispatched_child(w, parent)
    await (await runner.take()).turn.settle(answer="The old answer.")
    receipt = await w.do(parent.caller, "session.continue", session_id=session_id, task="And now?")
    await (await runner.take()).turn.settle("failed", error="No such model.")
    report = await w.until_report(receipt["period_id"], "delivered")
    assert (report["result"], report["answer"], report["error"]) == ("error", None, "No such model.")
    item = await w.until_item(parent.session_id, receipt["period_id"])
    assert "The old answer." not in item["item"]["text"]
    assert "No such model." in item["item"]["text"]


@pytest.mark.timeout(300)
async def test_c6_continue_after_everything_restarted(crashable: Deployment, cw: Wire) -> None:
    """After a restart of all, P continues C with all that it knew; another parent is refused as before."""
    parent, child = await cw.family(task="Review the schema.")
    stranger = await cw.open()
    await child.append("It has two flaws.")
    await child.settle(answer="Two flaws.")
    await child.report()
    await asyncio.to_thread(crashable.restart)
    await cw.query_surely(OPERATOR, "session.get", session_id=child.session_id)
    body: Json = {"session_id": child.session_id, "task": "Mine now."}
    error = await cw.refused("unknown_session", stranger, "session.continue", **body)
    assert "flaw" not in str(error)
    assert (await cw.session(child.session_id))["runs"] == 1
    second = await parent.proceed(child, task="Which is worse?")
    assert await contents(cw, second.caller, child.session_id) == [
        "Review the schema.",
        "It has two flaws.",
        "Which is worse?",
    ]
    await second.settle(answer="The second.")
    report = await second.report()
    assert report["answer"] == "The second."
    assert await children(cw, parent) == [child.session_id]


@pytest.mark.timeout(300)
async def test_c7_long_after_it_works_from_the_store(crashable: Deployment, cw: Wire) -> None:
    """Fifty other conversations and a restart later C is continued from what is stored."""
    parent, child = await cw.family(task="Review the schema.")
    await child.append("It has two flaws.")
    await child.settle(answer="Two flaws.")
    for _ in range(50):
        other = await parent.spawn()
        await other.settle()
    await asyncio.to_thread(crashable.restart)
    await asyncio.to_thread(crashable.flush_redis)
    await cw.query_surely(OPERATOR, "session.get", session_id=child.session_id)
    second = await parent.proceed(child)
    assert (await contents(cw, second.caller, child.session_id))[:2] == [
        "Review the schema.",
        "It has two flaws.",
    ]
    assert len(await children(cw, parent)) == 51


@pytest.mark.timeout(300)
async def test_c7_purged_child_says_that_it_is_gone(deploy: Callable[..., Deployment]) -> None:
    """After its tree was purged C is refused in so many words, and no fresh child stands in for it."""
    up = await asyncio.to_thread(lambda: deploy(UPCALL_RETENTION_MS="1000"))
    w = await Wire.connect(up.nats_url)
    try:
        parent, child = await w.family()
        await child.settle(answer="Two flaws.")
        await parent.settle()
        await w.do(parent.caller, "session.close")
        body: Json = {"session_id": child.session_id, "task": "Go on."}

        async def refusal() -> str:
            reply = await w.reply_to(f"cmd.{OPERATOR}.session.continue", body)
            assert not reply["ok"]
            return str(reply["error"]["code"])

        assert await refusal() in ("session_closed", "unknown_session")
        await eventually(refusal, lambda code: code == "unknown_session", within=90, why="the tree is purged")
        await w.query_refused("unknown_session", OPERATOR, "session.get", session_id=child.session_id)
    finally:
        await w.close()


async def test_c8_continue_after_a_providers_error(w: Wire) -> None:
    """A C that failed after two steps goes on from those two steps and succeeds."""
    parent, child = await w.family(task="Review the schema.")
    await child.append("Read a.sql.", "Read b.sql.", steps=2)
    await child.settle("failed", error="overloaded_error: try again later")
    assert (await child.report())["result"] == "error"
    second = await parent.proceed(child, task="Try again.")
    assert await contents(w, second.caller, child.session_id) == [
        "Review the schema.",
        "Read a.sql.",
        "Read b.sql.",
        "Try again.",
    ]
    await second.settle(answer="Two flaws.")
    report = await second.report()
    assert (report["result"], report["answer"], report["error"]) == ("completed", "Two flaws.", None)


async def test_c10_id_is_in_the_visible_text_of_failures_and_of_long_answers(w: Wire) -> None:
    """Whether C fails or answers with 100 kB: its id leads the text that P reads, and continues it."""
    parent, failing = await w.family()
    long = await parent.spawn()
    answer = "x" * 100_000
    await failing.settle("failed", error="The provider is down.")
    await long.settle(answer=answer)
    for child in (failing, long):
        text = (await w.until_item(parent.session_id, child.period_id))["item"]["text"]
        assert text.startswith(f'<subagent session_id="{child.session_id}"')
        assert (await parent.proceed(child)).session_id == child.session_id
    assert (await w.report(long.period_id))["answer"] == answer


async def test_c11_four_rounds_are_one_session(w: Wire) -> None:
    """Four rounds with one child: one id, one record, four runs in order."""
    parent, child = await w.family(task="Round 1.")
    turns = [child]
    await child.settle(answer="Answer 1.")
    for number in (2, 3, 4):
        turn = await parent.proceed(child, task=f"Round {number}.")
        await turn.settle(answer=f"Answer {number}.")
        turns.append(turn)
    assert {turn.session_id for turn in turns} == {child.session_id}
    assert len({turn.run_id for turn in turns}) == 4
    assert await children(w, parent) == [child.session_id]
    assert (await w.session(child.session_id))["runs"] == 4
    runs = [await w.run(turn.run_id) for turn in turns]
    assert [(r["ordinal"], r["answer"]) for r in runs] == [(n, f"Answer {n}.") for n in (1, 2, 3, 4)]
    assert await contents(w, parent.caller, child.session_id) == [f"Round {n}." for n in (1, 2, 3, 4)]


async def test_c12_closed_child_is_refused(w: Wire) -> None:
    """A child that was closed for good is not continued, not even with its own id and agent."""
    parent, child = await w.family()
    await child.settle(answer="Built.")
    await w.do(parent.caller, "session.close", session_id=child.session_id)
    for caller in (parent.caller, child.caller, OPERATOR):
        body: Json = {"session_id": child.session_id, "task": "Go on.", "agent": "worker"}
        await w.refused("session_closed", caller, "session.continue", **body)
    assert await children(w, parent) == [child.session_id]
    assert (await w.session(child.session_id))["runs"] == 1


async def test_c14_follow_up_in_the_moment_of_the_end_is_never_swallowed(w: Wire) -> None:
    """A continue that races with C's end starts a run that runs, or is refused: twenty times."""
    parent = await w.start(await w.open())
    admitted = 0
    for number in range(20):
        child = await parent.spawn()
        body: Json = {"session_id": child.session_id, "task": f"Follow-up {number}."}
        reply, settled = await asyncio.gather(
            w.reply_to(f"cmd.{parent.caller}.session.continue", body), child.settle(answer="First.")
        )
        assert settled["answer"] == "First."
        session = await w.session(child.session_id)
        history = await contents(w, parent.caller, child.session_id)
        if reply["ok"]:
            admitted += 1
            run_id = reply["result"]["run_id"]
            assert run_id != child.run_id
            assert (session["runs"], session["run_id"]) == (2, run_id)
            assert history[-1] == f"Follow-up {number}."
            second = Turn(w, child.caller, child.session_id, run_id, reply["result"]["period_id"])
            await second.settle(answer="Second.")
            assert (await second.report())["answer"] == "Second."
        else:
            assert reply["error"]["code"] == "session_busy"
            assert (session["runs"], session["status"]) == (1, "idle")
            assert f"Follow-up {number}." not in history
            assert (await child.report())["answer"] == "First."
    assert 0 <= admitted <= 20


async def test_c16_child_held_for_its_work_is_continued(w: Wire) -> None:
    """A C that is held for its own job reads the follow-up, answers, and reports once when all is done."""
    parent, child = await w.family(task="Run the tests.")
    job: Json = {"work_id": uid("W"), "kind": "shell", "label": "make test"}
    await child.settle(answer="Started.", background=[job])
    await child.report("held")
    second = await parent.proceed(child, task="Any failures so far?")
    assert (await contents(w, second.caller, child.session_id))[-1] == "Any failures so far?"
    await second.settle(answer="None so far.")
    assert (await w.run(second.run_id))["answer"] == "None so far."
    await second.finish(job["work_id"], summary="42 passed")
    report = await second.report()
    assert report["answer"] == "None so far."
    assert report["runs"] == [child.run_id, second.run_id]
    assert [(x["id"], x["outcome"]) for x in report["work"]] == [(job["work_id"], "completed")]
    delivered = [await w.history(t.run_id, "report.*.delivered") for t in (child, second)]
    assert sum(len(d) for d in delivered) == 1


@pytest.mark.timeout(300)
async def test_c18_continued_after_a_restart_still_reports(crashable: Deployment, cw: Wire) -> None:
    """P hears of the run that it started in C after everything was restarted, once."""
    parent, child = await cw.family()
    await child.settle(answer="First.")
    first = await child.report()
    await asyncio.to_thread(crashable.restart)
    await cw.query_surely(OPERATOR, "session.get", session_id=child.session_id)
    above = await parent.topic()
    second = await parent.proceed(child)
    await asyncio.to_thread(crashable.restart)
    await cw.query_surely(OPERATOR, "run.get", run_id=second.run_id)
    began = now()
    await second.settle(answer="Second.")
    report = await second.report()
    assert (report["answer"], report["runs"]) == ("Second.", [second.run_id])
    assert now() - began < 10
    items = {i["item"]["item_id"] for i in await cw.inbox(parent.session_id)}
    assert items == {child.period_id, second.period_id}
    assert await cw.report(child.period_id) == first
    assert when(report["delivered_at"]) >= when(first["delivered_at"])
    copies = await cw.history(parent.run_id, f"child.{second.run_id}.report.>")
    assert [s.event for s in copies] == ["delivered"]
    assert len(select(above.events, "report", second.period_id, "delivered")) <= 1
