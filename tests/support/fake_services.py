"""Tiny scripted policy, executor and judge for tests of the search; they count every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.contract import TaskContract
from harness.execution import ExecutionReply
from harness.grid import Grid
from harness.policy import GuidanceReply
from harness.prompts import Prompt
from harness.state import VerdictStatus, VerificationResult

CONTRACT = TaskContract(
    problem_prompt="Write the longest program.",
    solution_language="cpp",
    solution_contract="One complete C++17 program.",
    mechanism_constraint="Use only the input.",
    objective="Raise the length.",
    raw_score_label="length",
)


def malformed(seed: int) -> str:
    """A policy's text without a guidance block."""
    return f"let me think about {seed}"


def well_formed(seed: int) -> str:
    """A policy's text with one, different for each seed."""
    return f"<guidance>Add {seed % 97} letters.</guidance>"


class FakeReef:
    """Policy and training service in one: a step is committed once its whole grid is reported.

    Reports are idempotent by their id; the same id with another body is refused, as Reef does.
    """

    def __init__(self, grid: Grid, answer: Callable[[int], str] = well_formed) -> None:
        self.grid = grid
        self.answer = answer
        self.load = 0
        self.completed = 0
        self.reports: dict[str, dict[str, Any]] = {}
        self.guide_calls = 0
        self.report_calls = 0
        self.seeds: list[int] = []
        self.prompts: list[Prompt] = []
        self.fault: Exception | None = None

    async def guide(self, prompt: Prompt, *, seed: int) -> GuidanceReply:
        if self.fault is not None:
            raise self.fault
        self.guide_calls += 1
        self.seeds.append(seed)
        self.prompts.append(prompt)
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return GuidanceReply(receipt=f"receipt-{seed}", text=self.answer(seed), finish_reason="stop", usage=usage)

    async def report(self, body: Mapping[str, Any]) -> None:
        self.report_calls += 1
        record = dict(body)
        known = self.reports.setdefault(record["agent_record_id"], record)
        assert known == record, "one report id was used for two different reports"
        step = record["metadata"]["step"]
        key = (step, record["metadata"]["attempt"])
        slots = {
            (r["metadata"]["group"], r["metadata"]["rollout"])
            for r in self.reports.values()
            if (r["metadata"]["step"], r["metadata"]["attempt"]) == key
        }
        if len(slots) == self.grid.size and step == self.completed:
            self.completed += 1
            self.load += 1

    def metrics(self) -> dict[str, Any]:
        step = self.completed - 1
        rewards: dict[int, list[float]] = {}
        attempts = [r["metadata"]["attempt"] for r in self.reports.values() if r["metadata"]["step"] == step]
        for report in self.reports.values():
            if report["metadata"]["step"] == step and report["metadata"]["attempt"] == max(attempts):
                rewards.setdefault(report["metadata"]["group"], []).append(report["score"])
        varied = sum(len(set(values)) > 1 for values in rewards.values())
        signal = 1.0 if varied else 0.0
        return {
            "train/global_batch_size": (varied or 1) * self.grid.rollouts,
            "train/grad_norm": signal,
            "train/lora_trainable_parameters": 100,
            "train/lora_base_trainable_parameters": 0,
            "train/lora_b_nonzero": signal,
            "train/lora_b_l1": signal,
        }

    def status(self, scenario: str) -> dict[str, Any]:
        last = {"step": self.completed, "metrics": self.metrics()} if self.completed else None
        return {
            "error": None,
            "scenarios": {
                scenario: {
                    "scenario_step": self.completed,
                    "current_runtime_load_id": f"load:{self.load}",
                    "inference_admission": {"open": True},
                    "last_committed_step": last,
                    "processor": {"failed_steps": []},
                }
            },
        }


class FakeExecutor:
    """Appends the guidance as a comment to the parent program."""

    def __init__(self, text: Callable[[str, int], str] | None = None) -> None:
        self.calls = 0
        self.fault: Exception | None = None
        self._text = text

    async def complete(self, prompt: Prompt) -> ExecutionReply:
        if self.fault is not None:
            raise self.fault
        self.calls += 1
        user = prompt.messages[-1].content
        guidance = user.split("<guidance>")[-1].split("</guidance>")[0].strip()
        text = (
            self._text(guidance, self.calls)
            if self._text
            else f"<solution>\n```cpp\nint main() {{ return 0; }} // {guidance}\n```\n</solution>\n"
            f"<summary>Follows: {guidance}</summary>"
        )
        return ExecutionReply(
            text=text, reasoning="", finish_reason="stop", usage={}, model="fake", attempts=1, elapsed_s=0.0
        )


class FakeJudge:
    """Scores a program by a number found in it, else by its length."""

    def __init__(self, verdict: Callable[[str], VerificationResult] | None = None) -> None:
        self.calls = 0
        self.fault: Exception | None = None
        self._verdict = verdict

    async def evaluate(self, code: str) -> VerificationResult:
        if self.fault is not None:
            raise self.fault
        self.calls += 1
        if self._verdict is not None:
            return self._verdict(code)
        score = float(sum(map(ord, code)) % 1000)
        return VerificationResult(score, score, True, VerdictStatus.VALID, "accepted", {})
