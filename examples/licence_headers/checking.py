"""Whether everything came out right: on the disk, and in what the services tell."""

from collections.abc import Sequence
from pathlib import Path

import upcall
from upcall_contracts.records import Outcome, ReportRecord, ReportStatus

from . import headers
from .headers import SourceFile
from .planner import Round


def snapshot(root: Path) -> dict[Path, str]:
    """The texts of all source files of a tree."""
    files = headers.read_tree(root, ["."])
    return {file.path: (root / file.path).read_text(errors="surrogateescape") for file in files}


def wrong_files(before: dict[Path, str], after: dict[Path, str], licence: str | None) -> list[str]:
    """What is not as it must be: headers that disagree, or text that was changed beside them."""
    files = [SourceFile(path, headers.read(text, path.suffix)) for path, text in after.items()]
    owner = headers.ranked(file.header.holder for file in files)[0][0] if files else None
    ours = [file for file in files if file.header.holder == owner]
    licence = licence or (headers.ranked(file.header.licence for file in ours) or [("none", 0)])[0][0]
    wrong = [f"{path} is gone" for path in before if path not in after]
    for file in files:
        old, new = before[file.path], after[file.path]
        if file not in ours and old != new:
            wrong.append(f"{file.path} is {file.header.holder}'s and was changed")
        if file in ours and file.header.licence != licence:
            wrong.append(f"{file.path} stands under {file.header.licence}, not {licence}")
        if headers.body(old, file.path.suffix) != headers.body(new, file.path.suffix):
            wrong.append(f"{file.path} was changed below its header")
        if headers.read(old, file.path.suffix).years != file.header.years:
            wrong.append(f"the years of {file.path} were changed")
    return wrong


async def wrong_story(planner: upcall.Run, rounds: Sequence[Round]) -> list[str]:
    """What the services tell otherwise than it must be: runs, answers in them, and one report a period."""
    wrong: list[str] = []
    for number, one in enumerate(rounds, 1):
        run = await one.child.run()
        if run.outcome is not Outcome.COMPLETED:
            wrong.append(f"round {number} ended as {run.outcome}: {run.error}")
        if any(question.child_run_id != run.run_id for question in one.answered):
            wrong.append(f"round {number} was answered in another run")
        if [report.period_id for report in one.reports] != [one.child.period_id]:
            wrong.append(f"round {number} was reported {len(one.reports)} times")
    session_id = rounds[0].child.session_id
    if {one.child.session_id for one in rounds} != {session_id}:
        wrong.append("the rounds are not of one child")
    rows = await planner.pages("report.list", "reports", {"session_id": session_id})
    delivered = [ReportRecord.model_validate(row) for row in rows]
    if [report.status for report in delivered] != [ReportStatus.DELIVERED] * len(rounds):
        wrong.append(f"{len(delivered)} reports are listed for {len(rounds)} rounds")
    async with planner.inbox() as inbox:
        if (left := await inbox.next(0.5)) is not None:
            wrong.append(f"the inbox still holds {left.item_id}")
    return wrong
