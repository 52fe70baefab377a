"""Who decides for the parent: the person at the terminal, a script, or a model."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import upcall
from upcall_contracts.records import QuestionRecord

from .clerk import KEEP


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to a question: one of its options, words, or neither where it is declined."""

    option: str | None = None
    text: str | None = None
    rationale: str | None = None
    declined: bool = False

    @property
    def said(self) -> str:
        """In a few words."""
        return "won't decide this" if self.declined else self.text or self.option or ""

    async def give(self, question: upcall.Question) -> QuestionRecord:
        """Send it; the question as it has ended."""
        if self.declined:
            return await question.decline(self.rationale)
        return await question.answer(self.text, option=self.option, rationale=self.rationale)


class Decider(Protocol):
    """Decides questions of children."""

    @property
    def name(self) -> str:
        """What the screen calls it."""
        ...

    async def decide(self, question: upcall.Question) -> Decision:
        """What to answer."""
        ...


class Script:
    """AUTO=1: what a careful owner of the sample might say, and on purpose not what the child recommends."""

    name = "planner (script)"
    licence: Final = "MIT"

    async def decide(self, question: upcall.Question) -> Decision:
        """The owner's mind on the sample; of anything else, what the child recommends."""
        if self.licence in question.options:
            return Decision(self.licence, rationale="What we publish shall ask as little as it can.")
        if KEEP in question.options:
            return Decision(KEEP, rationale="It is theirs; we only carry it.")
        option = question.recommended_option or (question.options[0] if question.options else None)
        return Decision(option, None if option else "Harbour Labs")


class Person:
    """The person at the terminal. Their line is read without a thread, so that Ctrl-C ends it at once."""

    name = "you"

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    async def decide(self, question: upcall.Question) -> Decision:
        """Ask until it can be understood."""
        options = question.options
        hint = "a number, or your own words" if options else "in your own words"
        default = options.index(question.recommended_option) + 1 if question.recommended_option else None
        hint += f"; Enter is {default}" if default else ""
        while True:
            self._show(f"Your decision ({hint}; d declines): ")
            said = (await _read_line()).strip()
            if not said and default:
                return Decision(options[default - 1])
            if said == "d":
                return Decision(declined=True)
            if said.isdigit() and options:
                if 1 <= int(said) <= len(options):
                    return Decision(options[int(said) - 1])
                continue
            if said:
                return Decision(said if said in options else None, said)


async def _read_line() -> str:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        text = sys.stdin.readline()
        if not line.done():
            line.set_result(text) if text else line.set_exception(EOFError("the terminal was closed"))

    loop.add_reader(sys.stdin, read)
    try:
        return await line
    finally:
        loop.remove_reader(sys.stdin)
