"""What went wrong with reports in real harnesses, retold as steps and the right result."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest

from .deployment import Deployment
from .wire import OPERATOR, Json, Runner, Seen, Turn, Wire, at, eventually, never, now, uid, when

pytestmark = pytest.mark.asyncio(loop_scope="function")

LONG = os.environ.get("UPCALL_FAULTS") == "long"


def job(label: str = "make test", *, wakes: bool = False) -> Json:
    return {"work_id": uid("W"), "kind": "shell", "label": label, "wakes": wakes}


async def delivered(w: Wire, *turns: Turn) -> list[Seen]:
    """All deliveries on the topics of some runs."""
    return [seen for turn in turns for seen in await w.history(turn.run_id, "report.*.delivered")]


async def item_ids(w: Wire, session_id: str) -> list[str]:
    return [item["item"]["item_id"] for item in await w.inbox(session_id)]


async def cancels(child: Turn) -> None:
    """A host that does as it is told: it settles as soon as a cancel is asked for."""
    topic = await child.topic()
    await topic.until("lifecycle", None, "cancel_requested", within=30)
    await child.settle("cancelled")


async def test_r1_three_busy_periods_are_three_reports(w: Wire) -> None:
    """Each busy period of C is reported once, as its own, the last with the newest text."""
    parent, child = await w.family()
    turns = [child]
    await child.settle(answer="Answer 1.")
    await child.report()
    for number in (2, 3):
        turns.append(await parent.proceed(child))
        await turns[-1].settle(answer=f"Answer {number}.")
        await turns[-1].report()
    assert len({turn.period_id for turn in turns}) == 3
    reports = [await w.report(turn.period_id) for turn in turns]
    assert [r["answer"] for r in reports] == ["Answer 1.", "Answer 2.", "Answer 3."]
    assert [r["runs"] for r in reports] == [[turn.run_id] for turn in turns]
    assert await item_ids(w, parent.session_id) == [turn.period_id for turn in turns]
    texts = [i["item"]["text"] for i in await w.inbox(parent.session_id)]
    assert [f"Answer {n}." in text for n, text in enumerate(texts, 1)] == [True, True, True]
    assert len(await delivered(w, *turns)) == 3


async def test_r2_no_report_before_the_jobs_end_and_one_after_it(w: Wire) -> None:
    """C starts a job of 5 s and ends its turn: P hears nothing until the job's end, then once."""
    parent, child = await w.family()
    task = job("sleep 5")
    settled = await child.settle(answer="Started the job.", background=[task])
    await never(lambda: item_ids(w, parent.session_id), bool, over=5, why="a report before the job's end")
    finished = now()
    await child.finish(task["work_id"])
    report = await child.report()
    assert when(report["delivered_at"]) >= when(settled["settled_at"]) + 5
    assert now() - finished < 8
    assert report["held_ms"] >= 4900
    await never(
        lambda: delivered(w, child), lambda d: len(d) != 1, over=1, why="another report after the first"
    )


async def test_r4_fifty_children_of_a_parent_that_is_busy_half_of_the_time(w: Wire) -> None:
    """Fifty children finish while a runner-hosted P works or rests: each report causes one run of P, once."""
    top = await w.start(await w.open())
    agent = uid("agent")
    made = await w.do(top.caller, "session.spawn", agent=agent, task="Lead.", run_id=top.run_id)
    runner = Runner(w, agent)
    lead = (await runner.take()).turn
    children = [await lead.spawn(task=f"Part {n}.") for n in range(50)]
    await lead.settle(answer="Delegated.")

    async def finish() -> None:
        for child in children:
            await child.settle(answer="Done.")
            await asyncio.sleep(0.02)

    finishing = asyncio.create_task(finish())
    causes: Counter[str] = Counter()
    turns = 0
    while sum(causes.values()) < 50:
        woken = await runner.take(within=30)
        assert woken.run["trigger"] == "wake"
        assert woken.run["causes"]
        causes.update(woken.run["causes"])
        turns += 1
        await asyncio.sleep(0.1)
        await woken.turn.settle(answer=f"Turn {turns}.")
    await finishing
    assert causes == Counter(child.period_id for child in children)
    report = await w.until_report(made["period_id"], "delivered")
    assert report["answer"] == f"Turn {turns}."
    assert len(await delivered(w, *children)) == 50
    assert await item_ids(w, made["session_id"]) == []


