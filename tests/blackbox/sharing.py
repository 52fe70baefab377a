"""One deployment for all test processes of a run: who comes first starts it, who leaves last ends it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .deployment import Deployment

_started: list[Deployment] = []
"""Those that this process started: others may still use them when its own tests are over."""


@contextlib.contextmanager
def shared(name: str, settings: dict[str, str], factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment that no test harms; side by side, the processes of pytest-xdist use the same one."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    up = Deployment(root / name / "data", settings)
    register = root / f"{name}.users"
    with _locked(register) as users:
        if users["count"] == 0:
            _started.append(up)
            try:
                up.start()
            except BaseException:
                up.stop()
                raise
            users["pid"] = up.process.pid if up.process is not None else 0
        users["count"] += 1
    try:
        up.wait_ready()
        yield up
    finally:
        with _locked(register) as users:
            users["count"] -= 1
            if users["count"] == 0:
                up.stop_by(users["pid"])


@contextlib.contextmanager
def _locked(register: Path) -> Iterator[dict[str, int]]:
    with register.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        users: dict[str, int] = json.loads(file.read() or '{"count": 0, "pid": 0}')
        yield users
        file.seek(0)
        file.truncate()
        file.write(json.dumps(users))
