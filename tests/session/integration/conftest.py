"""Deployments with two instances of each service, and plain connections to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.blackbox.conftest import QUICK
from tests.blackbox.deployment import Deployment
from tests.blackbox.sharing import shared
from tests.blackbox.wire import Wire


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The one with default settings, which all tests that leave it alive share."""
    with shared("default", {"INSTANCES": "2"}, tmp_path_factory) as up:
        yield up


@pytest.fixture(scope="session")
def quick_standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The one with short waits."""
    with shared("quick", QUICK, tmp_path_factory) as up:
        yield up


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One to kill the parts of."""
    deployment = Deployment(tmp_path_factory.mktemp("session") / "data", {"INSTANCES": "2"})
    try:
        yield deployment.start()
    finally:
        deployment.stop()


async def _connected(up: Deployment) -> AsyncIterator[Wire]:
    up.wait_ready()
    wire = await Wire.connect(up.nats_url)
    yield wire
    await wire.close()


@pytest.fixture
async def w(standing: Deployment) -> AsyncIterator[Wire]:
    """A connection to the shared one."""
    async for wire in _connected(standing):
        yield wire


@pytest.fixture
async def quick(quick_standing: Deployment) -> AsyncIterator[Wire]:
    """A connection to the one with short waits."""
    async for wire in _connected(quick_standing):
        yield wire


@pytest.fixture
async def cw(up: Deployment) -> AsyncIterator[Wire]:
    """A connection to the one that is killed."""
    async for wire in _connected(up):
        yield wire
