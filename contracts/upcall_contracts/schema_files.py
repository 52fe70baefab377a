"""The JSON Schemas of the wire, by the path of their file. Each file stands alone."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from .commands import COMMANDS
from .errors import RETRYABLE, ErrorCode
from .events import EVENT_TYPES, Event, EventType, Family
from .queries import QUERIES
from .records import (
    DeadLetter,
    Heartbeat,
    HistoryMessage,
    LateQuestionRecord,
    QuestionRecord,
    ReportRecord,
    RunRecord,
    SessionRecord,
    WorkRecord,
)
from .tools import ASK_PARENT, PARENT_QUESTION, SPAWN_AGENT

Schema = dict[str, Any]

RECORDS: Final[dict[str, type[BaseModel]]] = {
    "session": SessionRecord,
    "run": RunRecord,
    "question": QuestionRecord,
    "late_question": LateQuestionRecord,
    "report": ReportRecord,
    "work": WorkRecord,
    "message": HistoryMessage,
    "heartbeat": Heartbeat,
    "dead_letter": DeadLetter,
}
"""What each record is called in the schemas."""

_RECORD_OF_FAMILY: dict[Family, type[BaseModel]] = {
    Family.LIFECYCLE: RunRecord,
    Family.WORK: WorkRecord,
    Family.QUESTION: QuestionRecord,
    Family.REPORT: ReportRecord,
}

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _records(model: type[BaseModel]) -> tuple[Schema, list[type[BaseModel]]]:
    return {"type": "array", "items": _ref(model)}, [model]


def _record(model: type[BaseModel]) -> tuple[Schema, list[type[BaseModel]]]:
    return _ref(model), [model]


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": f"#/$defs/{model.__name__}"}


_RESULTS: dict[str, tuple[Schema, list[type[BaseModel]]]] = {
    "session": _record(SessionRecord),
    "run": _record(RunRecord),
    "question": _record(QuestionRecord),
    "report": _record(ReportRecord),
    "work": _record(WorkRecord),
    "sessions": _records(SessionRecord),
    "questions": _records(QuestionRecord),
    "reports": _records(ReportRecord),
    "events": _records(Event),
    "items": _records(Event),
    "messages": _records(HistoryMessage),
    "session_id": (_TEXT, []),
    "run_id": (_TEXT, []),
    "period_id": (_TEXT, []),
    "status": ({"enum": ["queued", "running"]}, []),
    "state": ({"enum": ["settled", "question", "running"]}, []),
    "cancelled": ({"type": "array", "items": _TEXT}, []),
    "handled": ({"type": "array", "items": _TEXT}, []),
    "questions_left": ({"type": "array", "items": _TEXT}, []),
    "history_seq": ({"type": "integer"}, []),
    "next": ({"type": ["integer", "null"]}, []),
    "cursor": (_TEXT_OR_NULL, []),
}
"""The schema of each key of a result, and the records that it needs."""


class _Generator(GenerateJsonSchema):
    """Fields go without the titles that pydantic makes of their names: they say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schemas() -> dict[str, Schema]:
    """Every JSON Schema by its path below `schemas/`."""
    files: dict[str, Schema] = {"errors/reply.json": _error_reply()}
    for (noun, verb), spec in COMMANDS.items():
        files[f"commands/{noun}.{verb}.json"] = _of(spec.model, "validation")
        files[f"commands/{noun}.{verb}.reply.json"] = _reply(f"{noun}.{verb}", spec.result_keys)
    for (noun, verb), spec in QUERIES.items():
        files[f"queries/{noun}.{verb}.json"] = _of(spec.model, "validation")
        files[f"queries/{noun}.{verb}.reply.json"] = _reply(f"{noun}.{verb}", spec.result_keys)
    for name, model in RECORDS.items():
        files[f"records/{name}.json"] = _of(model, "validation" if model is Heartbeat else "serialization")
    for (family, _), event_type in EVENT_TYPES.items():
        files[f"events/{event_type.value}.json"] = _event(family, event_type)
    for tool in (ASK_PARENT, PARENT_QUESTION, SPAWN_AGENT):
        files[f"tools/{tool['name']}.json"] = tool
    return files


def _dialect(schema: Mapping[str, Any]) -> Schema:
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema}


def _of(model: type[BaseModel], mode: JsonSchemaMode) -> Schema:
    schema = model.model_json_schema(by_alias=True, mode=mode, schema_generator=_Generator)
    return _dialect(schema)


def _definitions(models: list[type[BaseModel]]) -> Schema:
    if not models:
        return {}
    pairs: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "serialization") for model in models]
    _, schema = models_json_schema(pairs, by_alias=True, schema_generator=_Generator)
    definitions: Schema = schema["$defs"]
    if "Event" in definitions:
        _optional_item(definitions["Event"])
    return definitions


def _optional_item(event: Schema) -> Schema:
    """An event that is no item of an inbox goes without one."""
    event["required"].remove("item")
    event["properties"]["item"] = {"$ref": "#/$defs/Item"}
    return event


def _event(family: Family, event_type: EventType) -> Schema:
    late = event_type is EventType.QUESTION_LATE_ANSWER
    record = LateQuestionRecord if late else _RECORD_OF_FAMILY[family]
    definitions = _definitions([Event, record])
    event: Schema = definitions.pop("Event")
    definitions.pop("EventType")
    event["properties"] |= {"type": {"const": event_type.value}, "data": _ref(record)}
    return _dialect({"title": event_type.value, **_without_title(event), "$defs": definitions})


def _reply(name: str, result_keys: tuple[str, ...]) -> Schema:
    models = [model for key in result_keys for model in _RESULTS[key][1]]
    result = {
        "type": "object",
        "properties": {key: _result_key(name, key) for key in result_keys},
        "required": list(result_keys),
    }
    definitions = _definitions(models)
    return _dialect(
        {
            "title": f"The reply to {name}",
            "type": "object",
            "properties": {"ok": {"const": True}, "result": result},
            "required": ["ok", "result"],
            **({"$defs": definitions} if definitions else {}),
        }
    )


def _result_key(name: str, key: str) -> Schema:
    schema = _RESULTS[key][0]
    # a wait that ends by itself, or for the run's end, has no question to show
    return {"anyOf": [schema, {"type": "null"}]} if (name, key) == ("run.wait", "question") else schema


def _error_reply() -> Schema:
    error = {
        "type": "object",
        "properties": {
            "code": {
                "enum": [code.value for code in ErrorCode],
                "description": "Stable; a newer server may have more.",
            },
            "message": {"type": "string", "description": "What happened, and what to do next."},
            "retryable": {
                "type": "boolean",
                "description": f"True for {', '.join(sorted(RETRYABLE))}.",
            },
            "details": {"type": "object", "description": "What a program may need, by code."},
        },
        "required": ["code", "message", "retryable", "details"],
    }
    return _dialect(
        {
            "title": "The reply of a refusal",
            "type": "object",
            "properties": {"ok": {"const": False}, "error": error},
            "required": ["ok", "error"],
        }
    )


def _without_title(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "title"}
