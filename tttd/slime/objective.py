"""The two hooks of the loss family `tttd` that run inside Slime's Megatron workers.

`tttd_advantages` runs once per update, on a worker's whole share of the batch, after the frozen base model was scored;
`tttd_loss` runs for each micro-batch.  The maths is in `tttd.token_loss`, which the local engine uses as well.  Slime
and Megatron are imported where a hook needs them, so that everything else can be tested without a GPU.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from reef.train.slime_backend.algorithm import objective
from torch import Tensor

from tttd.token_loss import base_differences, divergence_sums, mean_divergence, shaped_advantages, surrogate


@objective("custom_advantage_function_path")  # type: ignore[untyped-decorator]
def tttd_advantages(args: Namespace, rollout_data: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]] | None:
    """Add the centred KL towards the frozen base model to the advantages of a worker's share of the batch.

    Reads `advantages`, `rollout_log_probs`, `ref_log_probs` and `loss_masks`: per trajectory one tensor of response
    length.  Replaces `advantages`, and sets `returns` (copies) and `tttd_base_logp_diff` (the mean divergence from the
    base model, per token, for the log).  Gives advantages and returns, or None on a pipeline stage that has no
    log-probabilities.  The mean is over the entire global batch, whatever the number of data-parallel workers.

    Raises `ValueError` for a missing field, counts or shapes that disagree, or a batch without a selected token;
    `NotImplementedError` under context parallelism.
    """
    from megatron.core import mpu  # type: ignore[import-not-found]

    if mpu.get_context_parallel_world_size() != 1:
        raise NotImplementedError("the tttd advantages need --context-parallel-size 1")
    if not mpu.is_pipeline_last_stage():
        return None
    advantages, rollout = _field(rollout_data, "advantages"), _field(rollout_data, "rollout_log_probs")
    base, masks = _field(rollout_data, "ref_log_probs"), [mask.float() for mask in _field(rollout_data, "loss_masks")]
    differences = base_differences(rollout, base, masks)
    _require_shapes("advantages", advantages, rollout)
    total, tokens = _over_workers(divergence_sums(differences, masks), rollout, mpu.get_data_parallel_group)
    mean = mean_divergence(total, tokens)
    shaped = shaped_advantages(advantages, differences, masks, mean=mean, kl_coef=args.kl_coef)
    rollout_data["advantages"] = shaped
    rollout_data["returns"] = [row.clone() for row in shaped]
    rollout_data["tttd_base_logp_diff"] = [torch.full_like(row, mean) for row in shaped]
    return rollout_data["advantages"], rollout_data["returns"]


@objective("custom_loss_function_path")  # type: ignore[untyped-decorator]
def tttd_loss(
    args: Namespace,
    batch: Mapping[str, Any],
    logits: Tensor,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of one micro-batch and its metrics.

    The loss is the sum over every response token (the mask has done its work in the advantages), times the number of
    trajectories of the step, by which Slime divides it afterwards.  Slime adds the metrics of all micro-batches and
    divides them by that number too, so `importance_ratio` and `ppo_kl` are given as sums of per-trajectory means.

    Raises `ValueError` for a missing field, shapes that disagree or an impossible step size.
    """
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy  # type: ignore[import-not-found]

    step_size = batch.get("step_global_batch_size")
    if isinstance(step_size, bool) or not isinstance(step_size, int) or step_size < 1:
        raise ValueError(f"the batch's step_global_batch_size must be a positive whole number, got {step_size!r}")
    advantages, rollout = _field(batch, "advantages"), _field(batch, "rollout_log_probs")
    _, scores = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=False,
    )
    current: Sequence[Tensor] = scores["log_probs"]
    _require_shapes("advantages", advantages, current)
    _require_shapes("rollout_log_probs", rollout, current)
    if not sum(row.numel() for row in current):
        nothing = 0 * logits.sum()  # keeps the graph, so that the backward pass runs on every worker
        zero = nothing.detach()
        return nothing, {"loss": zero, "pg_loss": zero, "importance_ratio": zero, "ppo_kl": zero}
    loss = step_size * torch.stack(
        [surrogate(new, old, row).sum() for new, old, row in zip(current, rollout, advantages, strict=True)]
    ).sum()
    with torch.no_grad():
        gaps = [new - old for new, old in zip(current, rollout, strict=True) if new.numel()]
        ratio = torch.stack([gap.exp().mean() for gap in gaps]).sum()
        divergence = torch.stack([-gap.mean() for gap in gaps]).sum()
    reported = loss.detach()
    return loss, {"loss": reported, "pg_loss": reported.clone(), "importance_ratio": ratio, "ppo_kl": divergence}


def _field(data: Mapping[str, Any], name: str) -> Sequence[Tensor]:
    rows = data.get(name)
    if rows is None:
        raise ValueError(f"the training data has no {name}")
    if not isinstance(rows, list | tuple):
        raise ValueError(f"{name} must be one tensor per trajectory, got {type(rows).__name__}")
    return rows


def _require_shapes(name: str, rows: Sequence[Tensor], like: Sequence[Tensor]) -> None:
    found, expected = ([tuple(row.shape) for row in many] for many in (rows, like))
    if found != expected:
        raise ValueError(f"{name} has the shapes {found}, the log-probabilities have {expected}")


def _over_workers(sums: tuple[float, float], rows: Sequence[Tensor], group: Callable[[], Any]) -> tuple[float, float]:
    """The two sums over all data-parallel workers; each holds another share of the batch."""
    if not dist.is_initialized():
        return sums
    device = rows[0].device if rows else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    both = torch.tensor(sums, dtype=torch.float64, device=device)
    dist.all_reduce(both, op=dist.ReduceOp.SUM, group=group())
    total, tokens = both.tolist()
    return total, tokens
