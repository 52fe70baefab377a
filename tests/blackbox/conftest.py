"""Deployments to test against, and a fresh plain connection for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from .deployment import Deployment
from .sharing import shared
from .wire import Wire

QUICK = {
    "INSTANCES": "2",
    "UPCALL_CANCEL_GRACE_MS": "1000",
    "UPCALL_QUEUE_MS": "3000",
    "UPCALL_MAX_HOLD_MS": "3000",
    "UPCALL_LEASE_MS": "2000",
}
"""Waits that a person would notice, made short; two instances of each service."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faults: kills, freezes or empties parts of a deployment of its own")


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One deployment with default settings and two instances of each service, shared by all tests that leave
    it alive."""
    with shared("default", {"INSTANCES": "2"}, tmp_path_factory) as up:
        yield up


@pytest.fixture(scope="session")
def quick_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One deployment with two instances of each service and short waits."""
    with shared("quick", QUICK, tmp_path_factory) as up:
        yield up


@pytest.fixture(scope="session")
def _crashable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    up = Deployment(tmp_path_factory.mktemp("crashable") / "data", {"INSTANCES": "1"})
    try:
        yield up.start()
    finally:
        up.stop()


@pytest.fixture
def crashable(_crashable: Deployment) -> Deployment:
    """A deployment that a test may kill, in parts or whole; it is whole again when the next test begins."""
    _crashable.revive()
    return _crashable


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """Start deployments that belong to one test alone, with settings of its choice."""
    started: list[Deployment] = []
    number = itertools.count()

    def start(**settings: str) -> Deployment:
        up = Deployment(tmp_path / f"up{next(number)}" / "data", {"INSTANCES": "1", **settings})
        started.append(up)
        return up.start()

    try:
        yield start
    finally:
        for up in started:
            up.stop()


@pytest.fixture
def private(deploy: Callable[..., Deployment]) -> Deployment:
    """A deployment with default settings that belongs to one test, whatever that leaves of it."""
    return deploy()


@pytest_asyncio.fixture(loop_scope="function")
async def w(deployment: Deployment) -> AsyncIterator[Wire]:
    """A connection to the shared deployment."""
    wire = await Wire.connect(deployment.nats_url)
    yield wire
    await wire.close()


@pytest_asyncio.fixture(loop_scope="function")
async def quick(quick_deployment: Deployment) -> AsyncIterator[Wire]:
    """A connection to the deployment with two instances and short waits."""
    wire = await Wire.connect(quick_deployment.nats_url)
    yield wire
    await wire.close()


@pytest_asyncio.fixture(loop_scope="function")
async def pw(private: Deployment) -> AsyncIterator[Wire]:
    """A connection to the test's own deployment; it reconnects by itself after a restart."""
    wire = await Wire.connect(private.nats_url)
    yield wire
    await wire.close()


@pytest_asyncio.fixture(loop_scope="function")
async def cw(crashable: Deployment) -> AsyncIterator[Wire]:
    """A connection to the deployment that is killed; it reconnects by itself after a restart."""
    wire = await Wire.connect(crashable.nats_url)
    yield wire
    await wire.close()
