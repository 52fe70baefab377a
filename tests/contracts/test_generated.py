"""The generated schemas are what the models say, whole, and valid."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from upcall_contracts.asyncapi import asyncapi_document
from upcall_contracts.commands import COMMANDS
from upcall_contracts.errors import ok
from upcall_contracts.events import EVENT_TYPES, Event, EventType
from upcall_contracts.generate import drift, files, main, to_yaml, write
from upcall_contracts.queries import QUERIES
from upcall_contracts.records import QuestionRecord, RunRecord
from upcall_contracts.refusals import session_busy

SCHEMAS = Path(__file__).parents[2] / "contracts" / "schemas"


def validator(path: str) -> Any:
    return jsonschema.Draft202012Validator(
        json.loads((SCHEMAS / path).read_text()), format_checker=jsonschema.FormatChecker()
    )


def test_nothing_has_drifted() -> None:
    """If this fails: `python -m upcall_contracts.generate`."""
    assert drift(SCHEMAS) == []


def test_there_is_a_file_for_everything() -> None:
    found = set(files())
    assert found >= {f"commands/{noun}.{verb}{end}.json" for noun, verb in COMMANDS for end in ("", ".reply")}
    assert found >= {f"queries/{noun}.{verb}{end}.json" for noun, verb in QUERIES for end in ("", ".reply")}
    assert found >= {f"events/{kind.value}.json" for kind in EventType}
    assert found >= {f"tools/{name}.json" for name in ("ask_parent", "parent_question", "spawn_agent")}
    assert found >= {"errors/reply.json", "asyncapi.yaml"}


@pytest.mark.parametrize("path", sorted(path for path in files() if path.endswith(".json")))
def test_every_file_is_a_json_schema_that_stands_alone(path: str) -> None:
    schema = json.loads((SCHEMAS / path).read_text())
    body = schema.get("input_schema", schema)
    jsonschema.Draft202012Validator.check_schema(body)
    refs = {value for key, value in walk(body) if key == "$ref"}
    assert refs <= {f"#/$defs/{name}" for name in body.get("$defs", {})}


def walk(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in [(key, item), *walk(item)]]
    return [pair for item in value for pair in walk(item)] if isinstance(value, list) else []


def test_an_event_as_we_write_it_is_valid() -> None:
    event = Event(
        event_id="e1",
        type=EventType.RUN_SETTLED,
        time=1,
        run_id="r1",
        session_id="s1",
        data=RunRecord(run_id="r1", settled_at=2).to_wire(),
    )
    assert validator("events/run_settled.json").is_valid(event.to_wire())
    assert not validator("events/run_queued.json").is_valid(event.to_wire())


def test_replies_as_we_write_them_are_valid() -> None:
    record = QuestionRecord(request_id="q1").to_wire()
    assert validator("commands/question.ask.reply.json").is_valid(ok({"question": record}))
    assert not validator("commands/question.ask.reply.json").is_valid(ok({}))
    waited = {"state": "running", "run": RunRecord(run_id="r1").to_wire(), "question": None}
    assert validator("queries/run.wait.reply.json").is_valid(ok(waited))
    assert validator("errors/reply.json").is_valid(session_busy("r1").to_reply())


def test_check_names_what_has_drifted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    assert main(["--check", "--out", str(tmp_path)]) == 0
    (tmp_path / "records" / "run.json").write_text("{}")
    (tmp_path / "tools" / "ask_parent.json").unlink()
    (tmp_path / "left_over.json").write_text("{}")
    assert main(["--check", "--out", str(tmp_path)]) == 1
    named = capsys.readouterr().err.split()
    assert {"records/run.json", "tools/ask_parent.json", "left_over.json"} < set(named)
    assert main(["--out", str(tmp_path)]) == 0
    assert drift(tmp_path) == []


def test_the_yaml_says_what_the_document_says() -> None:
    document = asyncapi_document("1.2.3")
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    "value",
    [{"a": [{"b": 1, "c": []}, "x", {}]}, {"no": "yes", "1": "1.0"}, {"a": "b: c # d"}, {"a": [["b"], None]}],
)
def test_any_json_value_goes_through_yaml(value: Any) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    document = yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text())
    for key, value in walk(document):
        if key == "$ref" and value.startswith("#/"):
            node = document
            for part in value[2:].split("/"):
                node = node[part]
        elif key == "$ref":
            assert (SCHEMAS / value).is_file(), value


def test_the_asyncapi_document_has_a_channel_for_every_subject() -> None:
    document = asyncapi_document("1.2.3")
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert addresses >= {f"cmd.{{caller}}.{noun}.{verb}" for noun, verb in COMMANDS}
    assert addresses >= {f"query.{{caller}}.{noun}.{verb}" for noun, verb in QUERIES}
    assert addresses >= {
        "run.{run_id}.lifecycle.{attempt}.{event}",
        "run.{parent_run_id}.child.{run_id}.question.{request_id}.{event}",
        "inbox.{session_id}.{item_id}",
        "heartbeat.{session_id}",
        "dispatch.{agent}",
        "dead.{service}",
    }
    assert {kind.value for kind in EVENT_TYPES.values()} <= set(document["components"]["messages"])
