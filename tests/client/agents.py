"""Agents for tests, which also serve as a process of their own: `python -m tests.client.agents URL ID`."""

import asyncio
import sys

import upcall

WHY = "Clients depend on it."


async def echo(run: upcall.Run) -> str:
    return f"did {run.task}"


async def asks(run: upcall.Run) -> str:
    answer = await run.ask_parent(run.task, WHY, options=["keep", "drop"], recommended_option="keep")
    await run.append([{"role": "assistant", "content": f"decided {answer.option}"}], steps=1)
    return f"{answer.option} in attempt {run.attempt}: {answer.text}"


async def interviews(run: upcall.Run) -> str:
    """Asks seven questions."""
    answers = [await run.ask_parent(f"{n}: {run.task}", WHY) for n in range(7)]
    return ", ".join(str(len(answer.text)) for answer in answers)


async def fails(run: upcall.Run) -> str:
    raise RuntimeError(f"could not do {run.task}")


async def sleeps(run: upcall.Run) -> str:
    await asyncio.sleep(60)
    return "woke up"


async def stubborn(run: upcall.Run) -> str:
    """Takes its time to end when it is cancelled."""
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(1)
    return "woke up"


async def exits(run: upcall.Run) -> str:
    """As a command-line library does that finds bad arguments."""
    sys.exit(2)


async def trips(run: upcall.Run) -> str:
    """Awaits what something else has cancelled."""
    inner = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner
    return "never"


async def steps(run: upcall.Run) -> str:
    for number in range(10):
        await run.append([{"role": "assistant", "content": f"step {number}"}], steps=1)
    return "ten steps"


async def leaves(run: upcall.Run) -> str:
    async def tests() -> str:
        await asyncio.sleep(0.5)
        return "12 passed"

    run.leave("test suite", tests())
    return "the tests are running"


async def boss(run: upcall.Run) -> str:
    results = await run.wait_all([await run.spawn("echo", f"part {n}") for n in (1, 2)])
    return " and ".join(result.answer for result in results.check())


async def lead(run: upcall.Run) -> str:
    """Delegates, rests, and is woken by the report."""
    if run.record.trigger == "spawn":
        await run.spawn("echo", "a part")
        return "waiting"
    return f"woken by {len(run.record.causes)}: {run.task}"


async def big(run: upcall.Run) -> str:
    return "x" * 300_000


AGENTS = (echo, asks, interviews, fails, exits, trips, sleeps, stubborn, steps, leaves, boss, lead, big)


def runner_of(up: upcall.Upcall | str, *names: str, id: str | None = None) -> upcall.Runner:  # noqa: A002
    """A runner that serves the agents of these names, or all; `far-asks` is `asks` under another name."""
    runner = upcall.Runner(up, id=id, concurrency=8, stop_grace=1)
    by_name = {handler.__name__: handler for handler in AGENTS}
    for name in names or by_name:
        runner.agent(name)(by_name[name.rpartition("-")[2]])
    return runner


if __name__ == "__main__":
    asyncio.run(runner_of(sys.argv[1], *sys.argv[3:], id=sys.argv[2]).run())
