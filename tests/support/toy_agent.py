"""A Harbor agent that writes one number, or misbehaves in the way it is told to."""

from __future__ import annotations

import json
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from harness.trajectory import RolloutRecord, SubmissionRecord, TrajectoryTotals, build_trajectory

_NOW = "2026-01-01T00:00:00+00:00"


class ToyAgent(BaseAgent):  # type: ignore[misc]
    """Writes `answer` to /workspace/answer.txt; `command` runs first (to plant things, or to take too long)."""

    SUPPORTS_ATIF = True

    def __init__(self, *args: Any, answer: int = 42, command: str = "true", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answer = answer
        self._command = command

    @staticmethod
    def name() -> str:
        """As Harbor lists it."""
        return "toy-agent"

    def version(self) -> str:
        """As Harbor records it."""
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        """Record what the agent can see before it starts."""
        seen = await environment.exec("pwd; cat /workspace/seed.txt; ls /tests /solution 2>&1; echo $TOY")
        (self.logs_dir / "setup.txt").write_text(seen.stdout or "")

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Do as told, then write the answer."""
        await environment.exec(self._command)
        await environment.exec(f"echo {self._answer} > /workspace/answer.txt")
        context.n_input_tokens, context.n_output_tokens = 10, 3
        rollout = RolloutRecord(1, 0, 0, "receipt-1", "Try 42.", "root", "valid", 42.0, 0.42, 10, 3, _NOW)
        document = build_trajectory(
            session_id=self.session_id or "toy",
            trajectory_id=str(self.context_id),
            agent_name=self.name(),
            agent_version=self.version(),
            model_name="toy/model",
            instruction=instruction,
            rollouts=[rollout],
            submission=SubmissionRecord("/workspace/answer.txt", "entry-1", "0" * 64, 42.0, _NOW),
            totals=TrajectoryTotals(prompt_tokens=10, completion_tokens=3),
        )
        (self.logs_dir / "trajectory.json").write_text(json.dumps(document, allow_nan=False))
