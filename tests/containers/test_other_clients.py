"""The main path from a client that is not in Python, with a user's permissions in force."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .stack import Stack

pytestmark = pytest.mark.core

NODE = Path(__file__).parent / "node"


@pytest.fixture(scope="session")
def modules() -> Path:
    """The npm packages of the lock file."""
    assert shutil.which("npm"), "npm is needed: apt-get install nodejs npm"
    subprocess.run(["npm", "ci", "--silent"], cwd=NODE, check=True, timeout=180)
    return NODE


def test_node_asks_answers_and_hears_the_report(stack: Stack, modules: Path) -> None:
    done = subprocess.run(
        ["node", "main-path.mjs"],
        cwd=modules,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={
            **os.environ,
            "NATS_URL": stack.urls[0].removeprefix("nats://"),
            "NATS_USER": "agents",
            "NATS_PASSWORD": stack.password("agents"),
        },
    )
    assert done.returncode == 0, done.stderr + stack.logs()
    saw = json.loads(done.stdout)
    assert saw["asked"] == "Which database?"
    assert (saw["status"], saw["answer"]) == ("answered", "PostgreSQL, as the others do.")
    assert 'state="completed"' in saw["report"]
    assert "It uses PostgreSQL." in saw["report"]
    assert saw["left"] == 0
    assert saw["events"] == ["requested", "answered", "settled", "delivered"]
