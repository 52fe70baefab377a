"""What the session service says of runs that wait for a runner, read from DISPATCH on a slow schedule."""

from typing import Final

from upcall_contracts import subjects
from upcall_shell.figures import Figures
from upcall_shell.jetstream import StreamClient

from .metrics import DISPATCHED

_AGENTS: Final = 100  # callers name agents as they like, and each name is a series of its own


class DispatchFigures:
    """The gauges of what is dispatched."""

    def __init__(self, stream: StreamClient) -> None:
        self._stream = stream

    def add_to(self, figures: Figures) -> None:
        """Have them read on schedule."""
        figures.add("dispatch", self.read, DISPATCHED)

    async def read(self) -> None:
        """Read once. Raises Unavailable."""
        counts = await self._stream.counts(subjects.DISPATCH_ALL)
        DISPATCHED.clear()
        for subject in sorted(counts, key=lambda each: counts[each], reverse=True)[:_AGENTS]:
            DISPATCHED.labels(subject.rpartition(".")[2]).set(counts[subject])
