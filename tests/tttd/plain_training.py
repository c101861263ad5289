"""The update computed the plain way, in double precision: nothing of the engine, of PEFT or of torch.optim is used.

One full sequence at a time through the unmodified Hugging Face model, whose adapted weights are W + alpha/rank x B A
written out; automatic differentiation; Adam by its formulas. What the engine does in float32 must equal this up to
rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from tttd.local.trainer import TrainingRow

PREFIX = "base_model.model."


@dataclass
class PlainTrainer:
    """Holds the weights and Adam's moments between steps; names are PEFT's file names.

    `loss_size` is the sum of the tokens' absolute losses, by which a loss near zero is judged.
    """

    model_path: Path
    adapter: dict[str, Tensor]
    scale: float
    rate: float
    kl_coef: float
    steps: int = 0
    loss: float = 0.0
    loss_size: float = 0.0
    mean_difference: float = 0.0
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(str(self.model_path), dtype=torch.float64)
        self.model.eval().requires_grad_(False)
        self.adapter = {name: tensor.double() for name, tensor in self.adapter.items()}
        self.first = {name: torch.zeros_like(tensor) for name, tensor in self.adapter.items()}
        self.second = {name: torch.zeros_like(tensor) for name, tensor in self.adapter.items()}

    def round_base_to(self, dtype: torch.dtype) -> None:
        """Give the frozen weights the values that an engine of this type computes with."""
        self.model.to(dtype).to(torch.float64)

    def log_probabilities(self, row: TrainingRow, adapter: Mapping[str, Tensor] | None) -> Tensor:
        """Of each answer token, from one pass over the whole sequence; None is the base model."""
        weights = dict(self.model.named_parameters())
        for name in adapter or {}:
            if ".lora_A." in name:
                layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
                down, up = adapter[name], adapter[name.replace("lora_A", "lora_B")]
                weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + self.scale * up @ down
        tokens = torch.tensor([[*row.prompt, *row.response]])
        logits = functional_call(self.model, weights, (tokens,), {"use_cache": False}, tie_weights=False).logits[0]
        distribution = torch.log_softmax(logits[len(row.prompt) - 1 : -1], dim=-1)
        return distribution[torch.arange(len(row.response)), torch.tensor(row.response)]

    def step(self, rows: Sequence[TrainingRow]) -> None:
        """One update; afterwards `gradients`, `loss`, `adapter` and the moments are those of this step."""
        differences = []
        with torch.no_grad():
            for row in rows:
                old, mask = torch.tensor(row.log_probabilities).double(), torch.tensor(row.mask).double()
                differences.append((old - self.log_probabilities(row, None)) * mask)
        masked_tokens = sum(sum(row.mask) for row in rows)
        self.mean_difference = sum(float(difference.sum()) for difference in differences) / masked_tokens
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in self.adapter.items()}
        self.loss = self.loss_size = 0.0
        for row, difference in zip(rows, differences, strict=True):
            old, mask = torch.tensor(row.log_probabilities).double(), torch.tensor(row.mask).double()
            advantage = row.advantage + self.kl_coef * mask * (self.mean_difference - difference)
            losses = -torch.exp(self.log_probabilities(row, leaves) - old) * advantage
            losses.sum().backward()
            self.loss += float(losses.detach().sum())
            self.loss_size += float(losses.detach().abs().sum())
        self.steps += 1
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            self.gradients[name] = leaf.grad
            self._adam(name, leaf.grad)

    def _adam(self, name: str, gradient: Tensor) -> None:
        self.first[name] = 0.9 * self.first[name] + 0.1 * gradient
        self.second[name] = 0.95 * self.second[name] + 0.05 * gradient**2
        first = self.first[name] / (1 - 0.9**self.steps)
        second = self.second[name] / (1 - 0.95**self.steps)
        self.adapter[name] = self.adapter[name] - self.rate * first / (second.sqrt() + 1e-8)