async def test_r4_fifty_children_of_a_self_hosted_parent(w: Wire) -> None:
    """Fifty children finish at once while a self-hosted P comes and goes: fifty items, none twice."""
    parent = await w.start(await w.open())
    children = [await parent.spawn(task=f"Part {n}.") for n in range(50)]
    finishing = asyncio.gather(*(child.settle(answer="Done.") for child in children))
    taken: Counter[str] = Counter()
    deadline = now() + 60
    while sum(taken.values()) < 50:
        assert now() < deadline, taken
        ids = await item_ids(w, parent.session_id)
        handled = (await w.do(parent.caller, "inbox.handle", item_ids=ids))["handled"] if ids else []
        taken.update(handled)
        await parent.settle()
        parent = await w.start(parent.session_id)
    await finishing
    assert taken == Counter(child.period_id for child in children)
    assert await item_ids(w, parent.session_id) == []
    assert len(await delivered(w, *children)) == 50


async def finish_one_by_one(children: list[Turn]) -> None:
    for child in children:
        await child.settle(answer="Done.")
        await asyncio.sleep(0.02)


async def test_r4_fifty_children_of_a_self_hosted_parent_that_is_restarted_twice(
    deployment: Deployment, w: Wire
) -> None:
    """P's process dies twice in the middle of a run; a new one opens the session again and reads its inbox
    afresh: fifty items, none twice."""
    session_id = await w.open()
    parent = await w.start(session_id)
    children = [await parent.spawn(task=f"Part {n}.") for n in range(50)]
    finishing = asyncio.create_task(finish_one_by_one(children))
    taken: Counter[str] = Counter()
    lost: list[str] = []
    process = await Wire.connect(deployment.nats_url)
    while sum(taken.values()) < 50:
        await eventually(lambda: item_ids(w, session_id), bool, within=60)
        if sum(taken.values()) >= 17 * (len(lost) + 1) and len(lost) < 2:
            await process.close()
            lost.append(parent.run_id)
            process = await Wire.connect(deployment.nats_url)
            await process.open(session_id)
        else:
            ids = await item_ids(process, session_id)
            taken.update((await process.do(session_id, "inbox.handle", item_ids=ids))["handled"])
            await Turn(process, session_id, session_id, parent.run_id, "").settle()
        await asyncio.sleep(0.1)  # idle for as long as it is busy
        parent = await process.start(session_id)
        await asyncio.sleep(0.1)
    await finishing
    await process.close()
    assert [(await w.run(run_id))["outcome"] for run_id in lost] == ["lost", "lost"]
    assert taken == Counter(child.period_id for child in children)
    assert await item_ids(w, session_id) == []
    assert len(await delivered(w, *children)) == 50


@pytest.mark.timeout(240)
async def test_r4_fifty_children_of_a_runner_hosted_parent_that_is_restarted_twice(w: Wire) -> None:
    """P's runner dies twice in the middle of a run, and another takes that over: fifty causes, none twice."""
    top = await w.start(await w.open())
    agent = uid("agent")
    body: Json = {"agent": agent, "task": "Lead.", "run_id": top.run_id, "lease_ms": 2000}
    made = await w.do(top.caller, "session.spawn", **body)
    lead = await Runner(w, agent).take()
    children = [await lead.turn.spawn(task=f"Part {n}.") for n in range(50)]
    await lead.turn.settle(answer="Delegated.")
    lead.die()
    finishing = asyncio.create_task(finish_one_by_one(children))
    causes: dict[str, list[str]] = {}
    dead: list[str] = []
    while sum(map(len, causes.values())) < 50:
        dies = len(dead) < 2
        woken = await Runner(w, agent).take(within=60, beats=not dies)
        assert woken.run["trigger"] == "wake"
        causes.setdefault(woken.turn.run_id, woken.run["causes"])
        assert causes[woken.turn.run_id] == woken.run["causes"]
        if dies:
            dead.append(woken.turn.run_id)
            woken = await Runner(w, agent).take(within=60)
            assert (woken.turn.run_id, woken.turn.attempt) == (dead[-1], 2)
        await asyncio.sleep(0.1)
        await woken.turn.settle(answer=f"Turn {len(causes)}.")
        woken.die()
    await finishing
    told = Counter(item for items in causes.values() for item in items)
    assert told == Counter(child.period_id for child in children)
    assert len(dead) == 2
    report = await w.until_report(made["period_id"], "delivered")
    assert report["answer"] == f"Turn {len(causes)}."
    assert len(await delivered(w, *children)) == 50
    assert await item_ids(w, made["session_id"]) == []


