"""The main job as a user starts it (`python -m guidance_ttt.launch`), on free ports and with a tiny policy model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.reef_process import PROJECT_ROOT, free_port

RUN_TIMEOUT_S = 420.0


@dataclass
class MainJob:
    """One state directory; each `run` is a whole launch with its own services.

    `model_path` None is the profile's own model and settings, not the tiny ones.
    """

    folder: Path
    model_path: Path | None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def run_dir(self) -> Path:
        return self.state_dir / "guidance-run"

    def environ(self, **more: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GUIDANCE_", "FRONTIERCS_"))}
        return {
            **clean,
            **self._tiny_settings(),
            "GUIDANCE_STATE_DIR": str(self.state_dir),
            "GUIDANCE_JUDGE_URL": f"http://127.0.0.1:{free_port()}",
            "GUIDANCE_EXECUTOR_URL": f"http://127.0.0.1:{free_port()}/v1",
            "GUIDANCE_REEF_PORT": str(free_port()),
            "GUIDANCE_ENVIRONMENT": "local",
            **self.settings,
            **more,
        }

    def _tiny_settings(self) -> dict[str, str]:
        if self.model_path is None:
            return {}
        config = self.folder / "serve.test.yaml"
        if not config.exists():
            text = (PROJECT_ROOT / "serve.local.yaml").read_text(encoding="utf-8")
            for old, new in (
                ("max_tokens: 128", "max_tokens: 16"),
                ("seq_length: 1024", "seq_length: 8192"),
                ("lora_rank: 32", "lora_rank: 4"),
                ("lora-rank: 32", "lora-rank: 4"),
            ):
                assert old in text, old
                text = text.replace(old, new)
            config.write_text(text, encoding="utf-8")
        return {
            "GUIDANCE_CONFIG": str(config),
            "GUIDANCE_MODEL": "tiny-guide",
            "GUIDANCE_MODEL_PATH": str(self.model_path),
            "GUIDANCE_LEARNING_RATE": "1e-2",
        }

    def start(self, **more: str) -> subprocess.Popen[str]:
        """Start a launch in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "guidance_ttt.launch"],
            cwd=PROJECT_ROOT,
            env=self.environ(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, **more: str) -> tuple[int, str]:
        """A whole launch: exit status and output."""
        return finish(self.start(**more))

    def progress(self) -> int:
        """How many lines all journals hold: one for each thing that a run has done for good."""
        journals = (self.run_dir / "rollouts").glob("step-*.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in journals)

    def read(self, name: str) -> dict[str, Any]:
        """One of the run's JSON files."""
        content: dict[str, Any] = json.loads((self.run_dir / name).read_text(encoding="utf-8"))
        return content

    def journal(self, step: int) -> list[dict[str, Any]]:
        """The records of one step, counted from 1."""
        text = (self.run_dir / "rollouts" / f"step-{step:06d}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]


def finish(process: subprocess.Popen[str], timeout_s: float = RUN_TIMEOUT_S) -> tuple[int, str]:
    """Wait for a launch; one that does not end in time is killed and fails the test with its output."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the launch did not end within {timeout_s:g} s:\n{output}") from None
    return process.returncode, output
