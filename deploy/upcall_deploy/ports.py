"""Free ports of 127.0.0.1, and the same ones again the next time."""

import fcntl
import json
import os
import random
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from upcall_deploy.statefile import write_atomically

HOST = "127.0.0.1"
# Below the range from which Linux (32768) and macOS (49152) take the ports of outgoing connections: while a
# server is down, a client that tries to reach it there could otherwise be given that very port for itself,
# connect to itself, and keep the server from coming back.
CANDIDATES = range(20000, 32000)
SOON_S = 1.0


_reserved: dict[int, int] = {}
"""The ports that this process has reserved, and the files whose locks say so, as long as it lives."""


class PortInUseError(Exception):
    """A port that was asked for is taken; the message names it and says what to do."""


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server that are still being closed don't count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Keep a port from all others of this user who ask here; False if one of them has it.

    What is to listen there may take seconds to start, or be down for a while, and then the port looks free.
    """
    if port in _reserved:
        return True
    directory = Path(tempfile.gettempdir()) / f"upcall-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    file = os.open(directory / str(port), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    _reserved[port] = file
    return True


class Ports:
    """Gives each part of a deployment its port: the one asked for, else the last one, else a free one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last = _read(file)
        self._given: dict[str, int] = {}

    def give(self, name: str, wanted: int | None = None) -> int:
        """The port of the part of this name; PortInUseError if the one asked for is taken."""
        last = self._last.get(name)
        if last is not None and wanted in (None, last):
            # What an earlier start left there may be about to end.
            _until_free(last)
        if wanted is not None and not is_free(wanted):
            raise PortInUseError(
                f"port {wanted} of {HOST} is in use, so {name} can't have it: name another, or none, or stop "
                "what listens there"
            )
        port = wanted or last
        if port is None or port in self._given.values() or (port != wanted and not _to_be_had(port)):
            port = self._any()
        _reserve(port)
        self._given[name] = port
        return port

    def remember(self) -> None:
        """Keep what was given for the next start."""
        write_atomically(self._file, {**self._last, **self._given})

    def _any(self) -> int:
        taken = {*self._given.values(), *self._last.values(), *_reserved}
        for port in random.sample(CANDIDATES, len(CANDIDATES)):
            if port not in taken and _to_be_had(port):
                return port
        raise PortInUseError(f"no port of {HOST} from {CANDIDATES.start} to {CANDIDATES.stop} is free")


def _to_be_had(port: int) -> bool:
    return is_free(port) and _reserve(port)


def _until_free(port: int) -> None:
    deadline = time.monotonic() + SOON_S
    while not is_free(port) and time.monotonic() < deadline:
        time.sleep(0.02)


def _read(file: Path) -> Mapping[str, int]:
    try:
        return {str(name): int(port) for name, port in json.loads(file.read_text()).items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}
