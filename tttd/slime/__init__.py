"""The loss family `tttd` for Reef's Slime backend: what a GPU deployment must be configured with.

This package is torch-free: Reef's driver imports it before any worker exists.  The hooks that run inside the Megatron
workers are in `objective`, where Reef looks for them by name.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

from reef.train.slime_backend.algorithm import SlimeAlgorithm, register_loss_family


@register_loss_family
class TttdAlgorithm(SlimeAlgorithm):
    """Unclipped importance sampling on advantages that Reef computes and the frozen-base KL shapes."""

    loss_family = "tttd"
    loss_type = "custom_loss"
    requires_rollout_logprobs = True
    advantages = "required"
    allows_slime_advantage_computation = True
    required_objective_hooks = ("custom_loss_function_path", "custom_advantage_function_path")

    def validate_specific_args(self, args: Namespace, source: str) -> None:
        """Refuse options under which the update would not be the method's.

        Raises `RuntimeError` naming the option, its value and what is needed; `source` names the recipe.
        """
        if getattr(args, "compute_advantages_and_returns", False) is not True:
            raise RuntimeError(
                f"{source}: remove --disable-compute-advantages-and-returns; "
                "the KL towards the frozen base model is added in that pass"
            )
        kl_coef = getattr(args, "kl_coef", None)
        if not _positive_finite(kl_coef):
            raise RuntimeError(f"{source}: --kl-coef must be a positive finite number, got {kl_coef!r}")
        context_parallel = getattr(args, "context_parallel_size", 1)
        if context_parallel != 1:
            raise RuntimeError(f"{source}: --context-parallel-size must be 1, got {context_parallel!r}")
        for option, effect in (
            ("normalize_advantages", "it would rescale the advantages after the KL is added"),
            ("calculate_per_token_loss", "the loss is a sum and is scaled for a division by trajectories"),
        ):
            if getattr(args, option, False):
                raise RuntimeError(f"{source}: remove --{option.replace('_', '-')}; {effect}")


def _positive_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
