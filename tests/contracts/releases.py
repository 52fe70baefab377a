"""The schemas of each release as they were, in `released/<version>.json`, by their path.

    python -m tests.contracts.releases 0.2.0

writes those of today, once, when that version is released; afterwards its file never changes. Descriptions
are left out: they are no promise. Definitions of tools are, too: a harness brings those of its own release.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from upcall_contracts.schema_files import json_schemas

Schema = dict[str, Any]
FOLDER = Path(__file__).parent / "released"
RELEASES = sorted(path.stem for path in FOLDER.glob("*.json"))
_NO_PROMISE = {"title", "description", "$schema"}


@cache
def released(version: str) -> dict[str, Schema]:
    """The schemas of a release."""
    return json.loads((FOLDER / f"{version}.json").read_text("utf-8"))


@cache
def today() -> dict[str, Schema]:
    """The same of the models as they are."""
    schemas = json_schemas().items()
    return {path: _promised(schema) for path, schema in sorted(schemas) if not path.startswith("tools/")}


def is_read(path: str) -> bool:
    """Whether a schema is of what services read; all else they write."""
    of_request = path.startswith(("commands/", "queries/")) and not path.endswith(".reply.json")
    return of_request or path == "records/heartbeat.json"


def _promised(schema: Any, *, names: bool = False) -> Any:
    """A schema without its prose; a property may be called `title`."""
    if isinstance(schema, list):
        return [_promised(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema.items() if names else ((k, v) for k, v in schema.items() if k not in _NO_PROMISE)
    holds_names = {"properties", "patternProperties", "$defs"} if not names else set[str]()
    return {key: _promised(value, names=key in holds_names) for key, value in kept}


def main() -> None:
    """Write the file of a release that has none yet."""
    file = FOLDER / f"{sys.argv[1]}.json"
    lines = [f"{json.dumps(path)}: {json.dumps(schema)}" for path, schema in today().items()]
    with file.open("x", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
