"""What the reporter says of all held reports, read from the index on a slow schedule."""

from upcall_shell.errors import Unavailable
from upcall_shell.figures import Figures, age_s

from .metrics import HELD, OLDEST
from .stores import ReportIndex


class ReportFigures:
    """The gauges of held reports."""

    def __init__(self, index: ReportIndex) -> None:
        self._index = index

    def add_to(self, figures: Figures) -> None:
        """Have them read on schedule."""
        figures.add("reports", self.read, HELD, OLDEST)

    async def read(self) -> None:
        """Read once. Raises Unavailable while Redis is away or the index is being rebuilt."""
        found = await self._index.held()
        if found is None:
            raise Unavailable("the index is not whole")
        count, since = found
        HELD.set(count)
        OLDEST.set(age_s(count, since))
