"""What a running deployment keeps in its data directory about itself: `up.json`, and the lock."""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class InUseError(Exception):
    """Another `up` holds this data directory; the message says which."""


@dataclass(slots=True)
class UpState:
    """`up.json`: where the servers are, whether all is ready, and which process is which.

    A part that is not running at the moment has no pid: null for the two servers, none in a service's list.
    """

    nats: str
    redis: str
    ready: bool = False
    pids: dict[str, Any] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Put it there in one step, so that a reader sees the old or the new state and nothing between."""
        write_atomically(
            file, {"nats": self.nats, "redis": self.redis, "ready": self.ready, "pids": self.pids}
        )


def write_atomically(file: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(content) + "\n")
    draft.replace(file)


def last_pids(file: Path) -> list[int]:
    """The pids that an earlier `up` left in its state; none if it ended as it should."""
    try:
        values = json.loads(file.read_text())["pids"].values()
    except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
        return []
    flat = [pid for value in values for pid in (value if isinstance(value, list) else [value])]
    return [pid for pid in flat if isinstance(pid, int)]


class DirectoryLock:
    """Held by the one `up` that runs on a data directory; the kernel lets go of it when that process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = os.open(directory / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)

    def take(self) -> None:
        """Take it, or InUseError."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode().strip() or "unknown"
            os.close(self._descriptor)
            raise InUseError(
                f"{self._directory} is in use by another `up` (pid {holder}): end that one, or name another "
                "directory with --data"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go of it; ending the process does the same."""
        os.close(self._descriptor)
