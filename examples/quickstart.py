"""A child asks its parent, and goes on with the answer in the same run."""

import asyncio

import upcall

runner = upcall.Runner()


@runner.agent("explorer")
async def child(run: upcall.Run) -> str:
    """Usually in a process of its own."""
    answer = await run.ask_parent("Keep v1?", "Clients may depend on it.", options=["keep", "drop"])
    return f"The API is mapped; v1: {answer.option}, because {answer.rationale}."


async def parent() -> None:
    """Answer what the child asks, take its report, and end."""
    async with upcall.connect() as up, asyncio.TaskGroup() as tasks:
        tasks.create_task(runner.run(handle_signals=False))
        planner = await up.open_session(agent="planner")
        await planner.spawn("explorer", "Map the API.")
        async for item in planner.inbox():
            if isinstance(item, upcall.Question):
                await item.answer(option="keep", rationale="one client pins it")
            if isinstance(item, upcall.Report):
                print(item.answer)
                await item.handle()
                runner.stop()
                break


asyncio.run(parent())
