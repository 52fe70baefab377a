"""Brings up everything on one machine: a real nats-server, a real Valkey, provisioning, and all services.

    python -m upcall_deploy.up --data .upcall

Runs until Ctrl-C or SIGTERM, and starts again what dies. `<data>/up.json` says where all is and whether it is
ready. Settings of the services (`UPCALL_…`) pass through from the environment.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from upcall_deploy.binaries import BinaryNotFoundError
from upcall_deploy.deployment import SERVICES, Deployment, Options, ServiceSpec
from upcall_deploy.jetstream_api import ApiError, NotReadyError
from upcall_deploy.orphans import die_with_parent
from upcall_deploy.ports import PortInUseError
from upcall_deploy.provision import ProvisioningError
from upcall_deploy.servers import SyncIntervalError
from upcall_deploy.statefile import InUseError

DEFAULT_DATA = ".upcall"
MAX_INSTANCES = 16
ONE_PRESS_S = 0.25
"""Signals this close together are one: timeout(1), for example, sends its own twice."""
# Our own words for what a person can mend; everything else is a fault of ours, and shows its traceback.
EXPECTED = (
    ApiError,
    BinaryNotFoundError,
    InUseError,
    NotReadyError,
    PermissionError,
    PortInUseError,
    ProvisioningError,
    SyncIntervalError,
)


async def run(options: Options, services: Sequence[ServiceSpec] = SERVICES) -> int:
    """Bring it up and keep it up until a signal ends it; the exit code."""
    width = max(len(name) + 2 for name in ("provision", *(service.name for service in services)))
    try:
        deployment = Deployment(options, services, lambda name, text: _say(f"{name:<{width}} | {text}"))
    except EXPECTED as error:
        print(f"upcall: {error}", file=sys.stderr)
        return 2
    stopping = asyncio.Event()
    _on_signals(_stop_or_kill(stopping, deployment))
    try:
        await _until(stopping, deployment)
        code = 0
    except EXPECTED as error:
        print(f"upcall: {error}", file=sys.stderr)
        code = 1
    finally:
        await deployment.stop()
    _say("upcall: ended" if code == 0 else "upcall: failed")
    return code


async def _until(stopping: asyncio.Event, deployment: Deployment) -> None:
    """Start it, then wait for the signal; an error of any task of ours comes through."""
    stop = asyncio.create_task(stopping.wait())
    start = asyncio.create_task(deployment.start())
    try:
        await asyncio.wait({stop, start}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            tasks = [part.task for part in deployment.parts if part.task]
            done, _ = await asyncio.wait({stop, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        stop.cancel()
        start.cancel()
        with suppress(asyncio.CancelledError):
            await start


def _stop_or_kill(stopping: asyncio.Event, deployment: Deployment) -> Callable[[], None]:
    first: list[float] = []

    def on_signal() -> None:
        now = time.monotonic()
        if first and now - first[0] < ONE_PRESS_S:
            return
        if first:
            deployment.kill()
            os._exit(130)
        first.append(now)
        _say("upcall: ending (once more: at once)")
        stopping.set()

    return on_signal


def _on_signals(action: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Ignored on purpose by who started us: nohup, for one.
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, action)


def _say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Nobody reads any more, which is no reason to stop serving.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends


def _instances(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_INSTANCES:
        raise argparse.ArgumentTypeError(f"INSTANCES is {text!r}: give a number from 1 to {MAX_INSTANCES}")
    return number


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m upcall_deploy.up",
        description="A real nats-server, a real Valkey and Upcall's services on this machine, until Ctrl-C.",
        epilog="Environment: UPCALL_… settings pass through to the services; UPCALL_SYNC_INTERVAL (always) "
        "is how often JetStream flushes to disk.",
    )
    parser.add_argument(
        "--data", metavar="DIR", type=Path, default=Path(DEFAULT_DATA), help="where all is kept"
    )
    parser.add_argument(
        "--nats-port", metavar="PORT", type=int, help="default: the last one, else a free one"
    )
    parser.add_argument(
        "--redis-port", metavar="PORT", type=int, help="default: the last one, else a free one"
    )
    parser.add_argument(
        "--instances",
        metavar="N",
        type=_instances,
        default=os.environ.get("INSTANCES") or "1",
        help="of each service (env INSTANCES)",
    )
    parser.add_argument(
        "--with-parent", action="store_true", help="end when the process that started it ends"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, services: Sequence[ServiceSpec] = SERVICES) -> int:
    """0: ended as asked. 1: could not come up. 2: could not begin (directory or port taken, for example)."""
    options = _arguments(arguments)
    if options.with_parent:
        die_with_parent(signal.SIGTERM)
    return asyncio.run(
        run(Options(options.data, options.nats_port, options.redis_port, options.instances), services)
    )


if __name__ == "__main__":
    sys.exit(main())
