"""Licence headers of source files: read, count and write them. Nothing here knows of agents."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMMENTS: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys([".py", ".sh", ".rb", ".toml", ".yaml", ".yml"], ("# ", "")),
    **dict.fromkeys([".c", ".h", ".cc", ".go", ".java", ".js", ".rs", ".ts", ".tsx"], ("// ", "")),
    **dict.fromkeys([".css"], ("/* ", " */")),
    **dict.fromkeys([".sql", ".lua"], ("-- ", "")),
    **dict.fromkeys([".html", ".xml"], ("<!-- ", " -->")),
}
"""How a line of comment begins and ends, by suffix; other files are not source files here."""

FILES_MAX: Final = 500
_HEADER_LINES: Final = 10

_copyright = re.compile(r"Copyright\s+(?:\(c\)|©)?\s*([\d, –-]*\d)?,?\s*(\S.*)", re.IGNORECASE)
_spdx = re.compile(r"SPDX-License-Identifier:\s*([\w.+-]+)")
_prose = re.compile(r"Licensed under (?:the )?([\w.+-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Header:
    """What the first lines of a file say; None is what they don't say."""

    years: str | None = None
    holder: str | None = None
    licence: str | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file and its header."""

    path: Path  # from the root of the tree
    header: Header


def read_tree(root: Path, directories: Iterable[str]) -> list[SourceFile]:
    """The source files of some directories of a tree, hidden ones left out."""
    found: list[SourceFile] = []
    for directory in directories:
        for file in sorted((root / directory).rglob("*")):
            path = file.relative_to(root)
            hidden = any(part.startswith(".") for part in path.parts)
            if file.is_file() and not file.is_symlink() and file.suffix in COMMENTS and not hidden:
                found.append(SourceFile(path, read(file.read_text(errors="replace"), file.suffix)))
    return found[:FILES_MAX]


def read(text: str, suffix: str) -> Header:
    """The header of a file's text."""
    years = holder = licence = None
    for line in _header_lines(text, suffix):
        said = _uncomment(line, suffix)
        if found := _copyright.match(said):
            years, holder = found[1], found[2].rstrip(" .")
        if found := _spdx.match(said) or _prose.match(said):
            licence = found[1].rstrip(".")
    return Header(years, holder, licence)


def write(text: str, suffix: str, header: Header) -> str:
    """The text under this header; its old one goes, and all else stays as it is."""
    first = text.splitlines(keepends=True)[0] if text.startswith("#!") else ""
    years = f"{header.years} " if header.years else ""
    said = [f"Copyright (c) {years}{header.holder}", f"SPDX-License-Identifier: {header.licence}"]
    begin, end = COMMENTS[suffix]
    return "".join([first, *(f"{begin}{line}{end}\n" for line in said), "\n", body(text, suffix)])


def body(text: str, suffix: str) -> str:
    """What stands below the header."""
    lines = text.splitlines(keepends=True)
    skipped = 1 if text.startswith("#!") else 0
    return "".join(lines[skipped + len(_header_lines(text, suffix)) :]).lstrip("\n")


def ranked(values: Iterable[str | None]) -> list[tuple[str, int]]:
    """Each value that is said, with how many say it, the most frequent first."""
    return Counter(value for value in values if value).most_common()


def describe(files: Sequence[SourceFile]) -> str:
    """A tree's headers in one line."""
    counted = [f"{count} {licence}" for licence, count in ranked(file.header.licence for file in files)]
    silent = sum(file.header.licence is None for file in files)
    return ", ".join([*counted, *([f"{silent} without a header"] if silent else [])]) or "no source files"


def _header_lines(text: str, suffix: str) -> list[str]:
    """The lines at the top that are about copyright and licence; nothing else is ever touched."""
    lines = text.splitlines(keepends=True)
    skipped = 1 if text.startswith("#!") else 0
    found: list[str] = []
    for line in lines[skipped : skipped + _HEADER_LINES]:
        said = _uncomment(line, suffix)
        if not (_copyright.match(said) or _spdx.match(said) or _prose.match(said)):
            break
        found.append(line)
    return found


def _uncomment(line: str, suffix: str) -> str:
    begin, end = (part.strip() for part in COMMENTS[suffix])
    stripped = line.strip()
    if not stripped.startswith(begin):
        return ""
    return stripped.removeprefix(begin).removesuffix(end or "\n").strip()
