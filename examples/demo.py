"""The main job, to watch: a child in another process asks its parent, and goes on in the same run.

    make demo                 you are the parent
    make demo AUTO=1          a script is, and the exit code says whether all came out right
    UPCALL_DEMO_MODEL=… make demo     a model decides on both sides (pydantic-ai's name of it)
    python -m examples.demo --dir DIR      your own files instead of the sample: a copy of them

A parent agent delegates the licence headers of a directory of source files. The files disagree, and which
licence is right is not for the child to say. Nothing here is mocked: a real NATS and Redis and the three
services are started if none is running, and the child is a runner in a process of its own.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import upcall

from .licence_headers import checking
from .licence_headers.deciding import Decider, Person, Script
from .licence_headers.planner import Planner, task_for
from .licence_headers.processes import ClerkProcess, NotUpError, own_deployment, running_deployment
from .licence_headers.screen import Screen

HERE = Path(__file__).parent / "licence_headers"
NOBODY = (
    "Standard input is no terminal, so nobody could answer the child. Run `make demo AUTO=1` for a scripted "
    "parent, or set UPCALL_DEMO_MODEL for a model."
)


@dataclass(frozen=True, slots=True)
class Job:
    """The files to work on, and the directories of each round."""

    root: Path
    rounds: Sequence[Sequence[str]]
    arrivals: Path | None  # what is added before the second round


def prepare(own: Path | None, work: Path) -> Job:
    """A copy of the sample, or of a directory of one's own: the originals are never touched."""
    root = work / (own.resolve().name if own else "tidewatch")
    ignore = shutil.ignore_patterns(".*", "node_modules", "__pycache__")
    shutil.copytree(own or HERE / "sample", root, ignore=ignore)
    if own:
        return Job(root, [["."], ["."]], None)
    return Job(root, [["core", "tools", "web"], ["plugins"]], HERE / "arrivals")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    wrong: list[str]
    rounds: int
    answers: int
    reports: int
    elapsed_ms: int


async def play(job: Job, decider: Decider, screen: Screen, data: Path) -> Outcome:
    """The whole story."""
    async with AsyncExitStack() as stack:
        url = running_deployment(Path(".upcall"))
        if url:
            screen.line("deployment", f"uses the one that runs: {url}", "up")
        else:
            screen.line("deployment", "starts NATS, Redis and the three services on this machine", "up")
            url = await stack.enter_async_context(own_deployment(data))
            screen.line("deployment", f"is ready: {url}", "up")
        clerk = ClerkProcess(
            url,
            job.root,
            say=lambda line: screen.line("  licence-clerk", line, "child"),
            note=lambda line: screen.line("  licence-clerk", line, "up"),
        )
        stack.push_async_callback(clerk.end)
        await clerk.start()
        up = await stack.enter_async_context(upcall.connect(url))
        return await tell(job, decider, screen, up, clerk)


async def tell(job: Job, decider: Decider, screen: Screen, up: upcall.Upcall, clerk: ClerkProcess) -> Outcome:
    """A session of the parent, from its opening to its end."""
    session = await up.open_session(f"planner-{uuid4().hex[:8]}", agent="planner", title="Licence headers")
    try:
        async with await session.start("Keep the licence headers of the project in line.") as run:
            screen.line("planner", f"session {session.session_id}, run {run.run_id}", "planner")
            planner = Planner(run, decider, screen)
            await planner.watch()
            before = await two_rounds(job, planner, clerk)
            run.output = "Two rounds of licence headers are done."
            wrong = await what_is_wrong(job, decider, before, planner)
    finally:
        with suppress(upcall.UpcallError, TimeoutError):
            await asyncio.wait_for(session.close(), 5)  # and with it the child, if this was broken off
    answers = sum(len(one.answered) for one in planner.rounds)
    reports = sum(len(one.reports) for one in planner.rounds)
    return Outcome(wrong, len(planner.rounds), answers, reports, screen.elapsed_ms)


