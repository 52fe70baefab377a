"""A harness and a runner in containers of their own, by the Python client; tests mount it.

harness.py inbox:  opens a session, has a child carried out by a runner, answers and hears by its inbox
harness.py calls:  the same by waiting for the child
harness.py runner: serves the agent `explorer`, whose runs ask one question
harness.py forge:  tries what its user may not do, and prints what NATS said
"""

import asyncio
import json
import os
import sys
from typing import Any

import upcall
from tests.settling import settle

USER = os.environ["NATS_USER"]
OPTIONS: dict[str, Any] = {
    "user": USER,
    "password": os.environ["NATS_PASSWORD"],
    "inbox_prefix": f"_INBOX.{USER}",
}
TASK = "Look at the orders service."


async def inbox() -> None:
    async with upcall.connect(**OPTIONS) as up:
        session = await up.open_session("shop-lead", agent="lead")
        async with await session.start("Build the shop.") as run:
            await run.spawn("explorer", TASK)
            async for item in session.inbox():
                match item:
                    case upcall.Question():
                        await item.answer("PostgreSQL")
                    case upcall.Report():
                        print(json.dumps({"report": item.text}))
                        await item.handle()
                        return


async def calls() -> None:
    async def answer(question: upcall.Question) -> None:
        await question.answer("PostgreSQL")

    async with upcall.connect(**OPTIONS) as up:
        session = await up.open_session("shop-lead", agent="lead")
        async with await session.start("Build the shop.") as run:
            child = await run.spawn("explorer", TASK)
            results = await run.wait_all([child], answer)
            print(json.dumps({"report": results[0].text}))


async def runner() -> None:
    async with upcall.connect(**OPTIONS) as up:
        runner = upcall.Runner(up, id=USER)

        @runner.agent("explorer")
        async def explore(run: upcall.Run) -> str:
            answer = await run.ask_parent("Which database?", "The schema depends on it.")
            return f"It uses {answer.text}."

        await runner.run()


async def forge() -> None:
    said: list[str] = []

    async def hear(error: Exception) -> None:
        said.append(str(error))

    async with upcall.connect(**OPTIONS, error_cb=hear) as up:
        for subject in (
            "log.session.shop-lead.opened",
            "cmd.operator.session.close",
            "cmd.other.session.open",
        ):
            await up.wire.nc.publish(subject, b"{}")
        # Twice: the client's first PING may overtake what was published.
        await settle(up.wire.nc)
    print(json.dumps({"refused": said}))


asyncio.run({"inbox": inbox, "calls": calls, "runner": runner, "forge": forge}[sys.argv[1]]())
