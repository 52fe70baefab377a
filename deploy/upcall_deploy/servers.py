"""How the two servers of a deployment on one machine are run."""

import json
import os
import re
from pathlib import Path

from upcall_deploy import binaries, probes
from upcall_deploy.ports import HOST
from upcall_deploy.processes import PartSpec

MAX_PAYLOAD = 4 * 1024 * 1024
"""An inbox item holds a text and its data; bodies of commands are limited to much less."""
DEFAULT_SYNC_INTERVAL = "always"
"""docs/decisions/0001-sync-interval.md says why."""


class SyncIntervalError(Exception):
    """UPCALL_SYNC_INTERVAL is neither `always` nor a duration such as `2m`."""


def sync_interval() -> str:
    """How often JetStream flushes to the disk, as UPCALL_SYNC_INTERVAL says."""
    value = os.environ.get("UPCALL_SYNC_INTERVAL") or DEFAULT_SYNC_INTERVAL
    if not re.fullmatch(r"always|[1-9][0-9]*(ms|s|m|h)", value):
        raise SyncIntervalError(
            f"UPCALL_SYNC_INTERVAL is {value!r}: give always, or a duration such as 2m or 500ms"
        )
    return value


def nats_part(data: Path, port: int) -> PartSpec:
    """nats-server with JetStream, its store in <data>/nats."""
    store = data / "nats"
    store.mkdir(parents=True, exist_ok=True)
    configuration = store / "nats.conf"
    configuration.write_text(
        f"""\
# Written by every start; what to change is an argument or a setting of `python -m upcall_deploy.up`.
server_name: upcall
listen: "{HOST}:{port}"
max_payload: {MAX_PAYLOAD}
jetstream {{
  store_dir: {json.dumps(str(store))}
  sync_interval: {json.dumps(sync_interval())}
}}
"""
    )
    return PartSpec(
        name="nats",
        kind="nats",
        command=(str(binaries.nats_server()), "-c", str(configuration)),
        port=port,
        url=f"nats://{HOST}:{port}",
        probe=probes.nats_answers,
        environment=os.environ,
    )


def redis_part(data: Path, port: int) -> PartSpec:
    """Valkey, its append-only file in <data>/redis flushed every second: all it holds is in the log too."""
    directory = data / "redis"
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "bind": HOST,
        "port": str(port),
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    return PartSpec(
        name="redis",
        kind="redis",
        command=(str(binaries.valkey_server()), *arguments),
        port=port,
        url=f"redis://{HOST}:{port}/0",
        probe=probes.redis_answers,
        environment=os.environ,
    )
