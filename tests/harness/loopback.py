"""A tiny scripted HTTP server on this machine, for tests of the clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Seen:
    """One request as the server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


Handler = Callable[[Seen], Awaitable[web.StreamResponse]]


@dataclass
class Loopback:
    """Where the server is and what it has seen."""

    url: str
    seen: list[Seen] = field(default_factory=list)


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[Loopback]:
    """Serve every path by `handler` on an ephemeral port."""
    state = Loopback("")

    async def handle(request: web.Request) -> web.StreamResponse:
        seen = Seen(
            request.method, request.path, {k.lower(): v for k, v in request.headers.items()}, await request.read()
        )
        state.seen.append(seen)
        return await handler(seen)

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    state.url = f"http://127.0.0.1:{port}"
    try:
        yield state
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serve_closing() -> AsyncIterator[Loopback]:
    """A server that reads a little and closes every connection without an answer."""
    state = Loopback("")

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        state.seen.append(Seen("", "", {}, b""))
        writer.close()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()


def script(answers: Iterable[web.StreamResponse | Callable[[], web.StreamResponse]]) -> Handler:
    """Give the answers one after another; the last one (given as a function) for ever."""
    queue = list(answers)

    async def handle(seen: Seen) -> web.StreamResponse:
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        return answer() if callable(answer) else answer

    return handle


def answer(value: Any, status: int = 200, **headers: str) -> web.Response:
    """A JSON answer."""
    return web.Response(text=json.dumps(value), status=status, content_type="application/json", headers=headers)


def refusing_url() -> str:
    """A URL on this machine where nothing listens (the reserved port 1)."""
    return "http://127.0.0.1:1"
