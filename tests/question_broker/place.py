"""Real servers and real brokers for the tests: started once, killed and started again as a test says."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from upcall_deploy import probes
from upcall_deploy.orphans import tie_child
from upcall_deploy.ports import HOST, Ports
from upcall_deploy.processes import PartSpec
from upcall_deploy.provision import provision_deployment
from upcall_deploy.servers import nats_part, redis_part
from upcall_shell.settings import ShellSettings

READY_S = 60.0

SETTINGS = {
    "UPCALL_LOG_LEVEL": "WARNING",
    "UPCALL_RETRY_MS": "50,100,200",
    "UPCALL_MAX_QUESTIONS_PER_RUN": "20",
}


class Process:
    """One process of the place: a server, or an instance of the broker."""

    def __init__(self, spec: PartSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.spec.url

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.spec.environment),
                preexec_fn=tie_child(),  # noqa: PLW1509  one prctl, and no thread of ours is running yet
            )

    @property
    def runs(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections, and says nothing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)
            self._popen.wait(READY_S)

    def _send(self, number: signal.Signals) -> None:
        if self._popen is not None:
            self._popen.send_signal(number)

    async def until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not await self.spec.probe(self.spec.port):
            assert self.runs, f"{self.spec.name} has ended:\n{self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{self.spec.name} is not ready"
            await asyncio.sleep(0.02)


class Place:
    """nats-server, Valkey and brokers on ports of their own, with their files in one directory."""

    def __init__(self, directory: Path, brokers: int, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**SETTINGS, **(settings or {})}
        self._ports = Ports(directory / "ports.json")
        os.environ.setdefault("UPCALL_SYNC_INTERVAL", "2m")
        self.nats = Process(nats_part(directory, self._ports.give("nats")), directory / "nats.log")
        self.redis = Process(redis_part(directory, self._ports.give("redis")), directory / "redis.log")
        self.brokers = [self._broker(number) for number in range(1, brokers + 1)]

    @classmethod
    @contextmanager
    def running(cls, directory: Path, brokers: int) -> "Iterator[Place]":
        """One that runs until the block ends."""
        place = cls(directory, brokers)
        try:
            asyncio.run(place.begin())
            yield place
        finally:
            place.end()

    def _broker(self, number: int) -> Process:
        return self.service(f"broker-{number}", "question_broker")

    def service(self, name: str, kind: str, **environment: str) -> Process:
        """An instance of a service, not yet started; `environment` replaces settings."""
        port = self._ports.give(name)
        spec = PartSpec(
            name=name,
            kind=kind,
            command=(sys.executable, "-m", "faststream", "run", f"upcall_{kind}.app:app"),
            port=port,
            url=f"http://{HOST}:{port}",
            probe=probes.service_is_ready,
            environment={
                **os.environ,
                **self.settings,
                "UPCALL_NATS_URL": self.nats.url,
                "UPCALL_REDIS_URL": self.redis.url,
                "UPCALL_HTTP_PORT": str(port),
                **environment,
            },
        )
        return Process(spec, self.directory / f"{name}.log")

    @property
    def parts(self) -> list[Process]:
        return [self.nats, self.redis, *self.brokers]

    async def begin(self) -> None:
        """Everything up, provisioned and ready."""
        await self.again(self.nats, self.redis)
        await provision_deployment(ShellSettings(nats_url=self.nats.url))
        await self.again(*self.brokers)

    async def again(self, *parts: Process) -> None:
        """Start what does not run of these parts, and wait until all parts are ready."""
        for part in parts:
            if not part.runs:
                part.start()
        await self.nats.until_ready()
        await self.redis.until_ready()
        await asyncio.gather(*[b.until_ready() for b in self.brokers if b.runs])

    def end(self) -> None:
        for part in reversed(self.parts):
            part.resume()
            part.kill()
