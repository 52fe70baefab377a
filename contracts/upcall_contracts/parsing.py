"""Bytes in; a model or a refusal out. Nothing here raises, whatever the bytes are."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from upcall_contracts import limits, refusals
from upcall_contracts.base import UNKNOWN_FIELD, StrictBody
from upcall_contracts.commands import COMMANDS, CommandBody, Message
from upcall_contracts.errors import Refusal
from upcall_contracts.ids import is_token
from upcall_contracts.queries import QUERIES, QueryBody
from upcall_contracts.subjects import CommandAddress, parse_command, parse_query

M = TypeVar("M", bound=BaseModel)

_ID_PROBLEM = "string_pattern_mismatch"  # ids are the only fields with a pattern
_PATH_MAX_CHARS = 120

# Half a megabyte of `1,` is 250,000 problems, and reading them out takes over a second.
_PROBLEMS_READ_MAX = 5000

# The parser gives up at about 200 levels. What is stored or replied stands a few levels deeper than in the
# body, and must still be readable: so many levels a body leaves free.
_NESTING_SPARE = 32
_NESTED = b"[" * _NESTING_SPARE, b"]" * _NESTING_SPARE

# The parser reads these as NaN or infinite, which no JSON may hold and no reply could carry.
_may_be_infinite = re.compile(rb"NaN|Infinity|[eE]\+?[0-9]{3}").search

_COMMAND_MODELS = {key: spec.model for key, spec in COMMANDS.items()}
_QUERY_MODELS = {key: spec.model for key, spec in QUERIES.items()}


def parse_body(raw: bytes, model: type[M]) -> M | Refusal:
    """Read a body strictly, or say all that is wrong with it at once."""
    if len(raw) > limits.BODY_MAX_BYTES:
        return refusals.too_large(len(raw))
    if _may_be_infinite(raw) and not _is_finite(raw):
        return refusals.invalid_json("it holds a number that is not finite")
    if raw.count(b"[") + raw.count(b"{") > _NESTING_SPARE and _is_too_deep(raw):
        return refusals.invalid_json("it is nested too deep")
    try:
        return model.model_validate_json(raw, by_alias=True, by_name=False)
    except ValidationError as error:
        return _refuse(error)


def parse_command_message(subject: str, raw: bytes) -> tuple[CommandAddress, CommandBody] | Refusal:
    """Read a command: who says it and what, from the subject; the body, from the bytes."""
    return _parse_message(parse_command(subject), subject, raw, _COMMAND_MODELS)


def parse_query_message(subject: str, raw: bytes) -> tuple[CommandAddress, QueryBody] | Refusal:
    """Read a query as a command is read."""
    return _parse_message(parse_query(subject), subject, raw, _QUERY_MODELS)


def body_fingerprint(body: CommandBody) -> str:
    """A stable hash of what a command says: it decides whether a command_id was used for another body.

    A default that is spelled out is the same as one left away, also of a field that a later version adds.
    Left out are command_id, attempt (a runner that takes a run over repeats the old holder's commands with
    its own) and fields that begin with `x_`.
    """
    said = _what_is_said(body)
    said.pop("command_id", None)
    said.pop("attempt", None)
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _parse_message(
    address: CommandAddress | None, subject: str, raw: bytes, models: Mapping[tuple[str, str], type[M]]
) -> tuple[CommandAddress, M] | Refusal:
    if address is None or (address.noun, address.verb) not in models:
        noun = address.noun if address else ""
        of_noun = [".".join(key) for key in models if key[0] == noun]
        return refusals.unknown_verb(subject, of_noun or [".".join(key) for key in models])
    if not is_token(address.caller):
        return refusals.invalid_caller(address.caller)
    body = parse_body(raw, models[address.noun, address.verb])
    return body if isinstance(body, Refusal) else (address, body)


def _what_is_said(value: Any) -> Any:
    """A value as JSON, without the defaults and the extensions of bodies; messages stay whole."""
    if isinstance(value, list):
        return [_what_is_said(item) for item in cast(list[Any], value)]
    if isinstance(value, Message):
        return value.model_dump(mode="json")
    if not isinstance(value, StrictBody):
        return value
    said: dict[str, Any] = {}
    for name, default in _defaults(type(value)):
        item = getattr(value, name)
        if item != default:
            said[name] = _what_is_said(item)
    return said


@cache
def _defaults(model: type[StrictBody]) -> list[tuple[str, Any]]:
    """The fields of a body with their defaults."""
    fields = model.model_fields.items()
    return [(name, field.get_default(call_default_factory=True)) for name, field in fields]


def _is_finite(raw: bytes) -> bool:
    """Read it again with a parser that can be told to refuse; what is no JSON at all is refused elsewhere."""
    try:
        json.loads(raw, parse_constant=_refuse_constant, parse_float=_refuse_infinite)
    except _NotFiniteError:
        return False
    except (ValueError, RecursionError):
        return True
    return True


def _is_too_deep(raw: bytes) -> bool:
    """Whether the parser gives up on it once it stands deeper; what is no JSON is refused elsewhere."""
    before, behind = _NESTED
    try:
        from_json(before + raw + behind)
    except ValueError as error:
        return "recursion limit" in str(error)
    return False


class _NotFiniteError(Exception):
    """A number in a body is NaN or infinite."""


def _refuse_constant(_: str) -> NoReturn:
    raise _NotFiniteError


def _refuse_infinite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotFiniteError
    return number


def _refuse(error: ValidationError) -> Refusal:
    count = error.error_count()
    if count > _PROBLEMS_READ_MAX:
        return refusals.invalid_field("", f"it has {count} problems, too many to name")
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    if not first["loc"]:
        return refusals.invalid_json(_json_problem(first))
    fields = [_describe(problem) for problem in problems[: limits.PROBLEMS_MAX]]
    if len(problems) > limits.PROBLEMS_MAX:
        fields.append({"field": "", "problem": f"{len(problems) - limits.PROBLEMS_MAX} more problems"})
    if all(problem["type"] == _ID_PROBLEM for problem in problems):
        return refusals.invalid_id(fields)
    return refusals.invalid(fields)


def _json_problem(problem: ErrorDetails) -> str:
    if problem["type"] == "json_invalid":
        return problem["msg"].removeprefix("Invalid JSON: ")
    return "it is JSON, but no object"


def _describe(problem: ErrorDetails) -> dict[str, str]:
    path = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    if len(path) > _PATH_MAX_CHARS:
        path = path[:_PATH_MAX_CHARS] + "…"
    say = _SENTENCES.get(problem["type"])
    return {"field": path, "problem": say(problem.get("ctx", {})) if say else problem["msg"].lower()}


def _always(text: str) -> Callable[[dict[str, Any]], str]:
    return lambda _: text


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": _always("is required"),
    UNKNOWN_FIELD: _always("is not a field here; fields of your own begin with x_"),
    _ID_PROBLEM: _always(f"must be 1 to {limits.TOKEN_MAX_CHARS} characters of A-Z a-z 0-9 _ -"),
    "rule": lambda ctx: str(ctx["text"]),
    "string_type": _always("must be a text"),
    "int_type": _always("must be an integer"),
    "bool_type": _always("must be true or false"),
    "list_type": _always("must be a list"),
    "dict_type": _always("must be an object"),
    "model_type": _always("must be an object"),
    "enum": lambda ctx: f"must be {_plain(ctx['expected'])}",
    "literal_error": lambda ctx: f"must be {_plain(ctx['expected'])}",
    "string_too_short": lambda ctx: f"must have at least {_count(ctx['min_length'], 'character')}",
    "string_too_long": lambda ctx: f"must have at most {_count(ctx['max_length'], 'character')}",
    "too_short": lambda ctx: f"must hold at least {ctx['min_length']}",
    "too_long": lambda ctx: f"must hold at most {ctx['max_length']}",
    "greater_than_equal": lambda ctx: f"must be at least {ctx['ge']}",
    "less_than_equal": lambda ctx: f"must be at most {ctx['le']}",
}
"""What is wrong, in words, by pydantic's type of the problem."""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _plain(expected: str) -> str:
    """Spell members of an enum as the wire does: "<Host.SELF: 'self'>" becomes 'self'."""
    return re.sub(r"<[\w.]+: ('[^']*')>", r"\1", expected)
