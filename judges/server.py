"""The HTTP side of every judge: four endpoints, JSON only, and an orderly end.

Nothing a client sends may stop the server: bad requests are 4xx with `error` and `hint`, the queue is bounded, bodies
are bounded, and an unexpected exception is a 500 that leaves everything else running.  `serve_alone` is all that a
judge of one file needs to be served.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from judges.dispatch import RETRY_AFTER_S, Dispatcher
from judges.errors import AddressInUse, JudgeError
from judges.protocol import BadSubmission, Judge
from judges.store import SubmissionStore
from judges.upload import BODY_BYTES, CODE_BYTES, read_upload

DEFAULT_QUEUE_LIMIT = 1024
MAX_UPLOADS = 128
"""Submissions that may be on their way in at once, each of which holds up to the largest body in memory."""
_SID = re.compile(r"[0-9a-f]{32}")
_LOG = logging.getLogger("judges")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(judge: Judge, dispatcher: Dispatcher, store: SubmissionStore) -> web.Application:
    """The application, ready to be served; the dispatcher must have been started."""
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[_json_errors])
    app.add_routes(_Endpoints(judge, dispatcher, store).routes())
    return app


@web.middleware
async def _json_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Turn every error into a JSON object, so that a client never has to parse a page."""
    try:
        return await handler(request)
    except BadSubmission as bad:
        headers = {"Retry-After": str(RETRY_AFTER_S)} if bad.status in (429, 503) else None
        return web.json_response({"error": bad.error, "hint": bad.hint}, status=bad.status, headers=headers)
    except web.HTTPException as error:
        hint = "endpoints: POST /submit, GET /result/<sid>, GET /problems, GET /health"
        return web.json_response({"error": error.reason, "hint": hint}, status=error.status)
    except Exception as error:
        _LOG.exception("%s %s failed", request.method, request.path)
        return web.json_response(
            {"error": f"internal error: {type(error).__name__}", "hint": "see the log"}, status=500
        )


class _Endpoints:
    def __init__(self, judge: Judge, dispatcher: Dispatcher, store: SubmissionStore) -> None:
        self._judge = judge
        self._dispatcher = dispatcher
        self._store = store
        self._uploads = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/submit", self.submit),
            web.get("/result/{sid}", self.result),
            web.get("/problems", self.problems),
            web.get("/health", self.health),
        ]

    async def submit(self, request: web.Request) -> web.Response:
        if self._uploads >= MAX_UPLOADS:
            raise BadSubmission(f"{MAX_UPLOADS} submissions are being sent already", "submit again later", status=503)
        self._uploads += 1
        try:
            upload = await read_upload(request)
        finally:
            self._uploads -= 1
        if upload.pid not in self._judge.problems:
            known = ", ".join(self._judge.problems)
            raise BadSubmission(f"unknown pid {upload.pid[:40]!r}", f"known problems: {known}")
        lang = self._judge.language(upload.lang)
        return web.json_response({"sid": await self._dispatcher.submit(upload.pid, lang, upload.code)})

    async def result(self, request: web.Request) -> web.Response:
        sid = request.match_info["sid"]
        record = await self._dispatcher.stored(self._store.read, sid) if _SID.fullmatch(sid) else None
        if record is None:
            return web.json_response({"status": "unknown", "error": f"no submission {sid[:64]!r}"}, status=404)
        times = {"queueSeconds": round(record.queue_s, 3), "runSeconds": round(record.run_s, 3)}
        if record.result is None:
            return web.json_response({"status": record.state, **times})
        return web.json_response({**record.result, **times})

    async def problems(self, _: web.Request) -> web.Response:
        return web.json_response({"problems": [{"id": problem} for problem in self._judge.problems]})

    async def health(self, _: web.Request) -> web.Response:
        about: dict[str, Any] = {"ok": True, "judge": self._judge.name, **self._judge.describe()}
        about |= {
            "queued": self._dispatcher.queued,
            "running": self._dispatcher.running,
            "workers": self._dispatcher.workers,
            "queue_limit": self._dispatcher.queue_limit,
            "code_bytes_limit": CODE_BYTES,
        }
        return web.json_response(about)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `AddressInUse` naming the port and the cure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is already in use; stop the program that uses it or choose another with --port"
            ) from error
        raise JudgeError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    except OverflowError as error:
        listener.close()
        raise JudgeError(f"port {port} is outside 0..65535; choose another with --port") from error
    return listener


async def serve(
    judge: Judge,
    store: SubmissionStore,
    listener: socket.socket,
    *,
    workers: int,
    queue_limit: int = DEFAULT_QUEUE_LIMIT,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT, then kill running candidates, keep their submissions, and give everything back.

    `ready` is called once, with one line that names the address.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    dispatcher = Dispatcher(judge, store, workers=workers, queue_limit=queue_limit)
    await dispatcher.start()
    runner = web.AppRunner(build_app(judge, dispatcher, store), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        host, port = listener.getsockname()[:2]
        ready(f"judge {judge.name} listens on http://{host}:{port} with {workers} worker(s)")
        await stop.wait()
    finally:
        await dispatcher.stop()
        await runner.cleanup()
        dispatcher.close()


def serve_alone(judge: Judge, arguments: Sequence[str], *, default_port: int) -> int:
    """Serve a judge that brings its own program file, with the usual options; returns the exit code when it ends."""
    parser = argparse.ArgumentParser(description=f"Serve the judge {judge.name} over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=default_port, help="0 for any free one (default: %(default)s)")
    parser.add_argument("--state-dir", type=Path, default=Path(f"work/{judge.name}-judge"), metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="submissions judged at once (default: 1)")
    parser.add_argument("--queue-limit", type=int, default=DEFAULT_QUEUE_LIMIT, metavar="N")
    options = parser.parse_args(arguments)
    if options.workers < 1 or options.queue_limit < 1:
        parser.error("--workers and --queue-limit must be at least 1")
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    try:
        listener = bind(options.host, options.port)
        try:
            store = SubmissionStore(options.state_dir)
            try:
                asyncio.run(
                    serve(
                        judge,
                        store,
                        listener,
                        workers=options.workers,
                        queue_limit=options.queue_limit,
                        ready=lambda line: print(line, flush=True),
                    )
                )
            finally:
                store.close()
        finally:
            listener.close()
    except JudgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, AddressInUse) else 1
    return 0
