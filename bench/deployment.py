"""A deployment of its own, started as its user starts it, and what its processes cost."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

START_WITHIN_S = 90.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Deployment:
    """`python -m upcall_deploy.up` on a directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._output = data / "up.log"

    @property
    def state(self) -> dict[str, Any]:
        """What up.json says."""
        return json.loads((self.data / "up.json").read_text())

    @property
    def nats_url(self) -> str:
        """Where clients connect."""
        return self.state["nats"]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; it ends with this process at the latest."""
        with self._output.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "upcall_deploy.up", "--with-parent", "--data", str(self.data)],
                env={"UPCALL_LOG_LEVEL": "WARNING", **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    async def until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Return when everything runs."""
        for _ in range(int(START_WITHIN_S / 0.05)):
            if process.poll() is not None:
                break
            if (self.data / "up.json").exists() and self.state["ready"]:
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the deployment did not become ready:\n{self._output.read_text()[-2000:]}")

    def cpu_seconds(self) -> dict[str, float]:
        """The processor time that each part has used so far, and this process as `client`."""
        used = {"client": _seconds(os.getpid())}
        for part, pids in self.state["pids"].items():
            used[part] = sum(_seconds(pid) for pid in (pids if isinstance(pids, list) else [pids]) if pid)
        return used


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS  # utime and stime


@asynccontextmanager
async def deployment(data: Path) -> AsyncIterator[Deployment]:
    """Ready when it is entered, ended when it is left."""
    made = Deployment(data)
    process = made.start()
    try:
        await made.until_ready(process)
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)