async def test_r5_foreground_result_is_inline_and_wakes_nobody(w: Wire) -> None:
    """P gets a foreground result from its call; no report of it starts a run of P, then or later."""
    top = await w.start(await w.open())
    agent = uid("agent")
    made = await w.do(top.caller, "session.spawn", agent=agent, task="Lead.", run_id=top.run_id)
    lead = (await Runner(w, agent).take()).turn
    child = await lead.spawn(background=False)
    waiting = asyncio.create_task(
        w.query(lead.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000, within=25)
    )
    await child.settle(answer="Built.")
    assert (await waiting)["run"]["answer"] == "Built."
    item = await w.until_item(lead.session_id, child.period_id)
    assert (item["item"]["for_run"], item["item"]["wakes"]) == (lead.run_id, False)
    body: Json = {"item_ids": [child.period_id], "session_id": lead.session_id}
    assert (await w.do(lead.caller, "inbox.handle", **body))["handled"] == [child.period_id]
    await lead.settle(answer="All built.")
    await w.until_report(made["period_id"], "delivered")

    async def session() -> Json:
        return await w.session(made["session_id"])

    await never(session, lambda s: s["runs"] != 1, over=2, why="a result that was taken wakes its caller")
    assert await item_ids(w, made["session_id"]) == []


@pytest.mark.timeout(300)
async def test_r6_after_its_report_the_child_stays_silent(crashable: Deployment, cw: Wire) -> None:
    """Neither sweeps nor restarts make a child at rest report again."""
    parent, child = await cw.family()
    await child.settle(answer="Built.")
    first = await child.report()
    await cw.do(parent.caller, "inbox.handle", item_ids=[child.period_id])
    for _ in range(3 if LONG else 1):
        await asyncio.to_thread(crashable.restart)
        await cw.query_surely(OPERATOR, "session.get", session_id=child.session_id)
        await never(
            lambda: delivered(cw, child), lambda d: len(d) != 1, over=3, why="a report after the report"
        )
        assert await item_ids(cw, parent.session_id) == []
    assert await cw.report(child.period_id) == first


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_r8_reporter_killed_at_any_point_reports_once(crashable: Deployment, cw: Wire) -> None:
    """However often the reporter dies between storing and acknowledging: one report for each child."""
    parent = await cw.start(await cw.open())
    children = [await parent.spawn() for _ in range(60 if LONG else 24)]

    async def settle() -> None:
        for child in children:
            await cw.insist(
                child.caller, "run.settle", run_id=child.run_id, outcome="completed", answer="Done."
            )

    settling = asyncio.create_task(settle())
    for _ in range(8 if LONG else 3):
        await asyncio.to_thread(crashable.kill, "reporter")
    await settling
    for child in children:
        await child.report(within=60)
    assert Counter(s.id for s in await delivered(cw, *children)) == Counter(c.period_id for c in children)
    assert sorted(await item_ids(cw, parent.session_id)) == sorted(c.period_id for c in children)


