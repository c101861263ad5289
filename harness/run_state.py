"""Who a state directory belongs to, and how far its run has come.

Two small files: `task-identity.json` binds the directory to the settings that decide what a step *means* (task, models,
grid, learning rate, judge's cases, seed, ...), `resume-state.json` says which step is next.  Settings that only
decide how a step is carried out (ports, time-outs, concurrency, retries) may change between runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.contract import TaskContract
from harness.errors import StateCorrupt, StateMismatch
from harness.prompts import PROMPT_MODE
from harness.storage import read_json_object, write_json

IDENTITY_VERSION = 1
RESUME_FORMAT_VERSION = 1
IDENTITY_FILE = "task-identity.json"
RESUME_FILE = "resume-state.json"
SUBMISSION_FILE = "submission.json"
JUDGE_FIELDS = ("judge_suite", "judge_suite_sha256")
"""The identity's fields that only a running judge can tell."""


def run_identity(config: RunConfig, contract: TaskContract, judge: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that must not change within one state directory, all JSON values.

    `judge` is the judge's own description of itself (suite name and hash).
    """
    backend = config.backend
    return {
        "task": config.task,
        "contract_sha256": contract.content_sha256(),
        "model": config.model_name,
        "executor": backend.name,
        "executor_model": backend.model,
        "executor_temperature": backend.temperature,
        "executor_max_tokens": backend.max_tokens,
        "executor_options_sha256": _sha256(backend.request_options),
        "groups_per_step": config.groups,
        "rollouts_per_group": config.rollouts,
        "guidance_max_tokens": config.max_tokens,
        "sequence_length": config.sequence_length,
        "lora_rank": config.lora_rank,
        "tensor_parallel_size": config.tensor_parallel_size,
        "learning_rate": config.learning_rate,
        "kl_coef": config.kl_coef,
        "prompt_style": config.prompt_style,
        "search_problem": config.judge_problem_id or contract.judge_problem_id,
        "judge_suite": judge.get("suite"),
        "judge_suite_sha256": judge.get("suite_sha256"),
        "run_seed": config.run_seed,
    }


def bind_identity(path: Path, identity: Mapping[str, Any]) -> None:
    """Write the identity of a fresh directory, or compare it field by field with the one that is there.

    Raises `StateMismatch` listing every changed field with its old and new value.
    """
    if path.exists():
        check_identity(path, identity)
    else:
        write_json(path, {"format_version": IDENTITY_VERSION, **identity})


def check_identity(path: Path, identity: Mapping[str, Any], *, unknown: Collection[str] = ()) -> None:
    """Compare with the identity that is there, leaving out fields that the caller cannot know now."""
    saved = read_json_object(path)
    if saved.pop("format_version", None) != IDENTITY_VERSION:
        raise StateCorrupt(f"{path} has an unknown format_version; choose a new GUIDANCE_STATE_DIR")
    changed = [
        f"{key}: {saved.get(key)!r} -> {identity.get(key)!r}"
        for key in sorted({*saved, *identity})
        if saved.get(key) != identity.get(key) and key not in unknown
    ]
    if changed:
        raise StateMismatch(
            f"the state directory {path.parent.parent} belongs to other settings:\n  "
            + "\n  ".join(changed)
            + "\nset these back, or choose a new GUIDANCE_STATE_DIR"
        )


@dataclass(frozen=True)
class ResumeState:
    """The durable position of a run: the next step (from 0) and one summary per committed step."""

    next_step: int = 0
    step_summaries: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


class RunStateStore:
    """The files of `guidance-run/` other than the journals."""

    def __init__(self, run_dir: Path, identity: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        self.run_dir = run_dir
        self.library_path = run_dir / "library.json"
        self.committed_path = run_dir / "committed-library.json"
        self.resume_path = run_dir / RESUME_FILE
        self.result_path = run_dir / "result.json"
        self.submission_path = run_dir / SUBMISSION_FILE
        self._identity = dict(identity)
        self._extra = dict(extra)

    def journal_path(self, step: int) -> Path:
        """The journal of step `step` (from 0); files count from 1, like everything a person sees."""
        return self.run_dir / "rollouts" / f"step-{step + 1:06d}.jsonl"

    def load(self) -> ResumeState:
        """The saved position, or the start when nothing is saved yet; raises `StateCorrupt`."""
        if not self.resume_path.exists():
            return ResumeState()
        saved = read_json_object(self.resume_path)
        version, next_step, summaries = (saved.get(key) for key in ("format_version", "next_step", "step_summaries"))
        if version != RESUME_FORMAT_VERSION:
            raise StateCorrupt(f"{self.resume_path}: format_version is {version!r}, {RESUME_FORMAT_VERSION} is needed")
        if isinstance(next_step, bool) or not isinstance(next_step, int) or next_step < 1:
            raise StateCorrupt(
                f"{self.resume_path}: next_step is {next_step!r}, a whole number of at least 1 is needed"
            )
        if not isinstance(summaries, list) or len(summaries) != next_step:
            raise StateCorrupt(
                f"{self.resume_path}: step_summaries must hold one summary for each of {next_step} steps"
            )
        return ResumeState(next_step, tuple(summaries))

    def save(self, state: ResumeState) -> None:
        """Write the position durably."""
        write_json(
            self.resume_path,
            {
                "format_version": RESUME_FORMAT_VERSION,
                **self._identity,
                **self._extra,
                "prompt_mode": PROMPT_MODE,
                "next_step": state.next_step,
                "step_summaries": list(state.step_summaries),
            },
        )


def _sha256(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
