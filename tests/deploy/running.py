"""Runs the `up` of these tests as a person would, and watches its `up.json`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FAKE_UP = Path(__file__).with_name("fake_up.py")
PATIENCE = 10.0


class Up:
    """One `up` process on a data directory."""

    def __init__(self, data: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        self._output = data / "terminal.txt"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(FAKE_UP), "--data", str(data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "UPCALL_SYNC_INTERVAL": "2m", **(env or {})},
            )

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.data / "up.json").read_text())

    @property
    def said(self) -> str:
        return self._output.read_text()

    def pids(self) -> list[int]:
        return [pid for pid in flat(self.state["pids"]) if pid]

    def until(self, fact: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state of which the fact is true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                state = self.state
                if fact(state):
                    return state
            assert self.process.poll() is None, self.said
            time.sleep(0.01)
        raise AssertionError(f"not so within {PATIENCE} s: {self.state}\n{self.said}")

    def until_ready(self) -> dict[str, Any]:
        return self.until(lambda state: state["ready"])

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send the signal and wait for its end: the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def running(data: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Up]:
    up = Up(data, *arguments, env=env)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.stop(signal.SIGKILL)


def flat(pids: Mapping[str, Any]) -> list[int | None]:
    return [pid for value in pids.values() for pid in (value if isinstance(value, list) else [value])]


def alive(pids: list[int]) -> list[int]:
    """Those that still run; one that is dead and was not waited for yet does not."""
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def until_gone(pids: list[int], patience: float = 3.0) -> None:
    deadline = time.monotonic() + patience
    while alive(pids):
        assert time.monotonic() < deadline, f"still running: {alive(pids)}"
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        # The command's name comes before it, in brackets, and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