async def test_r10_report_arrives_though_the_parent_was_reset(w: Wire) -> None:
    """P starts over between spawn and finish, as a new process with a new run: the report arrives."""
    parent, child = await w.family()
    await parent.append("I have forgotten all of this.")
    await w.open(parent.session_id, title="A fresh start")
    again = await w.start(parent.session_id, task="Something else.")
    await child.settle(answer="Built.")
    await child.report()
    item = await w.until_item(parent.session_id, child.period_id)
    assert "Built." in item["item"]["text"]
    assert again.run_id != parent.run_id


async def test_r12_report_of_one_child_is_in_the_parents_inbox_only(w: Wire) -> None:
    """C1 ends while C2 runs: P hears it, and C2 neither in its inbox nor in its history nor on its topic."""
    parent, one = await w.family()
    two = await parent.spawn(task="Work on.")
    topic = await two.topic()
    await one.settle(answer="Built.")
    await w.until_item(parent.session_id, one.period_id)
    await two.append("Working on.")
    assert await w.inbox_slots(two.session_id) == {}
    assert await w.inbox_slots(one.session_id) == {}
    page = await w.query(two.caller, "session.history", session_id=two.session_id)
    assert [m["content"] for m in page["messages"]] == ["Work on.", "Working on."]
    assert [e for e in topic.events if e.family == "report"] == []


async def test_r13_waits_for_cancelled_children_end(w: Wire) -> None:
    """P waits for C1 and C2, both are cancelled: both waits end within 2 s, with one report each."""
    parent, one = await w.family()
    two = await parent.spawn()
    hosts = [asyncio.create_task(cancels(child)) for child in (one, two)]
    waits = [
        asyncio.create_task(
            w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000, within=25)
        )
        for child in (one, two)
    ]
    await at(now() + 0.5)
    began = now()
    for child in (one, two):
        await w.do(parent.caller, "session.cancel", session_id=child.session_id)
    results = await asyncio.gather(*waits)
    assert now() - began < 8
    assert [(r["state"], r["run"]["outcome"]) for r in results] == [("settled", "cancelled")] * 2
    await asyncio.gather(*hosts)
    for child in (one, two):
        assert (await child.report())["result"] == "cancelled"
    assert len(await delivered(w, one, two)) == 2
    assert sorted(await item_ids(w, parent.session_id)) == sorted([one.period_id, two.period_id])


async def test_r14_cancelled_in_the_first_step(w: Wire) -> None:
    """A C that is cancelled before it did anything is reported as cancelled."""
    parent, child = await w.family()
    host = asyncio.create_task(cancels(child))
    await at(now() + 0.2)
    await w.do(parent.caller, "session.cancel", session_id=child.session_id)
    await host
    assert (await child.report())["result"] == "cancelled"
    item = await w.until_item(parent.session_id, child.period_id)
    assert 'state="cancelled"' in item["item"]["text"].split("\n")[0]


async def test_r14_halted_by_its_budget(w: Wire) -> None:
    """A C that ran out of steps is reported as an error, not as done."""
    parent, child = await w.family(step_budget=1)
    await child.append("One.", steps=1)
    body: Json = {"run_id": child.run_id, "messages": [{"role": "assistant", "content": "Two."}], "steps": 1}
    await w.refused("step_budget_exhausted", child.caller, "run.append", **body)
    await child.settle("halted", error="The step budget of 1 is used up.")
    report = await child.report()
    assert (report["result"], report["outcome"]) == ("error", "halted")
    item = await w.until_item(parent.session_id, child.period_id)
    assert 'state="error"' in item["item"]["text"].split("\n")[0]
    assert "The step budget of 1 is used up." in item["item"]["text"]


async def test_r16_child_that_produces_nothing_and_times_out_is_reported(w: Wire) -> None:
    """A C without a word that runs out of time is an error, and the text says what happened."""
    parent, child = await w.family(timeout_ms=1000)
    report = await child.report()
    assert (report["result"], report["outcome"], report["answer"]) == ("error", "timed_out", None)
    item = await w.until_item(parent.session_id, child.period_id)
    lines = item["item"]["text"].strip().split("\n")
    assert 'state="error"' in lines[0]
    assert lines[-1] == "</subagent>"
    assert " ".join(lines[1:-1]).strip()


