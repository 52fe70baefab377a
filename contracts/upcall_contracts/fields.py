"""The types of fields that bodies share, with their limits. Texts are kept as given; nothing is stripped."""

import json
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints
from pydantic_core import PydanticCustomError

from . import limits

RULE: Final = "rule"
"""The type of problem whose message is written here and meant for the caller."""


def problem(text: str) -> PydanticCustomError:
    """A problem that is told to the caller word for word."""
    return PydanticCustomError(RULE, "{text}", {"text": text})


def one_of(*names: str) -> dict[str, Any]:
    """The JSON Schema of a body that has exactly one of these fields, where null is the same as absent."""
    return {"oneOf": [{"required": [name], "properties": {name: {"type": "string"}}} for name in names]}


def is_blank(text: str | None) -> bool:
    """Whether a text is absent or only white space."""
    return text is None or not text.strip()


def check_not_blank(text: str) -> str:
    """Refuse a text of white space only."""
    if is_blank(text):
        raise problem("must not be blank")
    return text


def _text_bytes(text: str) -> str:
    if len(text) * 4 > limits.TEXT_MAX_BYTES and len(text.encode()) > limits.TEXT_MAX_BYTES:
        raise problem(f"must have at most {limits.TEXT_MAX_BYTES} bytes of UTF-8")
    return text


def _lease(value: int) -> int:
    if value != 0 and not limits.LEASE_MIN_MS <= value <= limits.LEASE_MAX_MS:
        raise problem(f"must be 0, which means never gone, or {limits.LEASE_MIN_MS} to {limits.LEASE_MAX_MS}")
    return value


def _options(options: list[str]) -> list[str]:
    if any(is_blank(option) for option in options):
        raise problem("must not hold a blank option")
    if len(set(options)) < len(options):
        raise problem("must not hold the same option twice")
    return options


def _meta(meta: dict[str, JsonValue]) -> dict[str, JsonValue]:
    size = len(json.dumps(meta, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())
    if size > limits.META_MAX_BYTES:
        raise problem(f"must have at most {limits.META_MAX_BYTES} bytes as compact JSON, and has {size}")
    return meta


def _absent_is_empty(value: Any) -> Any:
    return [] if value is None else value


NULL_IS_EMPTY: Final = BeforeValidator(_absent_is_empty)
"""A list that is null is the same as one left out."""

_NOT_BLANK: Final = {"pattern": r"\S"}
_TEXT_SCHEMA: Final = {"maxLength": limits.TEXT_MAX_BYTES, "x-maxBytes": limits.TEXT_MAX_BYTES}

LongText = Annotated[str, AfterValidator(_text_bytes), Field(json_schema_extra={**_TEXT_SCHEMA})]
"""At most 256 KiB of UTF-8."""

RequiredText = Annotated[
    str,
    AfterValidator(_text_bytes),
    AfterValidator(check_not_blank),
    Field(json_schema_extra={**_TEXT_SCHEMA, **_NOT_BLANK}),
]
"""At most 256 KiB of UTF-8, and not blank."""

QuestionText = Annotated[
    str,
    StringConstraints(max_length=limits.QUESTION_MAX_CHARS),
    AfterValidator(check_not_blank),
    Field(json_schema_extra={**_NOT_BLANK}),
]
"""At most 4000 characters, and not blank."""

Label = Annotated[str, StringConstraints(max_length=limits.LABEL_MAX_CHARS)]
"""At most 200 characters."""

RequiredLabel = Annotated[Label, AfterValidator(check_not_blank), Field(json_schema_extra={**_NOT_BLANK})]
"""At most 200 characters, and not blank."""

Options = Annotated[
    list[
        Annotated[
            str,
            StringConstraints(max_length=limits.OPTION_MAX_CHARS),
            Field(json_schema_extra={**_NOT_BLANK}),
        ]
    ],
    Field(max_length=limits.OPTIONS_MAX, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_options),
    NULL_IS_EMPTY,
]
"""At most 20 of at most 500 characters, none blank or repeated."""

Meta = Annotated[
    dict[str, JsonValue],
    AfterValidator(_meta),
    Field(json_schema_extra={"x-maxBytes": limits.META_MAX_BYTES}),
]
"""A JSON object of at most 8 KiB."""

LeaseMs = Annotated[
    int,
    AfterValidator(_lease),
    Field(
        json_schema_extra={
            "anyOf": [{"const": 0}, {"minimum": limits.LEASE_MIN_MS, "maximum": limits.LEASE_MAX_MS}]
        }
    ),
]
"""0, or 1000 to 86400000 ms."""

TimeoutMs = Annotated[int, Field(ge=limits.TIMEOUT_MIN_MS, le=limits.TIMEOUT_MAX_MS)]
"""1 to 604800000 ms."""

WaitMs = Annotated[int, Field(ge=0, le=limits.WAIT_MAX_MS)]
"""0 to 60000 ms; 0 looks once."""

Positive = Annotated[int, Field(ge=1, le=limits.INTEGER_MAX)]
"""1 or more."""

Count = Annotated[int, Field(ge=0, le=limits.INTEGER_MAX)]
"""0 or more."""

CommandId = Annotated[str, StringConstraints(min_length=1, max_length=limits.COMMAND_ID_MAX_CHARS)]
"""1 to 128 characters."""

Cursor = Annotated[str, StringConstraints(min_length=1, max_length=limits.CURSOR_MAX_CHARS)]
"""Where the last page ended; opaque."""

PageLimit = Annotated[int, Field(ge=1, le=limits.PAGE_MAX)]
"""1 to 500."""
