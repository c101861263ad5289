"""The judge's own process on a GPU: it runs inside the jail, beside the process of the candidate that it started.

Two processes can share GPU memory only within one jail, so the checking and timing of `bench` happens here.  The
candidate's process has the same user; this one cannot be traced or read by it, holds the only connection to the judge,
and keeps what it compares against in memory of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from judges.trimul.cases import Case, Rules
from judges.trimul.host import boot_argv, explain, prepare_environment
from judges.trimul.wire import Link, connect

_PR_SET_DUMPABLE = 4


def main(arguments: list[str]) -> None:
    """Carry out one order of the judge and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", type=Path, required=True)
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--path", required=True)
    options = parser.parse_args(arguments)
    prepare_environment(options.device)
    judge = connect(options.link)
    order = judge.receive().header
    try:
        report = _carry_out(order, options)
    except BaseException as error:
        judge.send({"fault": explain(error)})
    else:
        judge.send({"report": report})
    sys.stdout.flush()
    # Not waiting for threads: there is nothing left to do, and the jail ends with this process.
    os._exit(0)


def _carry_out(order: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from judges.trimul.bench import CandidateFault, Session
    from judges.trimul.timing import latency_us

    if options.device != "cpu":
        torch.cuda.set_device(torch.device(options.device))
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.init()  # type: ignore[no-untyped-call]
    _hide()
    shared = Path("/tmp/shared")
    shared.mkdir(exist_ok=True)
    ours, theirs = socket.socketpair()
    _start_host(theirs, shared, options)
    tests, benchmarks = ([Case(**values) for values in order[name]] for name in ("tests", "benchmarks"))
    session = Session(
        link=Link(ours),
        device=options.device,
        shared=shared,
        deadline=time.monotonic() + order["budget_s"],
        rules=Rules(order["quirks"]),
    )
    report: dict[str, Any] = {"stage": "import", "tests": len(tests), "benchmarks": [], "failure": None}
    session.expect_ready()
    overheads = session.overheads_us(benchmarks)
    try:
        session.load()
        report["stage"] = "tests"
        session.check_all(tests)
        report["stage"] = "benchmarks"
        report["benchmarks"] = session.time_all(benchmarks, overheads, order["seed"])
    except CandidateFault as fault:
        return {**report, "failure": str(fault)}
    if benchmarks:
        report["latency_us"] = latency_us([benchmark["mean_us"] for benchmark in report["benchmarks"]])
    return {**report, "stage": "done"}


def _hide() -> None:
    """No process of the same user may trace this one or open its files."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) failed")


def _start_host(theirs: socket.socket, shared: Path, options: argparse.Namespace) -> None:
    root, *site = options.path.split(":")
    argv = boot_argv(sys.executable, "host", root, tuple(site), "--descriptor", str(theirs.fileno()))
    argv += ("--shared", str(shared), "--submission", str(options.submission), "--device", options.device)
    subprocess.Popen(argv, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
    theirs.close()
