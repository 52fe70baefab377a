"""What the person sees: one line for each thing that happens, with when, who, and who for whom."""

import sys
import time
from typing import Final

from rich.console import Console
from rich.text import Text

STYLES: Final = {
    "up": "dim",
    "planner": "bold cyan",
    "you": "bold magenta",
    "child": "green",
    "ask": "bold yellow",
}
_WHO_WIDTH: Final = 26


class Screen:
    """Writes to standard output; nothing is ever overwritten, so a log of it reads the same."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._began = time.monotonic()

    @property
    def elapsed_ms(self) -> int:
        """Since the beginning."""
        return round((time.monotonic() - self._began) * 1000)

    def title(self, text: str) -> None:
        """What is going to happen."""
        self._console.print(Text(text, style="bold"))
        self._console.print()

    def line(self, who: str, text: str, style: str = "") -> None:
        """Something has happened."""
        name, _, rest = text.partition("\n")
        when = Text(f"{self.elapsed_ms / 1000:6.1f} s  ", style="dim")
        self._console.print(when + Text(f"{who:<{_WHO_WIDTH}} ", style=STYLES.get(style, style)) + Text(name))
        for more in rest.splitlines():
            self._console.print(Text(" " * (10 + _WHO_WIDTH + 1) + more))

    def gap(self) -> None:
        """Set the next lines apart."""
        self._console.print()

    def prompt(self, text: str) -> None:
        """Ask for a line; the cursor stays behind the text."""
        self._console.print(Text(text, style="bold magenta"), end="")

    def verdict(self, good: bool, text: str) -> None:
        """How it came out."""
        self._console.print()
        self._console.print(Text(text, style="bold green" if good else "bold red"))

    def plain(self, text: str) -> None:
        """For a program to read."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
