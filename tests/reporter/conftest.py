"""The reporter's deployment, and silence."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from .deployment import Deployment, deployment


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(
        processors=[lambda *_: ""],
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    yield
    structlog.configure(**before)


@pytest.fixture
async def d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployment]:
    """A deployment without services; P is open in its log."""
    monkeypatch.setenv("UPCALL_SYNC_INTERVAL", "2m")
    async with deployment(tmp_path) as made:
        yield made
