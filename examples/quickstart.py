"""A child asks its parent, and goes on with the answer in the same run."""

import asyncio

import upcall

runner = upcall.Runner()


@runner.agent("explorer")
async def explore(run: upcall.Run) -> str:
    """The child."""
    answer = await run.ask_parent("Keep v1?", "Clients may depend on it.", options=["keep", "drop"])
    return f"The API is mapped; v1: {answer.option}, because {answer.rationale}."


async def main() -> None:
    """The parent."""
    async with upcall.connect() as up:
        serving = asyncio.create_task(runner.run())
        planner = await up.open_session(agent="planner")
        await planner.spawn("explorer", "Map the API.")
        async for item in planner.inbox():
            match item:
                case upcall.Question():
                    await item.answer(option="keep", rationale="one client pins it")
                case upcall.Report():
                    print(item.answer)
                    await item.handle()
                    break
        runner.stop()
        await serving


if __name__ == "__main__":
    asyncio.run(main())
