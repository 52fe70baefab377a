"""No process outlives the supervisor, not even when that is killed with -9."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal when its parent ends. Linux only; elsewhere nothing."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, int(signal_number))


def tie_child() -> Callable[[], None]:
    """What a child runs between fork and exec, so that it ends when this process does."""
    parent = os.getpid()

    def between_fork_and_exec() -> None:
        die_with_parent()
        if os.getppid() != parent:
            # It ended before the line above; nobody would send the signal any more.
            os._exit(1)

    return between_fork_and_exec


def end_leftovers(pids: Sequence[int], marks: Sequence[str], patience: float = 2.0) -> None:
    """Wait until what an earlier supervisor left is gone, and kill what the kernel has not ended.

    Only processes whose command line holds one of the `marks` are ours: a pid may have a new owner.
    """
    ours = [pid for pid in pids if any(mark in command_line(pid) for mark in marks)]
    killed_at = time.monotonic() + patience / 2 if _libc is not None else 0.0
    deadline = time.monotonic() + patience
    while ours and time.monotonic() < deadline:
        if time.monotonic() > killed_at:
            for pid in ours:
                _kill(pid)
        time.sleep(0.02)
        ours = [pid for pid in ours if any(mark in command_line(pid) for mark in marks)]


def command_line(pid: int) -> str:
    """The command of a process, its parts joined by spaces; empty if there is no such process."""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    listed = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout


def _kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
