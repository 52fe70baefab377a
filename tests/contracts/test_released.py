"""Those who know an earlier release go on: what they send is taken, and what they get they understand."""

from typing import Any

import pytest

from .compatibility import breaks
from .releases import RELEASES, is_read, released, today

MAY_GROW = {"errors/reply.json": ".error.code: enum"}
"""A newer server may have more codes, and the schema says so."""

CASES = [(version, path) for version in RELEASES for path in released(version)]


@pytest.mark.parametrize(("version", "path"), CASES)
def test_nothing_that_was_released_is_broken(version: str, path: str) -> None:
    """If this fails, a client of that release breaks: keep the old form beside the new one."""
    was, is_now = released(version)[path], today().get(path)
    assert is_now is not None, "it is gone"
    found = breaks(was, is_now, reads=is_read(path))
    grown = MAY_GROW.get(path)
    assert [line for line in found if grown is None or not line.startswith(grown)] == []


def objects(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema if required is None else {**schema, "required": required}


TEXT, NUMBER, NOTHING = {"type": "string"}, {"type": "integer"}, {"type": "null"}


@pytest.mark.parametrize(
    ("old", "new", "when_read", "when_written"),
    [
        pytest.param(objects(a=TEXT), objects(a=TEXT, b=TEXT), [], [], id="a field is new"),
        pytest.param(objects(a=TEXT), objects(), [".a: is gone"], [".a: is gone"], id="a field is gone"),
        pytest.param(
            objects([], a=TEXT), objects(["a"], a=TEXT), [".a: is required now"], [], id="now required"
        ),
        pytest.param(
            objects(["a"], a=TEXT), objects([], a=TEXT), [], [".a: may be missing now"], id="now optional"
        ),
        pytest.param(
            objects(a=TEXT),
            objects(a=NUMBER),
            [".a: type was 'string' and is 'integer'"],
            [".a: type was 'string' and is 'integer'"],
            id="another type",
        ),
        pytest.param(
            {"enum": ["a"]},
            {"enum": ["a", "b"]},
            [],
            [": enum was ['a'] and is ['a', 'b']"],
            id="a value is new",
        ),
        pytest.param(
            {"enum": ["a", "b"]},
            {"enum": ["a"]},
            [": enum was ['a', 'b'] and is ['a']"],
            [],
            id="a value is gone",
        ),
        pytest.param({"maxLength": 5}, {"maxLength": 9}, [], [": maxLength was 5 and is 9"], id="longer"),
        pytest.param({"maxLength": 9}, {"maxLength": 5}, [": maxLength was 9 and is 5"], [], id="shorter"),
        pytest.param({}, {"minimum": 1}, [": minimum was None and is 1"], [], id="a new limit"),
        pytest.param(
            {"items": objects(["a"], a=TEXT)},
            {"items": objects([], a=TEXT)},
            [],
            ["[].a: may be missing now"],
            id="inside a list",
        ),
        pytest.param(
            {"anyOf": [TEXT, NOTHING]},
            {"anyOf": [TEXT]},
            [": type was 'null' and is 'string'"],
            [],
            id="null is gone",
        ),
        pytest.param(
            {"anyOf": [TEXT]},
            {"anyOf": [TEXT, NOTHING]},
            [],
            [": type was 'string' and is 'null'"],
            id="null is new",
        ),
        pytest.param({"default": 1}, {"default": 2}, [": default was 1 and is 2"], [], id="another default"),
        pytest.param(
            {"$ref": "#/$defs/A", "$defs": {"A": objects(["a"], a=TEXT)}},
            {"$ref": "#/$defs/B", "$defs": {"B": objects([], a=TEXT)}},
            [],
            [".a: may be missing now"],
            id="through a definition of another name",
        ),
    ],
)
def test_what_breaks_whom(
    old: dict[str, Any], new: dict[str, Any], when_read: list[str], when_written: list[str]
) -> None:
    assert breaks(old, new, reads=True) == when_read
    assert breaks(old, new, reads=False) == when_written
