"""What a model reads of an inbox item: pure functions from a record to its text.

A child's text stands inside a frame of ours and must not pass for it. In a question every continuation line
is indented, so that only our lines begin at the margin. In a report and in the summary of work, where
indenting would spoil code and tables, the text stays as it is except where it would open or close a frame.
"""

import re
from typing import Final

from upcall_contracts.limits import DERIVED_DESCRIPTION_MAX_CHARS
from upcall_contracts.records import (
    Outcome,
    PendingItem,
    QuestionRecord,
    ReportRecord,
    ReportResult,
    WorkRecord,
)

NO_TEXT: Final = "completed without a text response"
"""The body of the report of a run that completed and said nothing."""

# All that Python's splitlines, a terminal or a model may take for the end of a line; C1 has three of its own.
_BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x84\x85\x8d\u2028\u2029"
_break = re.compile(f"\r\n|[{_BREAKS}]")

# Characters without a width, with which a text could look like a frame and not be spelled like one.
_UNSEEN = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff"
_GAP = rf"[\s\x00-\x1f\x7f-\x9f{_UNSEEN}]*+"  # possessive: a text of spaces must not cost its length squared


def _spelled(word: str) -> str:
    return _GAP.join(word)


_tag = re.compile(rf"[<\uff1c\ufe64](?={_GAP}(?:[/\\\uff0f]{_GAP})*+{_spelled('subagent')})", re.IGNORECASE)
_frame_line = re.compile(
    rf"(\A|[{_BREAKS}])(?=[\x00-\x08\x0e-\x1b\x1f\x7f-\x83\x86-\x8c\x8e-\x9f{_UNSEEN}]*+"
    rf"\[{_GAP}(?:{_spelled('subagent')}|{_spelled('background')}))",
    re.IGNORECASE,
)

_ATTRIBUTE_ESCAPES = {
    **dict.fromkeys([*range(0x20), 0xFFFE, 0xFFFF], "\ufffd"),  # XML has no way to write most of these
    **{ord(c): f"&#{ord(c)};" for c in "\t\n\r\x84\x85\x8d\u2028\u2029"},
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord('"'): "&quot;",
}


def question_item_text(question: QuestionRecord) -> str:
    """A child's question, as its parent reads it."""
    lines = [
        f"[subagent question {question.request_id}]",
        f"Child task: {_indent(question.description or '')}",
        f"Blocked because: {_indent(question.why_blocked)}",
        f"Question: {_indent(question.question)}",
    ]
    if question.options:
        lines.append("Options:")
        lines += [f"- {_indent(option)}" for option in question.options]
    if question.recommended_option is not None:
        lines.append(f"Recommended: {_indent(question.recommended_option)}")
    lines += ["", f"Use the `parent_question` tool to resolve request {question.request_id}."]
    return "\n".join(lines)


def report_item_text(report: ReportRecord) -> str:
    """A child's report, as its parent reads it."""
    result = report.result or ReportResult.ERROR
    attributes = [
        ("session_id", report.session_id),
        ("state", result.value),
        ("description", report.description or ""),
    ]
    opening = " ".join(f'{name}="{_attribute(value)}"' for name, value in attributes)
    lines = [f"<subagent {opening}>", _shield(_report_body(report, result))]
    if report.pending:
        lines += ["Still running:", *(f"- {_pending(item)}" for item in report.pending)]
    return "\n".join([*lines, "</subagent>"])


def work_item_text(work: WorkRecord) -> str:
    """The end of a session's own background work."""
    outcome = work.outcome.value if work.outcome else "unknown"
    head = f"[background {work.kind.value} {_shield(_one_line(work.label or work.work_id))}] {outcome}"
    return f"{head}\n{_shield(work.summary)}" if work.summary and work.summary.strip() else head


def default_description(task: str) -> str:
    """The description of a run where none was given: its task's first line that is not blank, cut at 80."""
    lines = (line.strip() for line in _break.split(task))
    return next((line for line in lines if line), "")[:DERIVED_DESCRIPTION_MAX_CHARS].rstrip()


def _report_body(report: ReportRecord, result: ReportResult) -> str:
    answer = report.answer if report.answer and report.answer.strip() else None
    error = report.error if report.error and report.error.strip() else None
    if result is ReportResult.COMPLETED:
        return answer or NO_TEXT
    if error and answer:
        return f"{error}\n\nWhat it had said before:\n{answer}"
    return error or answer or f"{(report.outcome or Outcome.LOST).value} without a text response"


def _pending(item: PendingItem) -> str:
    return f"{item.kind.value} {_shield(_one_line(item.label or ''))} ({item.id})".replace("  ", " ")


def _indent(text: str) -> str:
    """Let no continuation line begin at the margin, whatever ends a line."""
    return _break.sub("\n  ", text)


def _one_line(text: str) -> str:
    return _break.sub(" ", text)


def _attribute(text: str) -> str:
    return text.translate(_ATTRIBUTE_ESCAPES)


def _shield(text: str) -> str:
    """Disarm what would open or close a frame, and leave all else as it is."""
    return _frame_line.sub(r"\1  ", _tag.sub("&lt;", text))
