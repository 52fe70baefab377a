"""A deployment with two instances of each service, and a plain connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.blackbox.deployment import Deployment
from tests.blackbox.wire import Wire

SETTINGS = {"INSTANCES": "2", "UPCALL_CANCEL_GRACE_MS": "1000", "UPCALL_SYNC_INTERVAL": "2m"}
"""These tests kill processes and not the machine, so nothing needs a flush."""


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("session") / "data", SETTINGS)
    try:
        yield deployment.start()
    finally:
        deployment.stop()


@pytest.fixture
async def w(up: Deployment) -> AsyncIterator[Wire]:
    up.wait_ready()
    wire = await Wire.connect(up.nats_url)
    yield wire
    await wire.close()
