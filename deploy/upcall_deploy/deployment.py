"""All parts of a deployment on one machine: in which order they start and end, and what `up.json` says."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from upcall_deploy import probes
from upcall_deploy.orphans import end_leftovers
from upcall_deploy.ports import HOST, Ports
from upcall_deploy.processes import Part, PartSpec
from upcall_deploy.provision import provision_deployment
from upcall_deploy.servers import nats_part, redis_part
from upcall_deploy.statefile import DirectoryLock, UpState, last_pids
from upcall_shell.settings import ShellSettings


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service: its name in `up.json`, and the command that runs one instance of it."""

    name: str
    command: tuple[str, ...]


def _faststream(application: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "faststream", "run", application)


SERVICES = (
    ServiceSpec("session", _faststream("upcall_session.app:app")),
    ServiceSpec("question_broker", _faststream("upcall_question_broker.app:app")),
    ServiceSpec("reporter", _faststream("upcall_reporter.app:app")),
)

Say = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the person who starts it decides."""

    data: Path
    nats_port: int | None = None
    redis_port: int | None = None
    instances: int = 1


class Deployment:
    """nats-server, Valkey and the services on 127.0.0.1, with everything they keep in one directory."""

    def __init__(self, options: Options, services: Sequence[ServiceSpec], say: Say) -> None:
        """Take the directory and choose the ports; InUseError and PortInUseError say what is in the way."""
        self._data = options.data.resolve()
        self._services = services
        self._instances = options.instances
        self._say = say
        self._began = time.monotonic()
        (self._data / "logs").mkdir(parents=True, exist_ok=True)
        self._file = self._data / "up.json"
        self._lock = DirectoryLock(self._data)
        self._lock.take()
        marks = [str(self._data), *(" ".join(service.command[1:]) for service in services)]
        end_leftovers(last_pids(self._file), marks)
        self._ports = Ports(self._data / "ports.json")
        self._nats = self._part(nats_part(self._data, self._ports.give("nats", options.nats_port)))
        self._redis = self._part(redis_part(self._data, self._ports.give("redis", options.redis_port)))
        self._instances_of = {service.name: self._make_instances(service) for service in services}
        self._ports.remember()
        self._serving = False
        self._write_state()

    @property
    def nats_url(self) -> str:
        """Where clients connect."""
        return self._nats.spec.url

    @property
    def redis_url(self) -> str:
        """Where the services' Redis is."""
        return self._redis.spec.url

    @property
    def parts(self) -> list[Part]:
        """Every process, in the order in which they start."""
        return [self._nats, self._redis, *self._service_parts()]

    async def start(self) -> None:
        """Return when every part is ready; ProvisioningError if the streams can't be what they must be."""
        self._nats.start()
        self._redis.start()
        await self._nats.until_ready()
        self._tell_changes(await provision_deployment(ShellSettings(nats_url=self.nats_url)))
        await self._redis.until_ready()
        for part in self._service_parts():
            part.start()
        await asyncio.gather(*(part.until_ready() for part in self._service_parts()))
        self._serving = True
        self._write_state()
        self._say("upcall", f"ready after {time.monotonic() - self._began:.1f} s")
        self._say("upcall", f"NATS   {self.nats_url}")
        self._say("upcall", f"Redis  {self.redis_url}")
        self._say("upcall", f"data   {self._data} (state in up.json, logs in logs/)")

    async def stop(self) -> None:
        """End the services first, so that they finish what they have in hand, then Redis, then NATS."""
        self._serving = False
        self._write_state()
        await asyncio.gather(*(part.end() for part in self._service_parts()))
        await self._redis.end()
        await self._nats.end()
        self._write_state()
        self._lock.release()

    def kill(self) -> None:
        """End everything this instant."""
        self._serving = False
        for part in self.parts:
            part.kill()
            part.pid = None
        self._write_state()

    def _service_parts(self) -> list[Part]:
        return [part for parts in self._instances_of.values() for part in parts]

    def _make_instances(self, service: ServiceSpec) -> list[Part]:
        return [self._part(self._instance(service, number)) for number in range(1, self._instances + 1)]

    def _instance(self, service: ServiceSpec, number: int) -> PartSpec:
        name = f"{service.name}-{number}"
        port = self._ports.give(name)
        return PartSpec(
            name=name,
            kind=service.name,
            command=service.command,
            port=port,
            url=f"http://{HOST}:{port}",
            probe=probes.service_is_ready,
            environment={
                **os.environ,
                "UPCALL_NATS_URL": self.nats_url,
                "UPCALL_REDIS_URL": self.redis_url,
                "UPCALL_HTTP_PORT": str(port),
                "PYTHONUNBUFFERED": "1",
            },
        )

    def _part(self, spec: PartSpec) -> Part:
        log = self._data / "logs" / f"{spec.name}.log"
        return Part(spec, log, say=self._say, changed=self._part_changed)

    def _part_changed(self, part: Part) -> None:
        if part in (self._nats, self._redis) and not part.ready:
            # It may be back before the next look at the services, and they may not.
            for dependent in self._service_parts():
                dependent.doubt()
        self._write_state()

    def _write_state(self) -> None:
        ready = self._serving and all(part.ready for part in self.parts)
        pids = {
            "nats": self._nats.pid,
            "redis": self._redis.pid,
            **{name: [part.pid for part in parts if part.pid] for name, parts in self._instances_of.items()},
        }
        UpState(nats=self.nats_url, redis=self.redis_url, ready=ready, pids=pids).write(self._file)

    def _tell_changes(self, lines: Sequence[str]) -> None:
        created = [line for line in lines if line.endswith(": created")]
        for line in lines:
            if line not in created:
                self._say("provision", line)
        if created:
            self._say("provision", f"{len(created)} streams and consumers created")
