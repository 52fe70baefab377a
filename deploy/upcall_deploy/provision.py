"""Makes the streams and consumers of a NATS deployment what the contracts say they are.

    python -m upcall_deploy.provision --nats nats://127.0.0.1:4222

It can be run at any time, and again: it changes only what differs, says what (one line a change), and never
deletes a message, a stream or a consumer. Everything is looked at before anything is changed; where one
difference can't be mended in place, nothing is changed at all, and the error says what to do.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from upcall_contracts.streams import CONSUMERS, STREAMS
from upcall_deploy.differences import (
    Difference,
    consumer_differences,
    stream_differences,
    stream_hindrance,
)
from upcall_deploy.jetstream_api import (
    CONSUMER_NOT_FOUND,
    DEFAULT_PATIENCE,
    STREAM_NOT_FOUND,
    ApiError,
    JetStreamApi,
    NotReadyError,
    connected,
)
from upcall_shell.settings import ShellSettings


class StreamLike(Protocol):
    """A stream as the contracts define it."""

    @property
    def name(self) -> str:
        """What JetStream calls it."""
        ...

    def config(self, replicas: int) -> dict[str, Any]:
        """The configuration as JetStream's API takes it."""
        ...


class ConsumerLike(StreamLike, Protocol):
    """A durable consumer as the contracts define it."""

    @property
    def stream(self) -> str:
        """The stream it reads."""
        ...


