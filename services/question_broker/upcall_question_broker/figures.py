"""What the broker says of all open questions, read from the index on a slow schedule."""

from upcall_shell.errors import Unavailable
from upcall_shell.figures import Figures, age_s

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
        OLDEST.set(age_s(count, since))
