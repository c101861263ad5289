"""Starts Reef services in about two seconds, for tests that restart one many times.

Almost all of the half minute that `reef serve` takes is spent importing.  A zygote is a process that has imported
everything a service needs and has done nothing else; each service is a fork of it, which resolves the same file as
`reef serve` does and then runs what `reef serve` runs as its child.

    python -m support.reef_zygote     reads one JSON request per line, answers each with one line: the service's pid
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

PROJECT_ROOT = Path(__file__).resolve().parents[2]
TEST_PATHS = (PROJECT_ROOT, PROJECT_ROOT / "tests")


class ReefZygote:
    """A zygote process; it and every service forked from it end with this process at the latest."""

    def __init__(self) -> None:
        self._lock = Lock()
        paths = [*map(str, TEST_PATHS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.reef_zygote"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "HF_HUB_OFFLINE": "1",
                "OPENBLAS_NUM_THREADS": "1",  # it would start threads at import, and threads do not survive a fork
            },
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fork(self, config: Path, environ: Mapping[str, str], overrides: Mapping[str, str], log: Path) -> int:
        """Start a service and return its process id."""
        request = {"config": str(config), "environ": dict(environ), "overrides": dict(overrides), "log": str(log)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the Reef zygote ended with {self._process.wait(timeout=10)}")
        return int(answer)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)


@functools.cache
def shared_zygote() -> ReefZygote:
    """The one zygote of this test process."""
    zygote = ReefZygote()
    atexit.register(zygote.close)
    return zygote


def main() -> None:
    # What the service's child process would import, at start or with its first request.
    import peft
    import reef.service.assembly
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen3.modeling_qwen3
    from reef.service.deploy import run_service

    import tttd.local.assembly
    import tttd.recipe

    assert all((peft, transformers, reef.service.assembly, run_service, tttd.local.assembly, tttd.recipe))
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"a process with {threads} threads cannot be forked safely"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended services are collected by the kernel
    services: list[int] = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _serve(json.loads(line))
        services.append(pid)
        print(pid, flush=True)
    for pid in services:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _serve(request: Mapping[str, Any]) -> None:
    """Become the service; never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["environ"])
        tempfile.tempdir = None  # imports may have asked for it with the zygote's environment
        status = _run(Path(request["config"]), request["overrides"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(config_file: Path, overrides: dict[str, str]) -> int:
    import yaml
    from reef.service.deploy import load_config, run_service
    from reef.service.deploy.orchestrator import resolve_deployment_config
    from support import faults

    if faults.FIFO_VARIABLE in os.environ:
        os.environ[faults.ROOT_VARIABLE] = str(os.getpid())
        faults.listen()
    config, _ = resolve_deployment_config(load_config(config_file, interpolate_env=False), overrides, config_file)
    run_dir = Path(config["run_dir"])
    run_dir.mkdir(parents=True, exist_ok=True)
    resolved = run_dir / "runtime.yaml"
    resolved.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return run_service(resolved)


if __name__ == "__main__":
    main()
