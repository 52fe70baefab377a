"""A deployment as its user starts it, and the ways to break one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import redis

SERVICES = ("session", "question_broker", "reporter")
PARTS = (*SERVICES, "nats", "redis")

START_WITHIN = 120.0
"""Seconds for a deployment to come up, or for a killed part to be back: a slow machine, not a hanging one."""


def alive(pid: int) -> bool:
    """Whether a process runs (one that ended and waits for its parent does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


class Deployment:
    """`python -m upcall_deploy.up` on a directory, whose `up.json` says where everything is."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = settings or {}
        self.process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}

    # Its state

    @property
    def file(self) -> Path:
        return self.directory / "up.json"

    @property
    def log(self) -> Path:
        return self.directory.with_name(self.directory.name + ".log")

    def state(self) -> dict[str, Any]:
        """What `up.json` says now; empty while it is not there or being written."""
        try:
            state = json.loads(self.file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return state if isinstance(state, dict) else {}

    @property
    def nats_url(self) -> str:
        return str(self.state()["nats"])

    @property
    def redis_url(self) -> str:
        return str(self.state()["redis"])

    def pids(self, part: str) -> list[int]:
        """The processes of one part."""
        pids = self.state().get("pids", {}).get(part, [])
        return [int(pid) for pid in (pids if isinstance(pids, list) else [pids]) if pid]

    def _stands(self, part: str) -> bool:
        pids = self.pids(part)
        return bool(pids) and all(alive(pid) for pid in pids)

    def all_pids(self) -> list[int]:
        return [pid for part in PARTS for pid in self.pids(part)]

    # Its life

    def start(self) -> Deployment:
        """Start it and wait until it is ready; on a directory that was used before, everything is kept."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file.unlink(missing_ok=True)
        ports = [f"--{name}-port={port}" for name, port in self._ports.items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "upcall_deploy.up",
                    "--data",
                    str(self.directory),
                    *ports,
                ],
                # Kills end processes here and never the machine: what the kernel has is not lost.
                env={"UPCALL_SYNC_INTERVAL": "2m", **os.environ, **self.settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_ready()
        for name in ("nats", "redis"):
            # A restart keeps the ports, so that clients which only reconnect find it again.
            self._ports[name] = int(str(self.state()[name]).rsplit(":", 1)[1].split("/")[0])
        return self

    def wait_ready(self, within: float = START_WITHIN) -> None:
        """Wait until it says that it is ready and all that it names runs."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the deployment ended with {self.process.returncode}: {self.tail()}")
            if self.state().get("ready") and all(self._stands(part) for part in PARTS):
                return
            time.sleep(0.05)
        raise AssertionError(f"the deployment was not ready within {within} s: {self.state()} {self.tail()}")

    def stop(self) -> None:
        """End it as a user does, and make sure that nothing of it stays."""
        if self.process is None:
            return
        pids = self.all_pids()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self._kill(pids)
        self.process = None

    def stop_by(self, pid: int) -> None:
        """End one that another process of the test run may have started, by its supervisor's pid."""
        if self.process is not None and self.process.pid == pid:
            self.stop()
            return
        pids = self.all_pids()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._kill(pids)

    def kill_all(self) -> None:
        """`kill -9` of everything at once, the supervisor first so that it repairs nothing."""
        assert self.process is not None
        pids = self.all_pids()
        self.process.kill()
        self.process.wait(10)
        self._kill(pids)
        self.process = None

    def restart(self) -> None:
        """`kill -9` of everything, and a new start on the same data."""
        self.kill_all()
        self.start()

    def revive(self) -> None:
        """Make it whole, whatever a test has left of it."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        self.wait_ready()

    # Its parts

    def kill(self, *parts: str) -> None:
        """`kill -9` of all processes of some parts, and wait until others stand in for them."""
        before = {part: self.pids(part) for part in parts}
        assert all(before.values()), f"nothing to kill: {before}"
        self._kill([pid for pids in before.values() for pid in pids])
        deadline = time.monotonic() + START_WITHIN
        while any(set(self.pids(part)) & set(pids) for part, pids in before.items()):
            assert time.monotonic() < deadline, (
                f"{parts} were not started again: {self.state()} {self.tail()}"
            )
            time.sleep(0.05)
        self.wait_ready()

    def kill_and_leave(self, *parts: str) -> None:
        """`kill -9` of some parts, with a supervisor that is stopped: they stay away until `repair`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self._kill([pid for part in parts for pid in self.pids(part)])

    def repair(self) -> None:
        """Let the supervisor see what was killed, and wait until all is back."""
        assert self.process is not None
        gone = {pid for pid in self.all_pids() if not alive(pid)}
        self.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + START_WITHIN
        while gone & set(self.all_pids()):
            assert time.monotonic() < deadline, f"not started again: {self.state()} {self.tail()}"
            time.sleep(0.05)
        self.wait_ready()

    @contextlib.contextmanager
    def frozen(self, *parts: str) -> Any:
        """Stop some parts' processes (SIGSTOP) while the block runs, and let them go on after it."""
        pids = [pid for part in parts for pid in self.pids(part)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def flush_redis(self) -> None:
        """Empty Redis, as `FLUSHALL` does."""
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()

    def tail(self, lines: int = 40) -> str:
        """The end of what the deployment said, for the message of a failure."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    @staticmethod
    def _kill(pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)
