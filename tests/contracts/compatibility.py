"""What changed between two JSON Schemas that those who know only the older one would feel.

What services read may be widened, what they write may gain fields. Everything else is named, also what might
be harmless: a person looks at it.
"""

from typing import Any

Schema = dict[str, Any]

_UPPER = {"maxLength", "maximum", "maxItems", "x-maxBytes"}
_LOWER = {"minLength", "minimum", "minItems"}


def breaks(old: Schema, new: Schema, *, reads: bool) -> list[str]:
    """Each break with its place. `reads`: by the new schema services would refuse a message of the old one;
    else: a reader who knows the old schema would not understand what they write by the new one."""
    return _compare(_inlined(old, old), _inlined(new, new), reads, "")


def _inlined(schema: Any, root: Schema) -> Any:
    """A schema with its definitions in place of the references."""
    if isinstance(schema, list):
        return [_inlined(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    here = dict(schema)
    if isinstance(ref := here.pop("$ref", None), str):
        here = {**root["$defs"][ref.removeprefix("#/$defs/")], **here}
    here.pop("$defs", None)
    return {key: _inlined(value, root) for key, value in here.items()}


def _compare(old: Any, new: Any, reads: bool, at: str) -> list[str]:
    if old == new:
        return []
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [f"{at}: {old!r} became {new!r}"]
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            found += _changed(key, old.get(key), new.get(key), reads, at)
    return found


def _changed(key: str, old: Any, new: Any, reads: bool, at: str) -> list[str]:
    wider, narrower = (new, old) if reads else (old, new)
    if key == "default" and not reads:
        return []
    if key == "properties" and old is not None and new is not None:
        gone = [f"{at}.{name}: is gone" for name in old if name not in new]
        both = [name for name in old if name in new]
        return gone + [
            line for name in both for line in _compare(old[name], new[name], reads, f"{at}.{name}")
        ]
    if key == "required":
        said = "is required now" if reads else "may be missing now"
        return [f"{at}.{name}: {said}" for name in sorted(set(wider or ()) - set(narrower or ()))]
    if key == "enum" and wider and narrower and set(narrower) <= set(wider):
        return []
    if key in _UPPER and (wider is None or (narrower is not None and narrower <= wider)):
        return []
    if key in _LOWER and (wider is None or (narrower is not None and narrower >= wider)):
        return []
    if key == "items":
        return _compare(old, new, reads, f"{at}[]")
    if key == "anyOf" and old and new:
        return _alternatives(old, new, reads, at)
    return [f"{at}: {key} was {old!r} and is {new!r}"]


def _alternatives(old: list[Schema], new: list[Schema], reads: bool, at: str) -> list[str]:
    """Each alternative that a message may use has to be one of those that its reader knows."""
    used, known = (old, new) if reads else (new, old)
    found: list[str] = []
    for one in used:
        pairs = ((one, other) if reads else (other, one) for other in known)
        problems = [_compare(before, after, reads, at) for before, after in pairs]
        found += min(problems, key=len)
    return found
