"""A nats-server of its own for each test that asks for one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from upcall_deploy.jetstream_api import JetStreamApi, connected
from upcall_deploy.ports import Ports
from upcall_deploy.processes import Part
from upcall_deploy.servers import nats_part
from upcall_shell.settings import ShellSettings


@pytest.fixture
async def nats_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Part]:
    monkeypatch.setenv("UPCALL_SYNC_INTERVAL", "2m")
    spec = nats_part(tmp_path, Ports(tmp_path / "ports.json").give("nats"))
    part = Part(spec, tmp_path / "nats.log", say=lambda *_: None, changed=lambda _: None)
    part.start()
    async with asyncio.timeout(10):
        await part.until_ready()
    yield part
    await part.end()


@pytest.fixture
async def api(nats_server: Part) -> AsyncIterator[JetStreamApi]:
    async with connected(ShellSettings(nats_url=nats_server.spec.url), patience=5) as api:
        yield api