class ProvisioningError(Exception):
    """Differences that can't be mended in place; each line says what to do.

    `done` holds the lines of what was changed before; empty where the look beforehand found the difference.
    """

    def __init__(self, message: str, done: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.done = tuple(done)


@dataclass(frozen=True, slots=True)
class Change:
    """One request to JetStream that is needed, and the lines that tell of it."""

    subject: str
    body: dict[str, Any]
    lines: tuple[str, ...]


async def provision(
    api: JetStreamApi,
    streams: Iterable[StreamLike],
    consumers: Iterable[ConsumerLike],
    *,
    replicas: int = 1,
    only_look: bool = False,
) -> list[str]:
    """Create and update what differs; the lines of what was changed (or, with only_look, would be)."""
    streams, consumers = list(streams), list(consumers)
    changes, problems = await _plan(api, streams, consumers, replicas)
    if problems:
        raise ProvisioningError("\n".join(problems))
    if only_look:
        return [line for change in changes for line in change.lines]
    done: list[str] = []
    try:
        for change in changes:
            await _carry_out(api, change)
            done += change.lines
        await _verify(api, streams, consumers, replicas)
    except ProvisioningError as error:
        raise ProvisioningError(str(error), done) from error
    return done


async def _plan(
    api: JetStreamApi, streams: Sequence[StreamLike], consumers: Sequence[ConsumerLike], replicas: int
) -> tuple[list[Change], list[str]]:
    changes: list[Change] = []
    problems: list[str] = []
    for stream in streams:
        change, hindrances = await _plan_stream(api, stream, replicas)
        changes += [change] if change else []
        problems += hindrances
    for consumer in consumers:
        change = await _plan_consumer(api, consumer, replicas)
        changes += [change] if change else []
    return changes, problems


async def _plan_stream(
    api: JetStreamApi, stream: StreamLike, replicas: int
) -> tuple[Change | None, list[str]]:
    wanted = stream.config(replicas=replicas)
    what = f"stream {stream.name}"
    info = await api.find(f"STREAM.INFO.{stream.name}", STREAM_NOT_FOUND)
    if info is None:
        return Change(f"STREAM.CREATE.{stream.name}", wanted, (f"{what}: created",)), []
    differences = stream_differences(info["config"], wanted)
    if not differences:
        return None, []
    now = datetime.now(UTC)
    hindrances = [
        f"{what}: {difference}: this {hindrance}"
        for difference in differences
        if (hindrance := stream_hindrance(difference, info, now))
    ]
    return Change(f"STREAM.UPDATE.{stream.name}", wanted, _told(what, differences)), hindrances


async def _plan_consumer(api: JetStreamApi, consumer: ConsumerLike, replicas: int) -> Change | None:
    wanted = consumer.config(replicas=replicas)
    what = f"consumer {consumer.name} of {consumer.stream}"
    address = f"{consumer.stream}.{consumer.name}"
    info = await api.find(f"CONSUMER.INFO.{address}", CONSUMER_NOT_FOUND)
    body = {"stream_name": consumer.stream, "config": wanted, "action": "update" if info else "create"}
    if info is None:
        return Change(f"CONSUMER.CREATE.{address}", body, (f"{what}: created",))
    differences = consumer_differences(info["config"], wanted)
    return Change(f"CONSUMER.CREATE.{address}", body, _told(what, differences)) if differences else None


def _told(what: str, differences: Sequence[Difference]) -> tuple[str, ...]:
    return tuple(f"{what}: {difference}" for difference in differences)


async def _carry_out(api: JetStreamApi, change: Change) -> None:
    try:
        await api.request(change.subject, change.body)
    except ApiError as error:
        raise ProvisioningError(
            f"{'; '.join(change.lines)}: JetStream refuses: {error.description} ({error.code}); "
            f"{_advice(change.subject)}, and run provisioning again"
        ) from error


def _advice(subject: str) -> str:
    kind, _, *address = subject.split(".")
    if kind == "STREAM":
        return "set it back, or change it by hand"
    return (
        "set it back, or, with the services stopped, remove the consumer "
        f"(`nats consumer rm {' '.join(address)}`: it then reads its stream from the beginning, which the "
        "services are made for)"
    )


async def _verify(
    api: JetStreamApi, streams: Sequence[StreamLike], consumers: Sequence[ConsumerLike], replicas: int
) -> None:
    """JetStream ignores some changes without a word (a durable's, for one): say so instead."""
    changes, _ = await _plan(api, streams, consumers, replicas)
    if changes:
        lines = "; ".join(line for change in changes for line in change.lines)
        raise ProvisioningError(f"JetStream accepted the change and still differs: {lines}")


async def provision_deployment(
    settings: ShellSettings,
    *,
    replicas: int = 1,
    only_look: bool = False,
    patience: float = DEFAULT_PATIENCE,
) -> list[str]:
    """Provision everything that the contracts define, on the NATS that the settings name."""
    async with connected(settings, patience=patience) as api:
        return await provision(api, STREAMS, CONSUMERS, replicas=replicas, only_look=only_look)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m upcall_deploy.provision",
        description="Create and update Upcall's streams and consumers. Safe to run again at any time.",
        epilog="Credentials and TLS are those of the services: UPCALL_NATS_USER and UPCALL_NATS_PASSWORD, "
        "UPCALL_NATS_TLS_CA, _CERT and _KEY.",
    )
    parser.add_argument("--nats", metavar="URL", help="default: UPCALL_NATS_URL, else nats://127.0.0.1:4222")
    parser.add_argument(
        "--replicas",
        metavar="N",
        type=int,
        choices=(1, 3, 5),
        default=os.environ.get("UPCALL_NATS_REPLICAS", "1"),
        help="copies of each stream on a cluster: 1, 3 or 5 (env UPCALL_NATS_REPLICAS)",
    )
    parser.add_argument("--check", action="store_true", help="only look; exit 1 if something would change")
    parser.add_argument(
        "--wait", metavar="S", type=float, default=DEFAULT_PATIENCE, help="seconds, for JetStream"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all is as it should be. 1: with --check, something is not. 2: it can't be made so."""
    options = _arguments(arguments)
    settings = ShellSettings(**({"nats_url": options.nats} if options.nats else {}))
    try:
        lines = asyncio.run(
            provision_deployment(
                settings,
                replicas=options.replicas,
                only_look=options.check,
                patience=options.wait,
            )
        )
    except ProvisioningError as error:
        print("\n".join([*error.done, f"provisioning failed: {error}"]), file=sys.stderr)
        return 2
    except (ApiError, NotReadyError) as error:
        print(f"provisioning failed: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines) or "nothing to change")
    return 1 if options.check and lines else 0


if __name__ == "__main__":
    sys.exit(main())
