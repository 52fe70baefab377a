"""Much at once: what is too much for one message comes in parts or is refused, and nothing gets stuck."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from .wire import OPERATOR, Claim, Json, Runner, Turn, Wire, eventually, result_of, uid

BIG = "x" * 250_000
"""Nearly the longest text that an answer or a summary may be."""

BIG_IN_UTF8 = "é" * (len(BIG) // 2)
"""As many bytes in UTF-8. The replies' JSON escapes it, and needs six bytes for each two."""


async def twenty_big_reports(w: Wire, parent: Turn) -> list[str]:
    children = [await parent.spawn() for _ in range(20)]
    for child in children:
        await child.settle(answer=BIG)
    for child in children:
        await child.report()
    return [child.period_id for child in children]


async def in_utf8(w: Wire, subject: str, body: Json) -> Json:
    """The result of a command whose body is written in UTF-8, in which it may hold the most."""
    return result_of(await w.reply_to(subject, json.dumps(body, ensure_ascii=False).encode()))


async def ask_much(top: Turn, child: Turn, number: int, text: str) -> Json:
    """A question with a text wherever it may have a long one, with its answer."""
    body: Json = {"fallback": text, "can_continue_without_answer": True}
    ask = child.asking(f"Which one of all, number {number}?", body)
    question = (await in_utf8(top.wire, f"cmd.{child.caller}.question.ask", ask))["question"]
    answer: Json = {"request_id": question["request_id"], "answer": text, "rationale": text}
    answered = await in_utf8(top.wire, f"cmd.{top.caller}.question.answer", answer)
    return dict(answered["question"])


async def test_more_items_than_fit_into_a_task_wake_run_after_run(w: Wire) -> None:
    """Twenty reports of 250 kB are too much for one task: each is the cause of one run all the same."""
    top = await w.start(await w.open())
    runner = Runner(w, uid("agent"))
    body: Json = {"agent": runner.agent, "task": "Lead.", "run_id": top.run_id, "lease_ms": 0}
    made = await w.do(top.caller, "session.spawn", **body)
    lead = (await runner.take(beats=False)).turn
    items = await twenty_big_reports(w, lead)
    await lead.settle()
    causes: Counter[str] = Counter()
    while sum(causes.values()) < len(items):
        woken = await runner.take(within=30, beats=False)
        causes.update(woken.run["causes"])
        await woken.turn.settle()
    assert causes == Counter(items)
    await w.until_session(made["session_id"], period_id=None)


async def test_inbox_list_holds_as_much_as_fits_oldest_first(w: Wire) -> None:
    """Whoever handles what the list shows gets to see the rest."""
    parent = await w.start(await w.open())
    items = await twenty_big_reports(w, parent)
    seen: list[str] = []
    while len(seen) < len(items):
        found = (await w.query(parent.caller, "inbox.list"))["items"]
        assert found
        ids = [item["item"]["item_id"] for item in found]
        assert (await w.do(parent.caller, "inbox.handle", item_ids=ids))["handled"] == ids
        seen += ids
    assert sorted(seen) == sorted(items)
    assert (await w.query(parent.caller, "inbox.list"))["items"] == []


async def test_causes_that_are_too_much_for_a_task(w: Wire) -> None:
    """Refused with the size; with a task of its own, or fewer causes, the run starts."""
    parent = await w.start(await w.open())
    items = await twenty_big_reports(w, parent)
    await parent.settle()
    error = await w.refused("too_large", parent.caller, "run.start", causes=items)
    assert error["details"]["size"] > 4_000_000
    few = await w.start(parent.session_id, causes=items[:2])
    assert (await w.run(few.run_id))["causes"] == items[:2]
    await few.settle()
    all_of_them = await w.start(parent.session_id, causes=items, task="Read them all.")
    assert (await w.run(all_of_them.run_id))["causes"] == items[2:]


async def test_lists_of_much_come_in_pages(w: Wire) -> None:
    """Sessions with much meta and reports with long answers: no page is too large for a reply."""
    parent = await w.start(await w.open())
    await twenty_big_reports(w, parent)
    body: Json = {"agent": "worker", "task": "x", "host": "self", "meta": {"note": "y" * 8000}}
    for _ in range(300):
        await w.do(parent.caller, "session.spawn", **body)
    sessions = await w.pages(OPERATOR, "session.list", "sessions", session_id=parent.session_id, limit=500)
    assert len({s["session_id"] for s in sessions}) == len(sessions) == 320
    reports = await w.pages(parent.caller, "report.list", "reports", limit=500)
    assert len({r["period_id"] for r in reports}) == len(reports) == 20


