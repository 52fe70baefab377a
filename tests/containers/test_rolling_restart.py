"""Every instance of every service is replaced, one after the other, while questions and reports flow."""

import asyncio
from collections import Counter

import pytest

from tests.blackbox.wire import ENDS, Turn, Wire, select

from .stack import SERVICES, Stack

pytestmark = pytest.mark.asyncio(loop_scope="function")

FAMILIES = 4
PATIENCE = 60.0
"""Seconds for the reply to a command that is sent once: what an instance had not begun comes to another."""


async def test_nothing_is_lost_and_nothing_comes_twice(stack: Stack, w: Wire) -> None:
    stack.until_ready(*SERVICES)
    over = asyncio.Event()
    parents = [await w.start(await w.open()) for _ in range(FAMILIES)]
    flowing = [asyncio.create_task(_one_after_the_other(w, parent, over)) for parent in parents]
    try:
        for service in SERVICES:
            for number in (1, 2):
                await asyncio.to_thread(stack.restart, service, number)
    finally:
        over.set()
        asked = await asyncio.gather(*flowing)
    for parent, questions in zip(parents, asked, strict=True):
        assert questions, "nothing flowed"
        periods = set(questions.values())
        for period in periods:
            await w.until_item(parent.session_id, period, within=PATIENCE)
        events = await w.history(parent.run_id)
        assert Counter(seen.id for seen in select(events, "question") if seen.event in ENDS) == Counter(
            questions.keys()
        )
        assert Counter(seen.id for seen in select(events, "report", None, "delivered")) == Counter(periods)


async def _one_after_the_other(w: Wire, parent: Turn, over: asyncio.Event) -> dict[str, str]:
    """Children that ask, are answered and settle, until it is over: their questions, each with its period."""
    questions: dict[str, str] = {}
    while not over.is_set():
        made = await w.do(
            parent.caller,
            "session.spawn",
            within=PATIENCE,
            agent="worker",
            task="Build.",
            host="self",
            run_id=parent.run_id,
        )
        child, run = made["session_id"], {"run_id": made["run_id"]}
        text = {"question": "Which database?", "why_blocked": "The schema depends on it."}
        asked = await w.do(child, "question.ask", within=PATIENCE, **run, **text)
        question = {"request_id": asked["question"]["request_id"]}
        await w.do(parent.caller, "question.answer", within=PATIENCE, **question, answer="PostgreSQL")
        waited = await w.query(child, "question.wait", within=PATIENCE, **question, timeout_ms=10_000)
        assert waited["question"]["answer"] == "PostgreSQL"
        await w.do(child, "run.settle", within=PATIENCE, **run, outcome="completed", answer="Done.")
        questions[question["request_id"]] = made["period_id"]
    return questions
