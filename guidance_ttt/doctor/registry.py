"""The checks, in the order in which they are made: what others depend on comes first."""

from __future__ import annotations

from guidance_ttt.doctor.model import Check, Context

_JUDGE_START_S = 130.0
_JUDGE_SCORE_S = 330.0


def _executor_limit_s(context: Context) -> float:
    return 75.0


def _judge_limit_s(context: Context) -> float:
    return 20.0 + context.wait_s + (_JUDGE_START_S + _JUDGE_SCORE_S if context.deep else 0.0)


CHECKS: tuple[Check, ...] = (
    Check("python", "packages:check_python", needs_settings=False),
    Check("packages", "packages:check_packages", needs_settings=False),
    Check("tools", "tools:check_tools", limit_s=lambda context: 60.0, needs_settings=False),
    Check("control groups", "sandbox:check_control_groups", needs_settings=False),
    Check("sandbox", "sandbox:check_sandbox", limit_s=lambda context: 60.0, needs_settings=False),
    Check("settings", "settings:check_settings"),
    Check("keys", "settings:check_keys"),
    Check("task", "settings:check_task"),
    Check("state", "settings:check_state", limit_s=lambda context: 60.0),
    Check("disk", "machine:check_disk"),
    Check("memory", "machine:check_memory"),
    Check("model", "policy_model:check_model", limit_s=lambda context: 300.0 if context.deep else 20.0),
    Check("gpu", "gpu:check_gpu", limit_s=lambda context: 300.0, applies=lambda context: context.on_gpus),
    Check("ports", "network:check_ports"),
    Check("executor", "services:check_executor", limit_s=_executor_limit_s),
    Check("judge", "services:check_judge", limit_s=_judge_limit_s),
    Check("trial", "environment:check_environment", limit_s=lambda context: 60.0),
)
