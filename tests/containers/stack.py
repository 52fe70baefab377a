"""A deployment in containers, as deploy/compose.yaml makes it, and what tests do to it."""

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from testcontainers.compose import DockerCompose

from upcall_deploy import permissions
from upcall_deploy.ports import Ports

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
SERVICES = ("session", "question_broker", "reporter")
IMAGES = {
    "BASE_IMAGE": "upcall-test/python:3.11",
    "NATS_IMAGE": "upcall-test/nats:local",
    "REDIS_IMAGE": "upcall-test/redis:local",
    "UPCALL_IMAGE": "upcall-test/upcall:local",
}
"""What .ci/images.sh makes; the environment may name others."""

USERS = """
[[operator]]
user = "operator"
password_env = "UPCALL_NATS_OPERATOR_PASSWORD"

[[agents]]
user = "agents"
password_env = "UPCALL_NATS_AGENTS_PASSWORD"

[[harness]]
user = "shop"
sessions = ["shop-lead"]
password_env = "UPCALL_NATS_SHOP_PASSWORD"

[[runner]]
user = "shop-runner"
agents = ["explorer"]
password_env = "UPCALL_NATS_RUNNER_PASSWORD"
"""
EVERYONE = '  { user: "everyone", password: $UPCALL_NATS_EVERYONE_PASSWORD }\n]\n'
"""May be anyone: contract tests play every part over one connection."""

QUICK = {
    "UPCALL_SYNC_INTERVAL": "2m",
    "UPCALL_CANCEL_GRACE_MS": "1000",
    "UPCALL_LEASE_MS": "2000",
}


class Stack:
    """The containers of one project of Compose."""

    def __init__(self, directory: Path, *overrides: str, **settings: str) -> None:
        self.project = f"{os.environ.get('UPCALL_TEST_PREFIX', 'upcall-test')}-{secrets.token_hex(4)}"
        self._directory = directory
        config = directory / "nats"
        shutil.copytree(DEPLOY / "nats", config)
        users = permissions.users(USERS).removesuffix("]\n") + EVERYONE
        (config / "parts" / "users.conf").write_text(users)
        # Read by other users' processes in the containers.
        for path in [directory, config, *config.rglob("*")]:
            path.chmod(0o755)
        lines = permissions.passwords(permissions.accounts() + users)
        self.passwords = dict(line.split("=", 1) for line in lines.splitlines())
        self._env_file = directory / "env"
        self._env_file.write_text(lines)
        ports = Ports(directory / "ports.json")
        self.ports = [ports.give(f"nats-{number}") for number in (1, 2, 3)]
        self.environment = {
            **IMAGES,
            **QUICK,
            "COMPOSE_PROJECT_NAME": self.project,
            "DOCKER_BUILDKIT": "0",
            "UPCALL_ENV_FILE": str(self._env_file),
            "UPCALL_NATS_CONFIG": str(config),
            "UPCALL_NATS_PORT": str(self.ports[0]),
            "UPCALL_NATS_PORT_2": str(self.ports[1]),
            "UPCALL_NATS_PORT_3": str(self.ports[2]),
            **settings,
            **{name: os.environ[name] for name in IMAGES if name in os.environ},
        }
        self._files = ["compose.yaml", *overrides]
        self.compose = DockerCompose(
            DEPLOY,
            self._files,
            wait=True,
            env_file=str(self._env_file),
        )

    @contextmanager
    def running(self) -> Iterator["Stack"]:
        """Everything started, ready by the health checks; all of it gone afterwards."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            with self.compose:
                yield self
        except subprocess.CalledProcessError as error:
            raise AssertionError(f"{error.stderr}\n{self.logs()}") from error
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def password(self, user: str) -> str:
        """The password of a user of NATS."""
        return self.passwords[f"UPCALL_NATS_{user.removeprefix('shop-').upper()}_PASSWORD"]

    @property
    def urls(self) -> list[str]:
        """Where NATS is, from this machine."""
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    async def connect(self, user: str, **options: Any) -> Client:
        """A connection as a user of NATS."""
        prefix = {} if user in ("everyone", "services") else {"inbox_prefix": permissions.inbox_prefix(user)}

        async def quiet(_: Exception) -> None:
            """What suffers from a server that is killed says so itself."""

        wanted = {
            "user": user,
            "password": self.password(user),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.2,
            "connect_timeout": 5,
            # A server that is paused keeps its connections: only unanswered pings tell.
            "ping_interval": 2,
            "max_outstanding_pings": 2,
            "error_cb": quiet,
            **prefix,
            **options,
        }
        return await nats.connect(wanted.pop("servers", self.urls[0]), **wanted)

    # Containers

    def do(self, *arguments: str) -> str:
        """A command of Compose on this deployment, while it runs: what it printed."""
        files = [part for name in self._files for part in ("--file", str(DEPLOY / name))]
        return docker("compose", "--env-file", str(self._env_file), *files, *arguments)

    def container(self, service: str, number: int = 1) -> str:
        """The name of a service's container."""
        return f"{self.project}-{service}-{number}"

    def kill(self, service: str) -> None:
        """`docker kill`: at once, and nobody starts it again."""
        docker("kill", self.container(service))

    def start(self, service: str) -> None:
        """Start it again."""
        docker("start", self.container(service))

    def restart(self, service: str, number: int = 1) -> None:
        """As a rolling restart does: SIGTERM, its end, a new start, ready again."""
        name = self.container(service, number)
        docker("stop", "--time", "30", name)
        state = docker("inspect", "--format", "{{.State.ExitCode}}", name).strip()
        assert state == "0", f"{name} ended with {state}: {docker('logs', '--tail', '20', name, check=False)}"
        docker("start", name)
        self.until_ready(service, number=number)

    def ready(self, service: str, number: int = 1) -> dict[str, bool]:
        """What /readyz says; empty where nobody answers."""
        ask = "import urllib.request as u, urllib.error as e\ntry: r = u.urlopen('http://127.0.0.1:8080/readyz')"
        ask += "\nexcept e.HTTPError as x: r = x\nprint(r.read().decode())"
        found = docker("exec", self.container(service, number), "python", "-c", ask, check=False)
        return json.loads(found)["checks"] if found.startswith("{") else {}

    def until_ready(self, *services: str, within: float = 30.0, number: int = 1) -> float:
        """Wait until these services are ready; how many seconds it took."""
        began = time.monotonic()
        for service in services:
            while not (checks := self.ready(service, number)) or not all(checks.values()):
                assert time.monotonic() - began < within, (
                    f"{service} not ready: {checks}\n{self.logs(service)}"
                )
                time.sleep(0.2)
        return time.monotonic() - began

    def logs(self, *services: str) -> str:
        """The end of what they said."""
        names = [self.container(service) for service in services or ("nats", "redis", *SERVICES)]
        return "\n".join(f"--- {name}\n{docker('logs', '--tail', '30', name, check=False)}" for name in names)

    @property
    def network(self) -> str:
        """The network that they share."""
        return f"{self.project}_default"


def docker(*arguments: str, check: bool = True, timeout: float = 120) -> str:
    """Run a docker command: what it printed."""
    done = subprocess.run(
        ["docker", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={"DOCKER_BUILDKIT": "0", **os.environ},
    )
    if check and done.returncode:
        raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr}")
    return done.stdout + ("" if check else done.stderr)


def a_directory() -> Path:
    """A directory that the engine can mount, also where it shares no /tmp of this process with pytest."""
    return Path(tempfile.mkdtemp(prefix="upcall-containers-"))
