"""/healthz (the process lives), /readyz (it can serve) and /metrics, over HTTP."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], Awaitable[dict[str, bool]]]


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the application's own stop ends it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HealthServer:
    """Serves the health of a process; `check` says for each dependency whether it can be used."""

    def __init__(self, host: str, port: int, check: Check) -> None:
        self._check = check
        config = uvicorn.Config(
            self._app, host=host, port=port, log_config=None, lifespan="off", loop="none", interface="asgi3"
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to serve."""
        self._task = asyncio.create_task(self._server.serve())

    async def stop(self) -> None:
        """End."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, kind, body = await self._answer(scope["path"])
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str) -> tuple[int, str, bytes]:
        match path:
            case "/healthz":
                return 200, "application/json", b'{"ok":true}'
            case "/readyz":
                checks = await self._check()
                good = all(checks.values())
                return (
                    200 if good else 503,
                    "application/json",
                    json.dumps({"ok": good, "checks": checks}).encode(),
                )
            case "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest()
            case _:
                return 404, "text/plain", b"see /healthz, /readyz and /metrics\n"
