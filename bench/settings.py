"""Sizes, from the environment. QUICK=1 is a look of a minute; single ones can be set all the same."""

import os
from dataclasses import dataclass


def _number(name: str, usual: int, quick: int) -> int:
    default = quick if os.environ.get("QUICK", "") not in ("", "0") else usual
    return int(os.environ.get(name, "") or default)


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured."""

    concurrencies: tuple[int, ...]
    blocks: int
    """How often floor and ours take turns; the medians over the blocks count."""
    rounds: int
    """Round trips in a block at concurrency 1; in others so many for each in flight, and ROUNDS at least."""
    rounds_each: int
    questions_per_run: int
    open_questions: int
    """How many other questions are open when one is timed."""
    children_per_parent: int
    spawners: int
    """How many spawns are in flight while the stage is set."""
    with_replies: bool
    """REPLIES=1: ask and answer also ask for the service's reply, as most clients do."""

    def rounds_at(self, concurrency: int) -> int:
        """Round trips in a block."""
        return max(self.rounds, self.rounds_each * concurrency)


def from_environment() -> Settings:
    """CONCURRENCY, BLOCKS, ROUNDS, ROUNDS_EACH, OPEN, REPLIES, QUICK."""
    listed = os.environ.get("CONCURRENCY") or "1,32,256"
    return Settings(
        concurrencies=tuple(int(text) for text in listed.split(",")),
        blocks=_number("BLOCKS", 5, 3),
        rounds=_number("ROUNDS", 100, 50),
        rounds_each=_number("ROUNDS_EACH", 6, 3),
        questions_per_run=_number("QUESTIONS_PER_RUN", 20, 20),
        open_questions=_number("OPEN", 10_000, 500),
        children_per_parent=_number("CHILDREN", 50, 50),
        spawners=_number("SPAWNERS", 32, 32),
        with_replies=os.environ.get("REPLIES", "") not in ("", "0"),
    )