async def test_histories_of_much_come_in_pages(w: Wire) -> None:
    """Text of which JSON makes three times as many bytes in a reply as the log has: pages end early."""
    _, child = await w.family()
    text = BIG_IN_UTF8[:50_000]
    for number in range(40):
        body = child.said({"messages": [{"role": "assistant", "content": f"{number}: {text}"}]})
        await in_utf8(w, f"cmd.{child.caller}.run.append", body)
    messages: list[Json] = []
    following: object = 1
    while following is not None:
        body = {"session_id": child.session_id, "from": following, "limit": 500}
        page = await w.query(child.caller, "session.history", **body)
        assert page["messages"]
        messages, following = [*messages, *page["messages"]], page["next"]
    assert [m["content"] for m in messages[1:]] == [f"{number}: {text}" for number in range(40)]


async def test_logs_of_much_come_in_pages(w: Wire) -> None:
    """The same of what log.introspect shows."""
    top, child = await w.family()
    asked = [await ask_much(top, child, number, BIG_IN_UTF8) for number in range(4)]
    events = await w.pages(child.caller, "log.introspect", "events", run_id=child.run_id, limit=500)
    ends = [event["data"] for event in events if event["type"] == "parent_question_answered"]
    assert ends == asked
    assert len({event["event_id"] for event in events}) == len(events) == 2 * len(asked) + 1


async def test_many_ends_of_work_before_the_settle(w: Wire) -> None:
    """Summaries that come too early are kept; when they become too much, the others wait for the settle."""
    _, child = await w.family()
    jobs = [uid("W") for _ in range(20)]
    finished = [w.background(child.finish(job, summary=BIG)) for job in jobs]
    await eventually(lambda: ended(finished), lambda count: count >= 4)
    left = [{"work_id": job, "kind": "shell", "label": "job"} for job in jobs]
    await child.settle(answer=BIG, background=left)
    for each in finished:
        await each
    report = await child.report()
    assert sorted(item["id"] for item in report["work"]) == sorted(jobs)


async def ended(tasks: list[asyncio.Task[None]]) -> int:
    return sum(task.done() for task in tasks)


async def test_more_background_work_than_a_session_can_hold(w: Wire) -> None:
    """Refused as too large, and the run can be settled with less."""
    _, child = await w.family()
    jobs = [{"work_id": f"w{n}", "kind": "other", "label": "a label"} for n in range(9_000)]
    reply = await w.reply_to(
        f"cmd.{child.caller}.run.settle", child.said({"outcome": "completed", "background": jobs})
    )
    if not reply["ok"]:
        assert reply["error"]["code"] == "too_large"
        await child.settle(background=jobs[:10])


async def family_of(w: Wire, runner: Runner) -> tuple[Turn, Claim]:
    """A top-level run, and a child of it that the runner holds."""
    top = await w.start(await w.open())
    await w.do(top.caller, "session.spawn", agent=runner.agent, task=BIG, run_id=top.run_id)
    return top, await runner.take()


async def test_a_run_that_asked_much_is_claimed_by_the_next_holder(quick: Wire) -> None:
    """Twenty questions of the largest size are too much for one reply: it holds the last ones that fit and
    names those before them, which the holder reads one by one."""
    runner = Runner(quick, uid("agent"))
    top, first = await family_of(quick, runner)
    asked = [await ask_much(top, first.turn, number, BIG) for number in range(19)]
    waiting = await first.turn.ask("And which one now?")
    first.die()
    second = await Runner(quick, runner.agent).take(within=60)
    left = second.questions_left
    assert left == [question["request_id"] for question in asked[: len(left)]]
    assert second.questions == [*asked[len(left) :], waiting]
    assert 0 < len(left) < len(asked)
    for request_id, question in zip(left, asked, strict=False):
        assert await quick.question(request_id, second.turn.caller) == question
    await second.turn.settle()


async def test_a_question_that_fits_into_no_claim_is_named(quick: Wire) -> None:
    """One question that is more than half a message."""
    runner = Runner(quick, uid("agent"))
    top, first = await family_of(quick, runner)
    asked = await ask_much(top, first.turn, 1, BIG_IN_UTF8)
    again = result_of(await runner.claim(first.turn.run_id))
    assert again["questions"] == []
    assert again["questions_left"] == [asked["request_id"]]
    assert await quick.question(asked["request_id"], runner.id) == asked
    await first.turn.settle()
