"""The few calls of Slime and Megatron that the hooks make, for one process without a GPU."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

KL_COEF = 0.3
ARGS = Namespace(kl_coef=KL_COEF)


def install_runtime(
    monkeypatch: pytest.MonkeyPatch, *, context_parallel: int = 1, last_stage: bool = True, group: Any = None
) -> None:
    """Put stand-ins for `megatron.core.mpu` and Slime's log-probability function where the hooks import them."""
    core = ModuleType("megatron.core")
    core.mpu = SimpleNamespace(  # type: ignore[attr-defined]
        get_context_parallel_world_size=lambda: context_parallel,
        is_pipeline_last_stage=lambda: last_stage,
        get_data_parallel_group=lambda: group,
    )
    loss = ModuleType("slime.backends.megatron_utils.loss")
    loss.get_log_probs_and_entropy = response_log_probabilities  # type: ignore[attr-defined]
    packages = ("megatron", "slime", "slime.backends", "slime.backends.megatron_utils")
    for module in (*map(ModuleType, packages), core, loss):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def response_log_probabilities(
    logits: Tensor,
    *,
    args: Namespace,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool,
) -> tuple[None, dict[str, list[Tensor]]]:
    """The response tokens' log-probabilities from packed logits of shape (1, tokens of the micro-batch, vocabulary)."""
    found, start = [], 0
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        rows = logits[0, start + total - response - 1 : start + total - 1].float()
        targets = tokens[total - response :]
        found.append(torch.log_softmax(rows, dim=-1).gather(1, targets[:, None])[:, 0])
        start += total
    return None, {"log_probs": found}


def mean_over_trajectories(_values: Tensor) -> Tensor:
    """Slime passes a reducer that this loss does not use."""
    raise AssertionError("the tttd loss is a sum over all response tokens")


def tensors(*rows: Sequence[float]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float32) for row in rows]


def rollout_data(**changed: Any) -> dict[str, Any]:
    """The pinned example: two trajectories whose divergences from the base model are (1, 2) and (3)."""
    data = {
        "advantages": tensors([1.0, 2.0], [3.0]),
        "rollout_log_probs": tensors([-1.0, -1.0], [-1.0]),
        "ref_log_probs": tensors([-1.5, -1.35], [-1.5]),
        "loss_masks": [torch.tensor([1, 1]), torch.tensor([1])],
    }
    return data | changed


def join_workers(rank: int, meeting_point: Path) -> dict[str, Any]:
    """Run the advantage hook as one of two data-parallel workers, each with one trajectory of the pinned example.

    The second worker's trajectory has no selected token.
    """
    from tttd.slime.objective import tttd_advantages

    share = {name: [rows[rank]] for name, rows in rollout_data().items()}
    if rank == 1:
        share["loss_masks"] = [torch.zeros(1)]
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    try:
        with pytest.MonkeyPatch.context() as patch:
            install_runtime(patch, group=torch.distributed.group.WORLD)
            tttd_advantages(Namespace(kl_coef=0.1), share)
    finally:
        torch.distributed.destroy_process_group()
    return share


def other_worker(meeting_point: Path, results: Any) -> None:
    """The second worker, in a process of its own."""
    share = join_workers(1, meeting_point)
    results.put((share["advantages"][0].tolist(), share["tttd_base_logp_diff"][0].tolist()))
