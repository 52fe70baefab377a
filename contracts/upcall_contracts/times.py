"""Times: integers of epoch milliseconds in Python, RFC 3339 in UTC with milliseconds and `Z` on the wire."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:[.](\d+))?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_MILLISECOND = timedelta(milliseconds=1)


def to_wire(ms: int) -> str:
    """Write a time as the wire has it: 1700000000123 becomes "2023-11-14T22:13:20.123Z"."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_wire(text: str) -> int:
    """Read an RFC 3339 time as epoch milliseconds; finer digits are cut. ValueError if it is none."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text[:40]!r}")
    digits = found[1]
    if digits is None:
        return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MILLISECOND
    whole = text.replace(f".{digits}", "", 1).upper()
    return (datetime.fromisoformat(whole) - _EPOCH) // _MILLISECOND + int(digits[:3].ljust(3, "0"))


def _read(value: Any) -> Any:
    return from_wire(value) if isinstance(value, str) else value


WireTime = Annotated[
    int,
    BeforeValidator(_read),
    PlainSerializer(to_wire, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in a record: an int of epoch ms in Python, the RFC 3339 string in JSON; both are accepted."""
