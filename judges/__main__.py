"""Starts a judge: `python -m judges polyomino --port 8081 --state-dir DIR`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from judges.registry import JUDGES, judge_command

EXIT_FAILED = 1
EXIT_ADDRESS = 2
EXIT_INTERRUPTED = 130
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8081


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The command line, with the own options of the chosen judge only; nothing heavy is imported for `--help`."""
    parser = argparse.ArgumentParser(prog="python -m judges", description="Serve one task's judge over HTTP.")
    judges = parser.add_subparsers(dest="judge", required=True, metavar="JUDGE")
    for name, entry in JUDGES.items():
        subparser = judges.add_parser(name, help=entry.help)
        _add_server_options(subparser)
        if name == chosen:
            judge_command(name).add_options(subparser)
    return parser


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port, 0 for any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=Path("work/judge"),
        metavar="DIR",
        help="where submissions, results and generated cases are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=None,
        metavar="N",
        help="submissions judged at once (default: half the cores, because time limits need free cores)",
    )
    parser.add_argument("--queue-limit", type=int, default=None, metavar="N", help="submissions that may wait")
    parser.add_argument(
        "--unsafe",
        action="store_true",
        help="run candidates without isolation when no sandbox works here; for throw-away machines only",
    )


def default_workers() -> int:
    """Half the cores this process may use, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = build_parser(next((name for name in arguments if name in JUDGES), None))
    options = parser.parse_args(arguments)
    if options.workers is None:
        options.workers = default_workers()
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    if options.queue_limit is not None and options.queue_limit < 1:
        parser.error(f"--queue-limit must be at least 1, got {options.queue_limit}")
    from judges.errors import AddressInUse, JudgeError

    # Until the server runs and stops in order by itself, a termination unwinds like Ctrl-C, so that nothing is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _serve(options)
    except AddressInUse as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ADDRESS
    except JudgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _serve(options: argparse.Namespace) -> None:
    import asyncio
    import logging

    from judges.sandbox import Tier, open_sandbox
    from judges.server import DEFAULT_QUEUE_LIMIT, bind, serve
    from judges.store import SubmissionStore

    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    # The address first: it is the most likely thing to be wrong and the cheapest to try.
    listener = bind(options.host, options.port)
    try:
        store = SubmissionStore(options.state_dir)
        try:
            with open_sandbox(allow_unsafe=options.unsafe) as sandbox:
                judge = judge_command(options.judge).open_judge(options, sandbox)
                # A judge that times programs on one device cannot share it.
                workers = min(options.workers, getattr(judge, "max_workers", None) or options.workers)
                if sandbox.tier is not Tier.CGROUP:
                    print(
                        f"warning: sandbox tier is {sandbox.tier.value}; {_WEAKNESS[sandbox.tier.value]}",
                        file=sys.stderr,
                    )
                suite = judge.describe().get("suite")

                def announce(line: str) -> None:
                    print(f"{line}, sandbox tier {sandbox.tier.value}, case set {suite}", flush=True)

                asyncio.run(
                    serve(
                        judge,
                        store,
                        listener,
                        workers=workers,
                        queue_limit=options.queue_limit or DEFAULT_QUEUE_LIMIT,
                        ready=announce,
                    )
                )
        finally:
            store.close()
    finally:
        listener.close()


_WEAKNESS = {
    "rlimit": "memory and CPU time are limited per process, not for a program as a whole",
    "unsafe": "candidates run without isolation and can read and write what this user can",
}


if __name__ == "__main__":
    sys.exit(main())
