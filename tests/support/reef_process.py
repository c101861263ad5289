"""A real `reef serve -c serve.local.yaml` on a free port, for tests that need Reef itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PROJECT_ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 180.0


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
    example `{"training.options.learning-rate": "0.01"}`.
    """

    state_dir: Path
    model_path: Path
    groups: int = 2
    rollouts: int = 2
    scenario: str = "test-scenario"
    token: str = "test-token"
    options: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_port())
    _process: subprocess.Popen[bytes] | None = None

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
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT_ROOT), os.environ.get("PYTHONPATH", "")])),
        }

    def command(self, *extra: str) -> list[str]:
        settings = [part for name, value in self.options.items() for part in (f"--{name}", value)]
        serve = ["-c", "from reef.cli import main; raise SystemExit(main())", "serve"]
        return [sys.executable, *serve, "-c", str(PROJECT_ROOT / "serve.local.yaml"), *settings, *extra]

    def start(self) -> None:
        """Return when the scenario is loaded and admits requests."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        known = (self.state_dir / "artifacts.git").exists()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=PROJECT_ROOT, env=self.environ(), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._wait_for("the service answers", self._healthy)
        self._wait_for("the scenario is loaded", lambda: self._loaded(known))
        self._wait_for("the scenario admits requests", lambda: self.scenario_status()["inference_admission"]["open"])

    def stop(self) -> None:
        """End it as a user would, with SIGTERM."""
        if self._process is None:
            return
        children = descendants(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        kill_all(children)
        self._process = None

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is None:
            return
        children = descendants(self._process.pid)
        self._process.kill()
        kill_all(children)
        self._process.wait(timeout=10)
        self._process = None

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Any call with the token and the scenario header."""
        return httpx.request(
            method,
            self.url + path,
            json=body,
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

        self._wait_for(f"{count} committed steps", served, timeout_s)
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
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"reef ended with {self._process.returncode}:\n{self._log_tail()}")
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

    def _wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except (httpx.TransportError, KeyError):
                pass
            if time.monotonic() >= deadline:
                raise AssertionError(f"{what}: not within {timeout_s:g} s\n{self._log_tail()}")
            time.sleep(0.1)

    def _log_tail(self) -> str:
        logs = [self.log, *sorted((self.state_dir / "stack").rglob("*.log"))]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-6000:]}" for path in logs if path.exists())


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def descendants(pid: int) -> list[int]:
    """The ids of all processes below one, children first."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found, frontier = [], [pid]
    while frontier:
        children = [child for child, parent in parents.items() if parent in frontier]
        found += children
        frontier = children
    return found


def kill_all(pids: Sequence[int]) -> None:
    """SIGKILL each id that still exists, and wait until it is gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
