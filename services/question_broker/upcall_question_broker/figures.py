"""What the broker says of all open questions, read from the index on a slow schedule."""

import time

from upcall_shell.errors import Unavailable
from upcall_shell.figures import Figures

from .index import QuestionIndex
from .metrics import OLDEST, OPEN


class QuestionFigures:
    """The gauges of open questions."""

    def __init__(self, index: QuestionIndex) -> None:
        self._index = index

    def add_to(self, figures: Figures) -> None:
        """Have them read on schedule."""
        figures.add("questions", self.read, OPEN, OLDEST)

    async def read(self) -> None:
        """Read once. Raises Unavailable while Redis is away or the index is being rebuilt."""
        found = await self._index.open_questions()
        if found is None:
            raise Unavailable("the index is not whole")
        count, since = found
        OPEN.set(count)
        OLDEST.set(max(0.0, time.time() - since / 1000) if since is not None else 0)