async def two_rounds(job: Job, planner: Planner, clerk: ClerkProcess) -> dict[Path, str]:
    """One child, twice; its process ends in between. The files as they were before."""
    before = checking.snapshot(job.root)
    first, second = job.rounds
    text = f"delegates {', '.join(first)}; the child is process {clerk.pid}"
    planner.screen.line("planner", text, "planner")
    await planner.delegate(task_for(first), f"licence headers of {', '.join(first)}")
    planner.screen.gap()
    await clerk.end()
    if job.arrivals:
        shutil.copytree(job.arrivals, job.root, dirs_exist_ok=True)
        before = {**checking.snapshot(job.root), **before}
    await clerk.start()
    text = (
        f"continues the same child with {', '.join(second)}; its process has ended, {clerk.pid} is a new one"
    )
    planner.screen.line("planner", text, "planner")
    await planner.delegate(task_for(second), f"licence headers of {', '.join(second)}")
    return before


async def what_is_wrong(job: Job, decider: Decider, before: dict[Path, str], planner: Planner) -> list[str]:
    """What is not as it must be, on the disk and in what the services tell."""
    scripted = isinstance(decider, Script) and job.arrivals is not None
    licence = Script.licence if scripted else None
    wrong = checking.wrong_files(before, checking.snapshot(job.root), licence)
    wrong += await checking.wrong_story(planner.run, planner.rounds)
    if scripted and [len(one.answered) for one in planner.rounds] != [1, 1]:
        wrong.append("each round of the sample has one question, and one answer")
    return wrong


class CannotBeginError(Exception):
    """Something is missing; the message says what to do."""


def choose_decider(screen: Screen) -> Decider:
    """A script, a model or the person at the terminal."""
    if os.environ.get("AUTO"):
        return Script()
    if model := os.environ.get("UPCALL_DEMO_MODEL"):
        return model_decider(model)
    if sys.stdin.isatty():
        return Person(screen.prompt)
    raise CannotBeginError(NOBODY)


def model_decider(name: str) -> Decider:
    """The model of that name, or CannotBeginError."""
    try:
        from .licence_headers.model import ModelDecider
    except ImportError as error:
        raise CannotBeginError(
            f"A model decides through pydantic-ai, which is not here ({error}): pip install 'upcall[llm]'."
        ) from error
    try:
        return ModelDecider(name)
    except Exception as error:
        raise CannotBeginError(
            f"UPCALL_DEMO_MODEL is {name!r}, which pydantic-ai can't use: {error}"
        ) from error


def main() -> int:
    """0: all came out right. 1: it did not. 2: it could not begin."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="source files of your own; they are copied")
    parser.add_argument("--keep", action="store_true", help="keep the work directory")
    arguments = parser.parse_args()
    screen = Screen()
    try:
        decider = choose_decider(screen)
    except CannotBeginError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="upcall-demo-"))
        if not arguments.keep:
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        job = prepare(arguments.dir, work)
        screen.title(f"A child brings licence headers in line and asks where it may not decide. {job.root}")
        try:
            outcome = asyncio.run(play(job, decider, screen, work / "deployment"))
        except (KeyboardInterrupt, EOFError):
            screen.verdict(False, "Ended before it was done.")
            return 130
        except (NotUpError, upcall.ConnectError) as error:
            print(error, file=sys.stderr)
            return 2
        return conclude(outcome, screen)


def conclude(outcome: Outcome, screen: Screen) -> int:
    """Say how it came out, last of all as one JSON object; the exit code."""
    for problem in outcome.wrong:
        screen.verdict(False, f"Wrong: {problem}.")
    if not outcome.wrong:
        screen.verdict(
            True, "Right: headers in line, each answer in the run that asked, one report a period."
        )
    numbers = asdict(outcome)
    del numbers["wrong"]
    screen.plain(json.dumps(numbers))
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
