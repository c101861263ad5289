"""Command line of the offline executor: `python -m executors --task polyomino_packing`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import signal
import sys
from pathlib import Path

from executors.catalogue import Catalogue, CatalogueError

DEFAULT_PORT = 8000
DEFAULT_TASK = "polyomino_packing"
EXIT_CANNOT_START = 2


class CannotStart(Exception):
    """The service cannot start; the message is one line with the cure."""


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m executors",
        description="The offline executor: an OpenAI-compatible service that answers from a catalogue of mechanisms. "
        "It is not a language model.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: this machine only)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free port (default: %(default)s)")
    parser.add_argument("--task", default=DEFAULT_TASK, help="the task to serve (default: %(default)s)")
    parser.add_argument("--catalogue", type=Path, help="catalogue directory (default: harbor/<task>/offline)")
    return parser.parse_args(arguments)


def load_catalogue(task: str, directory: Path | None) -> Catalogue:
    """The task's catalogue; raises `CannotStart`."""
    path = directory or Path(__file__).resolve().parent.parent / "harbor" / task / "offline"
    if directory is None and not path.is_dir():
        raise CannotStart(f"the task {task!r} has no offline catalogue ({path}); use another executor for it")
    try:
        catalogue = Catalogue.load(path)
    except CatalogueError as error:
        raise CannotStart(str(error)) from None
    if catalogue.data.task != task:
        raise CannotStart(f"{path} is the catalogue of {catalogue.data.task!r}, not of {task!r}; check --task")
    return catalogue


async def serve(catalogue: Catalogue, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests end; raises `CannotStart`."""
    from aiohttp import web

    from executors.server import build_app

    runner = web.AppRunner(build_app(catalogue), access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise CannotStart(_bind_failure(error, host, port)) from None
        bound = runner.addresses[0][1]
        count = len(catalogue.data.mechanisms)
        print(
            f"offline executor on http://{host}:{bound}/v1: {count} mechanisms for {catalogue.data.task} "
            f"(rule-based catalogue, not a language model)",
            flush=True,
        )
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await stop.wait()
    finally:
        await runner.cleanup()


def _bind_failure(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; stop what listens there or choose another with --port"
    return f"cannot listen on {host}:{port} ({error.strerror or error}); check --host and --port"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; the exit status is 2 when the service cannot start."""
    options = parse_options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        if not 0 <= options.port <= 65535:
            raise CannotStart(f"--port {options.port} is not a port number; use 0 to 65535")
        catalogue = load_catalogue(options.task, options.catalogue)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(catalogue, options.host, options.port))
    except CannotStart as error:
        print(f"offline executor: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main())
