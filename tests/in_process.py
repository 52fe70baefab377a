"""Services in the test's own process, where their spans and their metrics can be looked at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.question_broker.place import Place
from upcall_shell.process import Service


def settings_for(place: Place) -> dict[str, Any]:
    """What every service needs to serve on these servers."""
    return {
        "nats_url": place.nats.url,
        "redis_url": place.redis.url,
        "http_port": 0,
        "log_level": "CRITICAL",
        "figures_ms": 50,
    }


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[Service]:
    """A service from its readiness to its graceful stop."""
    app = service.app()
    await app.start()
    try:
        yield service
    finally:
        await app.stop()
