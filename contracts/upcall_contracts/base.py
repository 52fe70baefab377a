"""The two kinds of model on the wire: what we write and others read leniently, and what we read strictly."""

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue
from pydantic_core import PydanticCustomError


class Record(BaseModel):
    """What services write: frozen, and a reader ignores the fields that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The record as JSON values, with times as RFC 3339."""
        return self.model_dump(mode="json")


UNKNOWN_FIELD = "unknown_field"
"""The type of problem that a field has which is neither known nor begins with `x_`."""


def _extension(name: str) -> str:
    if not name.startswith("x_"):
        raise PydanticCustomError(UNKNOWN_FIELD, "is not a field here")
    return name


CLOSED: Final[dict[str, Any]] = {"additionalProperties": False, "patternProperties": {"^x_": {}}}
"""The same rule in JSON Schema."""


class StrictBody(BaseModel):
    """What services read: nothing is coerced; of unknown fields only those with `x_` pass."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="allow",
        validate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        json_schema_extra=CLOSED,
    )
    if not TYPE_CHECKING:  # for pydantic: the types of extra fields; a checker would want them given
        __pydantic_extra__: dict[Annotated[str, AfterValidator(_extension)], JsonValue]  # pyright: ignore[reportIncompatibleVariableOverride]

    def to_wire(self) -> dict[str, Any]:
        """The body as JSON values, without what was left to its default."""
        return self.model_dump(mode="json", exclude_unset=True)