async def test_r17_report_waits_for_a_parent_that_cannot_take_it(
    quick_deployment: Deployment, quick: Wire
) -> None:
    """A P that is away for longer than any retry finds the report when it is back, once."""
    away = await Wire.connect(quick_deployment.nats_url)
    parent_id = await away.open()
    child = await away.spawn(parent_id)
    await away.close()
    child.wire = quick
    await child.settle(answer="Built.")
    await child.report()
    await at(now() + (120 if LONG else 8))
    back = await Wire.connect(quick_deployment.nats_url)
    try:
        item = await back.until_item(parent_id, child.period_id)
        assert "Built." in item["item"]["text"]
        handled = await back.do(parent_id, "inbox.handle", item_ids=[child.period_id])
        assert handled["handled"] == [child.period_id]
        await back.until_no_item(parent_id, child.period_id)
    finally:
        await back.close()
    assert len(await delivered(quick, child)) == 1


async def test_r19_host_that_dies_before_the_first_step_is_an_error(w: Wire) -> None:
    """A C whose runners die before doing anything is never a success."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    made = await w.do(
        parent.caller, "session.spawn", agent=agent, task="Build.", run_id=parent.run_id, lease_ms=1000
    )
    runner = Runner(w, agent)
    for _ in range(3):
        await runner.take(beats=False)
    report = await w.until_report(made["period_id"], "delivered", within=20)
    assert (report["result"], report["outcome"], report["answer"]) == ("error", "lost", None)
    item = await w.until_item(parent.session_id, made["period_id"])
    assert 'state="error"' in item["item"]["text"]
    assert "completed without" not in item["item"]["text"]


async def test_r19_self_hosted_child_that_never_beats_is_an_error(w: Wire) -> None:
    """A self-hosted C that dies before its first beat is lost, and P hears an error."""
    parent = await w.start(await w.open())
    child = await parent.spawn(lease_ms=1000)
    report = await child.report()
    assert (report["result"], report["outcome"], report["answer"]) == ("error", "lost", None)


async def test_r20_killed_host_is_heard_of_within_the_lease(w: Wire) -> None:
    """C's host dies for good: by lease and two seconds P hears lost, and C's record is readable."""
    parent = await w.start(await w.open())
    child = await parent.spawn(lease_ms=1500, task="Build.")
    above = await parent.topic()
    async with w.beating(child.session_id):
        await child.append("Half of it.", steps=1)
        await at(now() + 3)
        assert (await w.run(child.run_id))["status"] == "running"
    silent_since = now()
    seen = await above.until("report", child.period_id, "delivered", child=child.run_id)
    assert now() - silent_since < 1.5 + 2 + 3
    assert (seen.data["result"], seen.data["outcome"]) == ("error", "lost")
    run = await w.run(child.run_id)
    assert (run["status"], run["outcome"], run["steps"]) == ("settled", "lost", 1)
    page = await w.query(parent.caller, "session.history", session_id=child.session_id)
    assert [m["content"] for m in page["messages"]] == ["Build.", "Half of it."]


async def test_r21_receipt_is_no_result(w: Wire) -> None:
    """A receipt says queued or running, and has no answer that could be taken for one."""
    parent = await w.start(await w.open())
    agent = uid("agent")
    queued = await w.do(parent.caller, "session.spawn", agent=agent, task="x", run_id=parent.run_id)
    running = await w.do(
        parent.caller, "session.spawn", agent="worker", task="x", host="self", run_id=parent.run_id
    )
    assert (queued["status"], running["status"]) == ("queued", "running")
    for receipt in (queued, running):
        assert not receipt.get("answer")
        assert not receipt.get("outcome")
        assert not receipt.get("result")


async def test_r21_two_answers_in_one_period_are_one_report(w: Wire) -> None:
    """Two runs that answer within one period are reported once, with the last answer."""
    parent, child = await w.family()
    task = job()
    await child.settle(answer="First answer.", background=[task])
    await child.report("held")
    second = await parent.proceed(child)
    await second.settle(answer="Second answer.")
    await second.finish(task["work_id"])
    report = await second.report()
    assert (report["answer"], report["runs"]) == ("Second answer.", [child.run_id, second.run_id])
    items = await w.inbox(parent.session_id)
    assert [i["item"]["item_id"] for i in items] == [child.period_id]
    assert "First answer." not in items[0]["item"]["text"]
    assert len(await delivered(w, child, second)) == 1


async def test_r23_job_that_never_ends_in_the_foreground_returns(w: Wire) -> None:
    """A foreground C that leaves a server running returns, and says what still runs."""
    parent, child = await w.family(background=False)
    task = job("npm run dev")
    waiting = asyncio.create_task(
        w.query(parent.caller, "run.wait", run_id=child.run_id, timeout_ms=20_000, within=25)
    )
    await child.settle(answer="It serves.", background=[task])
    assert (await waiting)["run"]["answer"] == "It serves."
    report = await child.report()
    assert [(p["id"], p["label"]) for p in report["pending"]] == [(task["work_id"], "npm run dev")]
    assert report["for_run"] == parent.run_id


async def test_r23_job_that_never_ends_in_the_background_is_held_and_released(w: Wire) -> None:
    """A background C with such a job is held, listed with the reason, and let go when asked."""
    parent, child = await w.family()
    await child.settle(answer="It serves.", background=[job("npm run dev")])
    await child.report("held")
    listed = (await w.query(parent.caller, "report.list", status="held"))["reports"]
    assert [(r["period_id"], r["status"]) for r in listed] == [(child.period_id, "held")]
    assert listed[0]["reason"].strip()
    await w.do(parent.caller, "report.release", session_id=child.session_id)
    report = await child.report()
    assert (report["answer"], [p["label"] for p in report["pending"]]) == ("It serves.", ["npm run dev"])
    assert (await w.query(parent.caller, "report.list", status="held"))["reports"] == []


async def test_r23_hold_is_bounded(quick: Wire) -> None:
    """Left alone, such a hold ends after the longest hold, once, and names what still runs."""
    parent, child = await quick.family()
    settled = await child.settle(answer="It serves.", background=[job("npm run dev")])
    report = await child.report(within=10)
    held = when(report["delivered_at"]) - when(settled["settled_at"])
    assert 2.5 < held < 7
    assert [p["label"] for p in report["pending"]] == ["npm run dev"]
    assert await item_ids(quick, parent.session_id) == [child.period_id]


async def test_r25_each_wait_returns_its_own_result(w: Wire) -> None:
    """C is continued four times with a wait each: wait N never returns result N-1."""
    parent, child = await w.family(background=False)
    turn = child
    for number in range(1, 6):
        waiting = asyncio.create_task(
            w.query(parent.caller, "run.wait", run_id=turn.run_id, timeout_ms=20_000, within=25)
        )
        await at(now() + 0.2)
        assert not waiting.done()
        await turn.settle(answer=f"Answer {number}.")
        result = await waiting
        assert (result["state"], result["run"]["run_id"]) == ("settled", turn.run_id)
        assert result["run"]["answer"] == f"Answer {number}."
        report = await turn.report()
        assert report["answer"] == f"Answer {number}."
        if number < 5:
            turn = await parent.proceed(child, background=False)
            assert (await w.run(turn.run_id))["answer"] is None


async def test_r27_same_commands_again_after_the_end(w: Wire) -> None:
    """Spawn, continue and answer sent again after C ended: the same ids, no second run, no second report."""
    parent = await w.start(await w.open())
    spawn: Json = {
        "agent": "worker",
        "task": "Build.",
        "host": "self",
        "run_id": parent.run_id,
        "command_id": uid("call"),
    }
    made = await w.do(parent.caller, "session.spawn", **spawn)
    child = Turn(w, made["session_id"], made["session_id"], made["run_id"], made["period_id"])
    question = await child.ask()
    answer: Json = {"request_id": question["request_id"], "answer": "SQLite.", "command_id": uid("call")}
    await w.do(parent.caller, "question.answer", **answer)
    await child.settle()
    await child.report()
    go_on: Json = {"session_id": child.session_id, "task": "Go on.", "command_id": uid("call")}
    continued = await w.do(parent.caller, "session.continue", **go_on)
    second = Turn(w, child.caller, child.session_id, continued["run_id"], continued["period_id"])
    await second.settle()
    await second.report()
    again = await w.do(parent.caller, "session.spawn", **spawn)
    assert (again["session_id"], again["run_id"]) == (child.session_id, child.run_id)
    again = await w.do(parent.caller, "session.continue", **go_on)
    assert (again["session_id"], again["run_id"]) == (child.session_id, second.run_id)
    again = (await w.do(parent.caller, "question.answer", **answer))["question"]
    assert (again["request_id"], again["status"]) == (question["request_id"], "answered")
    assert (await w.session(child.session_id))["runs"] == 2
    assert len((await w.query(parent.caller, "session.list"))["sessions"]) == 1
    assert len(await delivered(w, child, second)) == 2


async def test_r29_child_deleted_right_after_its_turn(w: Wire) -> None:
    """C is closed in the moment of its end: at most one report, of C, and none of P; ten times."""
    parent = await w.start(await w.open())
    for _ in range(10):
        child = await parent.spawn()
        _, closed = await asyncio.gather(
            w.reply_to(f"cmd.{child.caller}.run.settle", {"run_id": child.run_id, "outcome": "completed"}),
            w.reply_to(f"cmd.{parent.caller}.session.close", {"session_id": child.session_id}),
        )
        assert closed["ok"], closed
        await child.report("delivered", "suppressed")
        assert len(await delivered(w, child)) <= 1
    items = await w.inbox(parent.session_id)
    assert {i["session_id"] for i in items} <= {s["session_id"] for s in await listed_children(w, parent)}
    assert await w.history(parent.run_id, "report.>") == []
    assert (await w.run(parent.run_id))["status"] == "running"


async def listed_children(w: Wire, parent: Turn) -> list[Json]:
    return await w.pages(parent.caller, "session.list", "sessions")


async def test_r31_joining_ten_children_shows_three_and_seven(w: Wire) -> None:
    """Ten children, seven fail: what P reads counts three completed and seven errors."""
    parent = await w.start(await w.open())
    children = [await parent.spawn(task=f"Part {n}.") for n in range(10)]
    outcomes = ["completed"] * 3 + ["failed"] * 3 + ["halted", "timed_out", "failed", "failed"]
    await asyncio.gather(*(child.settle(outcome) for child, outcome in zip(children, outcomes, strict=True)))
    for child in children:
        await child.report()
    reports = await w.pages(parent.caller, "report.list", "reports")
    assert Counter(r["result"] for r in reports) == Counter(completed=3, error=7)
    items = await eventually(lambda: w.inbox(parent.session_id), lambda found: len(found) == 10)
    states = Counter(i["item"]["text"].split('state="')[1].split('"')[0] for i in items)
    assert states == Counter(completed=3, error=7)


async def test_r33_two_children_finish_while_the_parent_is_away(deployment: Deployment, w: Wire) -> None:
    """Both reports are stored for a P without a lease that is away; each is taken once when it is back."""
    away = await Wire.connect(deployment.nats_url)
    parent = await away.start(await away.open())
    children = [await away.spawn(parent.session_id) for _ in range(2)]
    await away.close()
    for child in children:
        child.wire = w
        await child.settle(answer="Built.")
        await child.report()
    back = await Wire.connect(deployment.nats_url)
    try:
        await back.open(parent.session_id)
        ids = sorted(child.period_id for child in children)
        assert sorted(await item_ids(back, parent.session_id)) == ids
        handled = await back.do(parent.session_id, "inbox.handle", item_ids=ids)
        assert sorted(handled["handled"]) == ids
        await eventually(lambda: item_ids(back, parent.session_id), lambda found: not found)
        await back.open(parent.session_id)
        await never(lambda: item_ids(back, parent.session_id), bool, over=1, why="an item that comes again")
        assert len(await delivered(back, *children)) == 2
    finally:
        await back.close()
