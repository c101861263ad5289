"""The token-level maths of the method, shared by both training engines.

With `d_t = log p_rollout - log p_base` on the tokens that the loss mask selects, and `mean` the average of `d_t` over
all of them in the whole batch, the advantage of a token is

    A_t = A + kl_coef * mask_t * (mean - d_t)

and the loss is the plain sum of `-exp(log p - log p_rollout) * A_t` over every response token.  Where the numbers come
from (which model, which device, how many processes) is the engines' business.  One tensor per trajectory, all of its
response length; only tensor methods are used, so importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def surrogate(log_probabilities: Tensor, rollout_log_probabilities: Tensor, advantages: Tensor) -> Tensor:
    """The unclipped importance-sampling loss, one value per token; only `log_probabilities` may carry a gradient.

    Raises `ValueError` when the three do not have the same shape (broadcasting would hide a wrong one).
    """
    shapes = [tuple(tensor.shape) for tensor in (log_probabilities, rollout_log_probabilities, advantages)]
    if len(set(shapes)) != 1:
        raise ValueError(
            "log-probabilities, rollout log-probabilities and advantages must have one shape, "
            f"got {', '.join(map(str, shapes))}"
        )
    return -(log_probabilities - rollout_log_probabilities).exp() * advantages


def base_differences(rollout: Sequence[Tensor], base: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """`(log p_rollout - log p_base) * mask` per trajectory.

    Raises `ValueError` when counts or shapes disagree.
    """
    if not len(rollout) == len(base) == len(masks):
        raise ValueError(
            "a batch needs rollout log-probabilities, base log-probabilities and a mask for each trajectory, "
            f"got {len(rollout)}, {len(base)} and {len(masks)}"
        )
    differences = []
    for row, (sampled, frozen, mask) in enumerate(zip(rollout, base, masks, strict=True)):
        if not sampled.shape == frozen.shape == mask.shape:
            raise ValueError(
                f"trajectory {row}: rollout log-probabilities {tuple(sampled.shape)}, base log-probabilities "
                f"{tuple(frozen.shape)} and mask {tuple(mask.shape)} must have one shape"
            )
        differences.append((sampled - frozen) * mask)
    return differences


def divergence_sums(differences: Sequence[Tensor], masks: Sequence[Tensor]) -> tuple[float, float]:
    """The sum of the differences and the number of selected tokens: what a mean over several processes is made of."""
    total = math.fsum(float(difference.double().sum()) for difference in differences)
    return total, math.fsum(float(mask.sum()) for mask in masks)


def mean_divergence(total: float, tokens: float) -> float:
    """The mean difference per selected token of the whole batch; raises `ValueError` when none is selected."""
    if tokens <= 0:
        raise ValueError("no token of the batch is selected by its loss mask")
    return total / tokens


def shaped_advantages(
    advantages: Sequence[float | Tensor],
    differences: Sequence[Tensor],
    masks: Sequence[Tensor],
    *,
    mean: float,
    kl_coef: float,
) -> list[Tensor]:
    """Each trajectory's advantage (one number, or one per token) with the centred KL term, per token."""
    return [
        advantage + kl_coef * mask * (mean - difference)
        for advantage, difference, mask in zip(advantages, differences, masks, strict=True)
    ]
