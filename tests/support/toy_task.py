"""A complete Harbor task of a few lines: write 42 into a file."""

from __future__ import annotations

from pathlib import Path

_TASK = """
schema_version = "1.3"
artifacts = ["/workspace/answer.txt", "/workspace/extra"]
[task]
name = "toy/answer"
[agent]
timeout_sec = {agent_timeout_s}
[verifier]
timeout_sec = 30.0
{verifier}
[environment]
build_timeout_sec = 60.0
cpus = 1
memory_mb = 256
network_mode = "{network_mode}"
{environment}
"""

_GRADE = """
import json, pathlib, urllib.request
out = pathlib.Path("/logs/verifier")
try:
    reward = 1.0 if int(pathlib.Path("/workspace/answer.txt").read_text()) == 42 else 0.0
except (OSError, ValueError):
    reward = 0.0
url = {judge_url!r}
if url:
    (out / "judge.txt").write_text(urllib.request.urlopen(url, timeout=10).read().decode())
(out / "reward.json").write_text(json.dumps({{"reward": reward}}))
"""

_COMPOSE = """
services:
  main:
    environment:
      GUIDANCE_TOY_URL: ${GUIDANCE_TOY_URL:-http://host.docker.internal:8081}
"""


def write_toy_task(
    directory: Path,
    *,
    agent_timeout_s: float = 30.0,
    allowed_host: str | None = None,
    judge_url: str = "",
    compose: bool = False,
    separate_verifier: bool = False,
) -> Path:
    """Write the task's files and return its directory."""
    task = directory / "toy-task"
    for name in ("environment", "tests", "solution"):
        (task / name).mkdir(parents=True)
    text = _TASK.format(
        agent_timeout_s=agent_timeout_s,
        verifier='environment_mode = "separate"' if separate_verifier else "",
        network_mode="allowlist" if allowed_host else "no-network",
        environment=f'allowed_hosts = ["{allowed_host}"]' if allowed_host else "",
    )
    (task / "task.toml").write_text(text)
    (task / "instruction.md").write_text("Write 42 to /workspace/answer.txt.\n")
    (task / "environment/Dockerfile").write_text("FROM scratch\nWORKDIR /workspace\nCOPY seed.txt .\nENV TOY=yes\n")
    (task / "environment/seed.txt").write_text("seed\n")
    if compose:
        (task / "environment/docker-compose.yaml").write_text(_COMPOSE)
        (task / "environment/.env").write_text("GUIDANCE_TOY_URL=http://host.docker.internal:8081\n")
    (task / "solution/solve.sh").write_text("#!/bin/bash\necho 42 > /workspace/answer.txt\n")
    # Deliberately without `rm -f /logs/verifier/reward.*`: the environment alone has to deal with planted files.
    (task / "tests/test.sh").write_text("#!/bin/bash\nexec python3 -I /tests/grade.py\n")
    (task / "tests/grade.py").write_text(_GRADE.format(judge_url=judge_url))
    return task
