"""A real Reef service with serve.local.yaml on a free port, for tests that need Reef itself.

It is started as a user starts it (`reef serve`, half a minute) or, given a zygote, as a fork (two seconds).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from support.faults import FIFO_VARIABLE, Fault
from support.processes import alive, descendants, kill_all, kill_tree, wait_gone
from support.reef_zygote import PROJECT_ROOT, TEST_PATHS, ReefZygote

CONFIG = PROJECT_ROOT / "serve.local.yaml"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
TINY_OPTIONS = {
    "training.options.learning-rate": "0.01",
    "training.options.lora-rank": "4",
    "training.options.lora-alpha": "4",
}
"""Settings with which a tiny model visibly learns in one step."""

INJECTED = Path(__file__).with_name("injected")


@dataclass
class Reply:
    """A chat answer and the receipt it is reported under."""

    receipt: str
    body: dict[str, Any]

    @property
    def text(self) -> str:
        text: str = self.body["choices"][0]["message"]["content"]
        return text


@dataclass
class ReefProcess:
    """Start with `start()`, end with `stop()` or `kill()`; both leave no process behind.

    The same object can be started again on the same state directory.  `options` are extra command-line settings, for
    example `{"training.options.learning-rate": "0.01"}`.  Temporary files go into the state directory.
    """

    state_dir: Path
    model_path: Path
    groups: int = 2
    rollouts: int = 2
    scenario: str = "test-scenario"
    token: str = "test-token"
    options: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_port())
    zygote: ReefZygote | None = None
    _process: subprocess.Popen[bytes] | None = None
    _pid: int | None = None
    _known: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.state_dir / "reef.log"

    def environ(self) -> dict[str, str]:
        """What serve.local.yaml reads, on top of the test's own environment."""
        return {
            **os.environ,
            "GUIDANCE_STATE_DIR": str(self.state_dir),
            "GUIDANCE_MODEL_PATH": str(self.model_path),
            "GUIDANCE_SCENARIO": self.scenario,
            "GUIDANCE_REEF_PORT": str(self.port),
            "GUIDANCE_REEF_TOKEN": self.token,
            "GUIDANCE_GROUPS": str(self.groups),
            "GUIDANCE_ROLLOUTS": str(self.rollouts),
            "GUIDANCE_RUN_SEED": "0",
            "GUIDANCE_LEARNING_RATE": "2e-4",
            "OMP_WAIT_POLICY": "PASSIVE",
            "TMPDIR": str(self.temporary_dir),
            FIFO_VARIABLE: str(self._fifo),
            "PYTHONPATH": os.pathsep.join([*map(str, TEST_PATHS), str(INJECTED), *_current_python_path()]),
        }

    @property
    def temporary_dir(self) -> Path:
        return self.state_dir / "tmp"

    @property
    def _fifo(self) -> Path:
        return self.state_dir / "faults.fifo"

    def arguments(self, *extra: str) -> list[str]:
        """What `reef` is called with."""
        settings = [part for name, value in self.options.items() for part in (f"--{name}", value)]
        return ["serve", "-c", str(CONFIG), *settings, *extra]

    def command(self, *extra: str) -> list[str]:
        """The command line of the service."""
        return [sys.executable, "-c", "from reef.cli import main; raise SystemExit(main())", *self.arguments(*extra)]

    def start(self) -> None:
        """Return when the scenario is loaded and admits requests."""
        self.launch()
        self.await_ready()

    def await_ready(self) -> None:
        """Return when a launched service admits requests; an `AssertionError` shows the log of one that ended."""
        self.wait_until("the service answers", self._healthy)
        self.wait_until("the scenario is loaded", lambda: self._loaded(self._known))
        self.wait_until("the scenario admits requests", lambda: self.scenario_status()["inference_admission"]["open"])

    def launch(self) -> None:
        """Start the process and return at once."""
        self._known = any((self.state_dir / "artifacts.git" / "refs" / "reef").glob("scenarios/*"))
        self.temporary_dir.mkdir(parents=True, exist_ok=True)
        if not self._fifo.exists():
            os.mkfifo(self._fifo)
        if self.zygote is not None:
            self._pid = self.zygote.fork(CONFIG, self.environ(), self.options, self.log)
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=PROJECT_ROOT, env=self.environ(), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._pid = self._process.pid

    def stop(self) -> None:
        """End it as a user would, with SIGTERM."""
        if self._pid is None:
            return
        tree = [self._pid, *descendants(self._pid)]
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        wait_gone([self._pid], STOP_TIMEOUT_S)
        kill_all(tree)
        self._forget()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._pid is None:
            return
        kill_tree(self._pid)
        self._forget()
        self._clear_temporary_files()

    def wait_until_dead(self, timeout_s: float = 60.0) -> None:
        """Return when the service has been killed by a fault; whatever is left of its processes is killed too."""
        assert self._pid is not None
        tree = [self._pid, *descendants(self._pid)]
        self.wait_until("the service is killed", lambda: not alive(tree[0]), timeout_s)
        kill_all(tree)
        self._forget()
        self._clear_temporary_files()

    def arm(self, fault: Fault | None) -> None:
        """Put a fault into the running service; None removes every one again."""
        line = b"\n" if fault is None else fault.to_json().encode() + b"\n"
        done = self._fifo.with_suffix(".done")
        done.unlink(missing_ok=True)

        def sent() -> bool:
            with suppress(OSError):  # nobody listens yet
                descriptor = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
                os.write(descriptor, line)
                os.close(descriptor)
                return True
            return False

        self.wait_until("the service takes the fault", sent)
        self.wait_until("the fault is in", done.exists)

    def _clear_temporary_files(self) -> None:
        """What a power cut leaves in the folder for temporary files is the next boot's to remove."""
        shutil.rmtree(self.temporary_dir, ignore_errors=True)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=10)
        self._process = self._pid = None

    def call(
        self, method: str, path: str, body: Any = None, *, content: str | None = None, **headers: str
    ) -> httpx.Response:
        """Any call with the token and the scenario header; the body is JSON, or `content` as it stands."""
        return httpx.request(
            method,
            self.url + path,
            json=body,
            content=content,
            timeout=120,
            headers={"Authorization": f"Bearer {self.token}", "x-reef-scenario": self.scenario, **headers},
        )

    def chat(self, text: str, **fields: Any) -> Reply:
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": text}],
            "max_completion_tokens": 16,
            **fields,
        }
        response = self.call("POST", "/v1/chat/completions", body)
        assert response.status_code == 200, response.text
        return Reply(response.headers["x-reef-agent-record-id"], response.json())

    def report(
        self, receipt: str, score: float, *, step: int, group: int, rollout: int, **metadata: Any
    ) -> httpx.Response:
        attempt = metadata.get("attempt", 0)
        body = {
            "score": score,
            "references": [receipt],
            "agent_record_id": f"{step}-{attempt}-{group}-{rollout}",
            "metadata": {
                "step": step,
                "group": group,
                "rollout": rollout,
                "groups_per_step": self.groups,
                "rollouts_per_group": self.rollouts,
                "algorithm": "ttt-discover",
                "comparison_set": f"tttd-step-{step}-group-{group}",
                **metadata,
            },
        }
        return self.call("POST", "/reef/report", body)

    def run_step(self, step: int, *, slots: Sequence[tuple[int, int]] | None = None, **metadata: Any) -> None:
        """Sample and report the given slots of a step (all by default); the score is the slot's number."""
        for group, rollout in slots if slots is not None else self.grid():
            reply = self.chat(f"improve candidate {group}", seed=1000 * step + 10 * group + rollout)
            response = self.report(reply.receipt, float(rollout), step=step, group=group, rollout=rollout, **metadata)
            assert response.status_code == 200, response.text

    def die_in_step(self, step: int) -> set[str]:
        """Run a whole step in which a fault kills the service; the step's receipts."""
        replies = [self.chat(f"improve candidate {g}", seed=1000 * step + 10 * g + r) for g, r in self.grid()]
        for (group, rollout), reply in zip(self.grid(), replies, strict=True):
            try:
                answer = self.report(reply.receipt, float(rollout), step=step, group=group, rollout=rollout)
                assert answer.status_code == 200, answer.text
            except httpx.TransportError:
                assert (group, rollout) == self.grid()[-1], "the service died before the grid was complete"
        self.wait_until_dead()
        return {reply.receipt for reply in replies}

    def grid(self) -> list[tuple[int, int]]:
        return [(group, rollout) for group in range(self.groups) for rollout in range(self.rollouts)]

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = self.call("GET", "/reef/status").json()
        return body

    def scenario_status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.status()["scenarios"][self.scenario]
        return status

    def wait_for_steps(self, count: int, timeout_s: float = 90.0) -> dict[str, Any]:
        """The scenario's status once `count` steps are committed and the new weights are served."""

        def served() -> bool:
            status = self.scenario_status()
            return bool(status["scenario_step"] >= count and status["inference_admission"]["open"])

        self.wait_until(f"{count} committed steps", served, timeout_s)
        return self.scenario_status()

    def releases(self) -> list[dict[str, Any]]:
        """Newest first."""
        rows: list[dict[str, Any]] = self.call("GET", f"/reef/scenarios/{self.scenario}/releases").json()["releases"]
        return rows

    def training_block(self, receipt: str) -> dict[str, Any]:
        """The tokens and log-probabilities that Reef recorded for an answer."""
        body = self.call("GET", f"/reef/scenarios/{self.scenario}/records/{receipt}").json()
        block: dict[str, Any] = body.get("record", body)["payload"]["response"]["training"]
        return block

    def probe(self) -> list[float]:
        """Log-probabilities of a fixed greedy answer: they differ exactly when the policy does."""
        reply = self.chat("probe", temperature=0.0, max_completion_tokens=8)
        values: list[float] = self.training_block(reply.receipt)["rollout_log_probs"]
        return values

    def _healthy(self) -> bool:
        self._require_alive()
        try:
            return httpx.get(self.url + "/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def _loaded(self, known: bool) -> bool:
        """Reef answers before it has loaded a known scenario, and asking for it then would collide with the loading."""
        status = self.status()
        if self.scenario in status["scenarios"]:
            return True
        if known and not status["preload_errors"]:
            return False
        return self.call("POST", "/reef/scenarios", {"name": self.scenario}).status_code in (200, 201)

    def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        """Poll; a service that cannot be reached just now counts as not yet."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except (httpx.TransportError, KeyError):
                self._require_alive()
            if time.monotonic() >= deadline:
                raise AssertionError(f"{what}: not within {timeout_s:g} s\n{self._log_tail()}")
            time.sleep(0.1)

    def _require_alive(self) -> None:
        if self._pid is not None and not alive(self._pid):
            raise AssertionError(f"reef ended:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        logs = [self.log, *sorted((self.state_dir / "stack").rglob("*.log"))]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-6000:]}" for path in logs if path.exists())


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _current_python_path() -> list[str]:
    return list(filter(None, [os.environ.get("PYTHONPATH", "")]))
