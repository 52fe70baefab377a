"""The other processes of the demo: the deployment, if none is running, and the child's runner."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

_UP_WITHIN: Final = 60.0
_END_WITHIN: Final = 15.0
_LOOK: Final = 0.05
_DEATHS_MAX: Final = 10


class NotUpError(Exception):
    """The deployment did not come up; the message has the end of its log."""


def running_deployment(data: Path) -> str | None:
    """The NATS url of a deployment that is named by the environment, or runs on a data directory."""
    if url := os.environ.get("UPCALL_NATS_URL"):
        return url
    state = _state(data)
    pid = state.get("pids", {}).get("nats")
    if not state.get("ready") or not isinstance(pid, int):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return str(state["nats"])


@asynccontextmanager
async def own_deployment(data: Path) -> AsyncIterator[str]:
    """Bring one up, and end it after the block; the NATS url."""
    log = data.with_suffix(".log")
    with open(log, "wb") as output:  # noqa: PTH123, ASYNC230 - once, at the beginning
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "upcall_deploy.up", "--data", str(data), "--with-parent"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends it in order
        )
    try:
        yield await _until_ready(process, data, log)
    finally:
        await _end(process)


async def _until_ready(process: asyncio.subprocess.Process, data: Path, log: Path) -> str:
    with suppress(TimeoutError):
        async with asyncio.timeout(_UP_WITHIN):
            while process.returncode is None:
                state = _state(data)
                if state.get("ready"):
                    return str(state["nats"])
                await asyncio.sleep(_LOOK)
    raise NotUpError(
        f"The deployment did not come up within {_UP_WITHIN:g} s. Its log ends so:\n{_tail(log)}"
    )


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _state(data: Path) -> dict[str, Any]:
    try:
        return json.loads((data / "up.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}


class ClerkProcess:
    """The runner's process: what it says is passed on, and if it dies another takes its place."""

    def __init__(self, url: str, root: Path, say: Callable[[str], None], note: Callable[[str], None]) -> None:
        self._url = url
        self._root = root
        self._say = say
        self._note = note
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._deaths = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.licence_headers.clerk"),
            *("--root", str(self._root), "--with-parent"),
            stdin=asyncio.subprocess.PIPE,  # when this closes, the clerk ends: it must not outlive the demo
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "UPCALL_NATS_URL": self._url},
            start_new_session=True,
        )
        self._watching = asyncio.create_task(self._watch(self._process))

    async def end(self) -> None:
        """End it, as at the end of a day."""
        watching, self._watching = self._watching, None
        if watching:
            watching.cancel()
        if self._process:
            await _end(self._process)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        async for line in process.stdout:
            self._say(line.decode(errors="replace").rstrip())
        code = await process.wait()
        self._deaths += 1
        if self._deaths > _DEATHS_MAX:
            self._note(f"process {process.pid} died ({_how(code)}), and no other is started any more")
            return
        self._note(f"process {process.pid} died ({_how(code)}), and another takes its place")
        await self.start()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_WITHIN)
    except TimeoutError:
        process.kill()
        await process.wait()


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
