"""The child: a runner in a process of its own, whose agent brings licence headers in line.

    python -m examples.licence_headers.clerk --root DIR

It settles by itself what the files agree on. Where they disagree it has no authority, and asks its parent.
What was decided it keeps in its history, so that a later run, also in another process, knows it.
"""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import upcall
from upcall_contracts.records import HistoryMessage

from . import headers
from .headers import Header, SourceFile

AGENT: Final = "licence-clerk"
ASK_MS: Final = 600_000
KEEP: Final = "Keep it as it is"

_directories = re.compile(r"^Directories: (.+)$", re.MULTILINE)


class UndecidedError(Exception):
    """The parent won't decide, so the files stay as they are."""


@dataclass(slots=True)
class Decisions:
    """What the parent has decided so far, by subject."""

    made: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, history: Sequence[HistoryMessage]) -> "Decisions":
        """Read them from the session's history: of this run, and of all before it."""
        found = cls()
        for message in history:
            if message.role == "tool" and isinstance(message.content, dict):
                content = cast(dict[str, Any], message.content)
                found.made[content["decided"]] = content["as"]
        return found


@dataclass(slots=True)
class Clerk:
    """One run of the agent."""

    run: upcall.Run
    root: Path
    decisions: Decisions = field(default_factory=Decisions)

    async def work(self) -> str:
        """Read, ask where needed, write; what came of it."""
        files = headers.read_tree(self.root, directories_of(self.run.task))
        say(f"reads {len(files)} files: {headers.describe(files)}")
        self.decisions = Decisions.of(await self.run.history())
        for subject, value in self.decisions.made.items():
            say(f"knows from before: {subject} is {value}")
        await self.run.append([{"role": "assistant", "content": headers.describe(files)}], steps=1)
        owner = await self._owner(files)
        ours = [file for file in files if await self._is_ours(file, owner)]
        licence = await self._licence(ours)
        written = [file for file in ours if self._write(file, owner, licence)]
        text = (
            f"{len(files)} files: {len(written)} brought in line, {len(ours) - len(written)} in line before, "
            f"{len(files) - len(ours)} left as somebody else's. Licence {licence}, holder {owner}."
        )
        await self.run.append([{"role": "assistant", "content": text}], steps=1)
        return text

    async def _owner(self, files: Sequence[SourceFile]) -> str:
        """Most files name the owner; where none names anybody, the parent has to."""
        if known := self.decisions.made.get("owner"):
            return known
        named = headers.ranked(file.header.holder for file in files)
        if named:
            return await self._keep("owner", named[0][0])
        question = "Who holds the copyright of these files?"
        return await self._keep("owner", await self._ask(question, "No file names a holder.", []))

    async def _is_ours(self, file: SourceFile, owner: str) -> bool:
        """A file that names somebody else is not ours to change, unless the parent says so."""
        holder = file.header.holder
        if holder is None or holder == owner:
            return True
        subject = f"what names {holder}"
        if subject not in self.decisions.made:
            ours = f"Put it under {owner}"
            decided = await self._ask(
                f"{file.path} names {holder} ({file.header.licence or 'no licence'}). What becomes of it?",
                f"The policy gives everything to one holder, but this header is {holder}'s, "
                "and whether it may be replaced is not for me to say.",
                [KEEP, ours],
                KEEP,
            )
            await self._keep(subject, decided)
        return self.decisions.made[subject] != KEEP

    async def _licence(self, files: Sequence[SourceFile]) -> str:
        """The licence that all files name; where they don't agree, the parent chooses."""
        if known := self.decisions.made.get("licence"):
            return known
        named = headers.ranked(file.header.licence for file in files)
        if len(named) == 1:
            return await self._keep("licence", named[0][0])
        options = [licence for licence, _ in named]
        counted = " and ".join(f"{count} under {licence}" for licence, count in named) or "no licence at all"
        chosen = await self._ask(
            "Which licence shall all files stand under?",
            f"The policy wants one licence and does not say which. I found {counted}.",
            options,
            options[0] if options else None,
        )
        return await self._keep("licence", chosen)

    async def _ask(
        self, question: str, why: str, options: Sequence[str], recommended: str | None = None
    ) -> str:
        """One of the options; an answer that names none is asked about again."""
        asked = question
        while True:
            answer = await self.run.ask_parent(
                asked, why, options=options, recommended_option=recommended, timeout_ms=ASK_MS
            )
            if answer.declined:
                raise UndecidedError(f"The parent did not decide: {question}")
            chosen = answer.option or chosen_in(answer.text, options)
            if chosen:
                say(f"goes on in the same run with: {chosen}")
                return chosen
            asked = f"“{answer.text}” is none of the ways I know. {question}"

    async def _keep(self, subject: str, value: str) -> str:
        """Remember a decision, for this run's next holder and for all further runs."""
        self.decisions.made[subject] = value
        await self.run.append([{"role": "tool", "content": {"decided": subject, "as": value}}])
        return value

    def _write(self, file: SourceFile, owner: str, licence: str) -> bool:
        path = self.root / file.path
        old = path.read_text(errors="surrogateescape")
        new = headers.write(old, path.suffix, Header(file.header.years, owner, licence))
        if new != old:
            path.write_text(new, errors="surrogateescape")
            say(f"writes {file.path}")
        return new != old


def directories_of(task: str) -> list[str]:
    """The directories that a task names."""
    found = _directories.search(task)
    if found is None:
        raise ValueError("The task has no line `Directories: …`, so it is not clear what to work on.")
    return [name.strip() for name in found[1].split(",")]


def chosen_in(text: str, options: Sequence[str]) -> str | None:
    """The option that a free answer means; without options, the answer itself."""
    if not options:
        return text.strip() or None
    said = text.strip().casefold()
    exact = [option for option in options if option.casefold() == said]
    inside = [option for option in options if option.casefold() in said]
    return exact[0] if exact else inside[0] if len(inside) == 1 else None


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, flush=True)


def make_runner(url: str | None, root: Path, model: str | None) -> upcall.Runner:
    """The runner that serves the agent."""
    runner = upcall.Runner(url, concurrency=1, stop_grace=1)

    @runner.agent(AGENT)
    async def bring_in_line(run: upcall.Run) -> str:
        say(f"takes run {run.run_id}" + (f", attempt {run.attempt}" if run.attempt > 1 else ""))
        if model:
            from .model import let_model_work

            return await let_model_work(run, root, model)
        return await Clerk(run, root).work()

    return runner


async def _serve(runner: upcall.Runner, with_parent: bool) -> None:
    if with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin, runner.stop)
    await runner.run()


def main() -> int:
    """Serve until it is told to stop."""
    parser = argparse.ArgumentParser(prog="python -m examples.licence_headers.clerk")
    parser.add_argument("--root", type=Path, required=True, help="the tree that tasks name directories of")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input is closed")
    arguments = parser.parse_args()
    runner = make_runner(None, arguments.root, os.environ.get("UPCALL_DEMO_MODEL"))
    try:
        asyncio.run(_serve(runner, arguments.with_parent))
    except upcall.ConnectError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
