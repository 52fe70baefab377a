"""One part of a deployment: a process that is started, watched, started again when it dies, and ended."""

import asyncio
import os
import signal
import subprocess
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from upcall_deploy.orphans import tie_child
from upcall_deploy.probes import Probe

RAPID_S = 5.0
"""A process that lived shorter than this died rapidly, and the next start waits longer."""
POLL_UNREADY_S = 0.03
POLL_READY_S = 1.0
LOG_LIMIT = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartSpec:
    """What there is to know about a part before it runs."""

    name: str
    kind: str
    """`nats`, `redis`, or the name of the service that this is an instance of."""
    command: tuple[str, ...]
    port: int
    url: str
    probe: Probe
    environment: Mapping[str, str]
    end_patience: float = 25.0
    """Seconds from SIGTERM to SIGKILL; a service may take 20 for what it has in hand."""


def restart_delay(rapid_deaths: int, was_ready: bool) -> float:
    """Seconds until the next start after this many rapid deaths in a row.

    The first comes back at once. One that never got ready will hardly do better soon, so it waits longest.
    """
    if rapid_deaths <= 1 and was_ready:
        return 0.0
    return min(0.1 * 2.0 ** max(0, rapid_deaths - 1), 1.0 if was_ready else 5.0)


class Part:
    """Keeps one process running. `pid` and `ready` tell how it is; `changed` is called when one changes."""

    def __init__(
        self,
        spec: PartSpec,
        log: Path,
        *,
        say: Callable[[str, str], None],
        changed: "Callable[[Part], None]",
    ) -> None:
        self.spec = spec
        self.pid: int | None = None
        self.ready = False
        self._was_ready = False
        self._log = log
        self._say = say
        self._changed = changed
        self._first_ready = asyncio.Event()
        self._ending = asyncio.Event()
        self._doubted = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to keep it running; `task` ends with `end()`, or with an error of ours."""
        _rotate(self._log)
        self.task = asyncio.create_task(self._keep_running(), name=self.spec.name)

    async def until_ready(self) -> None:
        """Return when it has been ready for the first time."""
        await self._first_ready.wait()

    def doubt(self) -> None:
        """Something it stands on has died: it counts as not ready until it has answered anew."""
        self.ready = False
        self._doubted.set()

    async def end(self) -> None:
        """End it: SIGTERM, and SIGKILL for what is left of its process group after its patience."""
        self._ending.set()
        self._signal(signal.SIGTERM)
        if self.task is None:
            return
        done, _ = await asyncio.wait({self.task}, timeout=self.spec.end_patience)
        if not done:
            self._say(self.spec.name, f"has not ended within {self.spec.end_patience:.0f} s: killed")
            self.kill()
            await asyncio.wait({self.task})

    def kill(self) -> None:
        """SIGKILL, now, for the whole process group."""
        self._ending.set()
        self._signal(signal.SIGKILL)

    async def _keep_running(self) -> None:
        rapid_deaths = 0
        while not self._ending.is_set():
            started = time.monotonic()
            how = await self._run_once()
            if self._ending.is_set():
                self._changed(self)
                return
            rapid_deaths = rapid_deaths + 1 if time.monotonic() - started < RAPID_S else 0
            delay = restart_delay(rapid_deaths, self._was_ready)
            when = f"in {delay:.1f} s" if delay else "now"
            self._say(self.spec.name, f"{how}, starts again {when}")
            if delay:
                self._changed(self)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), delay)

    async def _run_once(self) -> str:
        """Start it and wait for its end: how it ended."""
        self._was_ready = False
        try:
            process = await self._spawn()
        except (OSError, subprocess.SubprocessError) as error:
            return f"can't be started ({error})"
        self.pid = process.pid
        if self._ending.is_set():
            self._signal(signal.SIGTERM)
        self._changed(self)
        watching = asyncio.create_task(self._watch())
        try:
            code = await process.wait()
        finally:
            watching.cancel()
        # What it may have started itself would hold its port.
        self._signal(signal.SIGKILL)
        self.pid, self.ready = None, False
        return _how_it_ended(code) + (_last_words(self._log) if code > 0 else "")

    async def _spawn(self) -> Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.spec.environment),
                # A group of its own: Ctrl-C in the terminal reaches the supervisor alone.
                process_group=0,
                preexec_fn=tie_child(),
            )

    async def _watch(self) -> None:
        while True:
            answers = await self.spec.probe(self.spec.port)
            if answers != self.ready:
                self._tell(answers)
                self.ready = answers
                if answers:
                    self._was_ready = True
                    self._first_ready.set()
                self._changed(self)
            self._doubted.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._doubted.wait(), POLL_READY_S if self.ready else POLL_UNREADY_S)

    def _tell(self, answers: bool) -> None:
        if answers:
            self._say(self.spec.name, f"ready at {self.spec.url} (pid {self.pid})")
        elif not self._ending.is_set():
            self._say(self.spec.name, "is not ready any more")

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _last_words(log: Path) -> str:
    """The last line of the log, which mostly says why."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 2000))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    # Of a framed error the last line is only its frame.
    spoken = (line.strip(" │") for line in reversed(lines) if any(map(str.isalnum, line)))
    last = next(spoken, "")
    return f' (its log ends: "{last[:160]}")' if last else ""


def _rotate(log: Path) -> None:
    """Keep one older log, so that logs end somewhere."""
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.replace(log.with_name(log.name + ".1"))
