"""The options of the `local-torch` backend: what `training.options` of a deployment file may hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reef.core.config import config_option

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class LocalTorchSettings:
    """Checked before anything heavy is imported, so that `reef serve --print-config` finds mistakes in a second.

    The last three fields are set by Reef itself from other sections of the deployment file. `train_timeout_s` is a
    deadline of engines that Reef calls over a network. Here an update runs in Reef's own process, where a computation
    in torch cannot be interrupted without leaving the model half-changed, and where giving up would help nobody: Reef
    would start the same update again, which takes as long. So it always runs to its end, and one that took longer is
    reported in the log. Whoever waits for an update sets a deadline of their own (a run: GUIDANCE_TRAIN_TIMEOUT).
    """

    state_dir: str = config_option(help="Folder of checkpoints and load ids; one running service owns it.")
    git_dirs: tuple[str, ...] = config_option(
        (),
        help="Reef's artifact repository, work clones and cache: what a killed git left there is removed at start, and "
        "equal files are stored once.",
    )
    lora_rank: int = config_option(32, help="Rank of the adapter on every attention and MLP projection.")
    lora_alpha: int = config_option(32, help="Adapter scale; weights change by alpha/rank x B A.")
    learning_rate: float = config_option(4e-5, help="Adam step size. 0 trains nothing: a frozen control run.")
    kl_coef: float = config_option(0.1, help="Weight of the KL towards the frozen base model; must be positive.")
    seed: int = config_option(0, help="Seed of the adapter's initial weights.")
    device: str = config_option("auto", help="auto, cpu or cuda. CPU computes in float32, CUDA in bfloat16.")
    context_length: int = config_option(0, help="Longest prompt plus answer in tokens; 0 takes the model's own limit.")
    max_batch_size: int = config_option(64, help="Requests that are sampled at the same time; more wait.")
    max_cache_tokens: int = config_option(65536, help="Bound of the key/value cache in tokens (SmolLM2: 46 kB each).")
    train_token_budget: int = config_option(2048, help="Tokens of one micro-batch; bounds the memory of training.")
    inference_timeout_s: float = config_option(300.0, help="Set by inference.timeout-s.")
    train_timeout_s: float | None = config_option(
        None, help="Set by training.timeout-s; an update that takes longer is logged, never cut off."
    )
    max_staleness: int = config_option(0, help="Set by the recipe; only 0 is supported.")

    def __post_init__(self) -> None:
        _require(bool(self.state_dir.strip()), "state-dir must name a folder")
        for name in ("lora_rank", "lora_alpha", "max_batch_size", "max_cache_tokens", "train_token_budget"):
            _require(getattr(self, name) >= 1, f"{_option(name)} must be at least 1, got {getattr(self, name)}")
        _require(
            math.isfinite(self.learning_rate) and self.learning_rate >= 0,
            f"learning-rate must be a number >= 0, got {self.learning_rate}",
        )
        _require(
            math.isfinite(self.kl_coef) and self.kl_coef > 0,
            f"kl-coef must be a positive number, got {self.kl_coef}; the method needs the pull towards the base model",
        )
        _require(0 <= self.seed < 2**63, f"seed must be in 0..2**63-1, got {self.seed}")
        _require(self.device in DEVICES, f"device must be one of {', '.join(DEVICES)}, got {self.device!r}")
        _require(self.context_length >= 0, f"context-length must be >= 0, got {self.context_length}")
        _require(self.inference_timeout_s > 0, f"inference.timeout-s must be positive, got {self.inference_timeout_s}")
        _require(
            self.train_timeout_s is None or self.train_timeout_s > 0,
            f"training.timeout-s must be positive, got {self.train_timeout_s}",
        )
        _require(
            self.max_staleness == 0,
            f"max-staleness must be 0, got {self.max_staleness}: a step trains on rollouts of the served weights only",
        )


def _option(field: str) -> str:
    return field.replace("_", "-")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
