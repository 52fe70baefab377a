"""House rules, read off the source: a shared environment hides what a package may not import."""

import ast
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVICES = {
    "upcall_session": ROOT / "services/session/upcall_session",
    "upcall_question_broker": ROOT / "services/question_broker/upcall_question_broker",
    "upcall_reporter": ROOT / "services/reporter/upcall_reporter",
}
PURE = {"upcall_contracts", *sys.stdlib_module_names}
COMPARES_TEXTS = "sameness.py"  # the one decision that may use a library: rapidfuzz


def imports(folder: Path) -> dict[str, set[str]]:
    """The top-level packages that each file of a folder imports; its own package's are left out."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.split(".")[0])
        found[str(path.relative_to(folder))] = names - {folder.name}
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_services_share_contracts_and_never_import_each_other(name: str) -> None:
    """A service imports no other service, nor the client, nor the deployment."""
    forbidden = (set(SERVICES) - {name}) | {"upcall", "upcall_deploy"}
    assert {
        file: names & forbidden for file, names in imports(SERVICES[name]).items() if names & forbidden
    } == {}


@pytest.mark.parametrize("name", SERVICES)
def test_decisions_are_pure(name: str) -> None:
    """A module of decisions imports the contracts and the standard library, and no clock and no I/O of it."""
    impure = {"time", "asyncio", "socket", "random", "uuid", "secrets", "os", "subprocess", "threading"}
    for file, names in imports(SERVICES[name]).items():
        if file.startswith("decisions"):
            allowed = PURE | ({"rapidfuzz"} if file.endswith(COMPARES_TEXTS) else set())
            assert names <= allowed - impure, f"{name}/{file} imports {sorted(names - (allowed - impure))}"


def test_the_shell_knows_no_service() -> None:
    """The shared plumbing imports the contracts, and neither a service nor the client."""
    forbidden = {*SERVICES, "upcall", "upcall_deploy"}
    for file, names in imports(ROOT / "services/shell/upcall_shell").items():
        assert not names & forbidden, file


@pytest.mark.parametrize("folder", [*SERVICES.values(), ROOT / "services/shell/upcall_shell"])
def test_one_module_of_the_services_makes_spans(folder: Path) -> None:
    """OpenTelemetry is an extra of the services, too: what is always imported knows nothing of it."""
    assert [file for file, names in imports(folder).items() if "opentelemetry" in names] in ([], ["spans.py"])


def test_contracts_need_pydantic_and_nothing_else() -> None:
    """Who installs the contracts gets pydantic, and no more is imported."""
    allowed = {"pydantic", "pydantic_core", "typing_extensions", *sys.stdlib_module_names}
    for file, names in imports(ROOT / "contracts/upcall_contracts").items():
        assert names <= allowed, f"{file} imports {sorted(names - allowed)}"


def test_the_client_needs_contracts_and_nats() -> None:
    """A harness that installs the client gets no service, no Redis and no FastStream with it; and only the
    module that makes spans knows of OpenTelemetry, which is an extra."""
    allowed = {"upcall_contracts", "pydantic", "nats", "typing_extensions", *sys.stdlib_module_names}
    for file, names in imports(ROOT / "client/upcall").items():
        extra = names - allowed - ({"opentelemetry"} if file == "tracing.py" else set())
        assert not extra, f"{file} imports {sorted(extra)}"


def test_nothing_names_this_machine() -> None:
    """No file of ours holds a home folder, a registry's host or a mirror."""
    places = ("/root/", "/home/", "/work/", "pypi-more", "files.pythonhosted.org", "registry.npmjs.org")
    kinds = {".py", ".sh", ".toml", ".lock", ".yaml", ".md", ".json"}
    skipped = {".git", "node_modules", "build"}
    for folder, below, names in os.walk(ROOT):
        inside = Path(folder)
        below[:] = [b for b in below if b not in skipped and (not b.startswith(".") or b == ".ci")]
        for path in (inside / name for name in names):
            if path.suffix in kinds and path != Path(__file__):
                text = path.read_text(encoding="utf-8", errors="replace")
                assert not [place for place in places if place in text], path
