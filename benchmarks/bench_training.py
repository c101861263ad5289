"""Time, memory and exactness of one training step, against the plain way with transformers and peft.

    python benchmarks/bench_training.py                    # 2 x 4 answers of 100 tokens, prompts of 600
    python benchmarks/bench_training.py --token-budget 800 --no-padded-group

Three ways to compute the same update: ours; one full sequence after the other, as a first implementation would; and one
right-padded batch per group. The plain ways make logits for answer tokens only, so that they are not slowed down by
what no careful user would do. Times are taken in alternation; memory is that of a process that does nothing else.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench_support import (  # noqa: E402
    DEFAULT_MODEL,
    alternating,
    machine_facts,
    model_directory,
    peak_memory_mb,
    positive,
    print_result,
    run_part,
)

RATE, KL_COEF, RANK, SEED = 2e-4, 0.1, 32, 0
WAYS = ("ours", "per_sequence", "padded_group")


@dataclass(frozen=True)
class Update:
    """What a way of training gives: gradients and new weights by PEFT's names."""

    gradients: Mapping[str, Any]
    weights: Mapping[str, Any]


class Ours:
    """The service's own trainer, with the policy that it runs on."""

    def __init__(self, options: argparse.Namespace) -> None:
        from tttd.local.policy import PolicyModel

        self._policy = PolicyModel(options.model, rank=RANK, alpha=RANK, seed=SEED)
        self._budget: int = options.token_budget

    def step(self, grid: Sequence[Any], adapter: Mapping[str, Any]) -> Update:
        """One step."""
        from tttd.local.adam import ADAM_BETAS
        from tttd.local.trainer import train_step

        trained = train_step(
            self._policy,
            grid,
            adapter=adapter,
            optimizer=None,
            learning_rate=RATE,
            kl_coef=KL_COEF,
            token_budget=self._budget,
        )
        # Adam's first moment after one step is (1 - beta1) times the gradient.
        first = trained.optimizer.first
        gradients = {plain_name(name): moment / (1 - ADAM_BETAS[0]) for name, moment in first.items()}
        return Update(gradients, trained.adapter)


class Plain:
    """transformers, peft and torch.optim.Adam, as their documentation shows them."""

    def __init__(self, options: argparse.Namespace, *, by_group: bool) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        from tttd.local.policy import ADAPTED_LAYERS

        base = AutoModelForCausalLM.from_pretrained(str(options.model), dtype=torch.float32, local_files_only=True)
        config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(ADAPTED_LAYERS), task_type="CAUSAL_LM")
        self._model = get_peft_model(base, config)
        self._model.eval()
        self._by_group = by_group

    def step(self, grid: Sequence[Any], adapter: Mapping[str, Any]) -> Update:
        """One step."""
        import torch
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        set_peft_model_state_dict(self._model, dict(adapter))
        trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        adam = torch.optim.Adam(trained.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-8)
        batches = self._batches(grid)
        with torch.no_grad(), self._model.disable_adapter():
            base = [self._log_probabilities(batch) for batch in batches]
        old = [[torch.tensor(row.log_probabilities) for row in batch] for batch in batches]
        gaps = [o - b for batch, found in zip(old, base, strict=True) for o, b in zip(batch, found, strict=True)]
        mean = torch.cat(gaps).mean()
        remaining = iter(gaps)
        for batch, rollout in zip(batches, old, strict=True):
            losses = [
                -(torch.exp(now - then) * (row.advantage + KL_COEF * (mean - next(remaining)))).sum()
                for row, now, then in zip(batch, self._log_probabilities(batch), rollout, strict=True)
            ]
            torch.stack(losses).sum().backward()
        gradients = {plain_name(name): p.grad.clone() for name, p in trained.items() if p.grad is not None}
        adam.step()
        adam.zero_grad()
        state = get_peft_model_state_dict(self._model)
        return Update(gradients, {name: tensor.clone() for name, tensor in state.items()})

    def _batches(self, grid: Sequence[Any]) -> list[list[Any]]:
        if not self._by_group:
            return [[row] for row in grid]
        groups: dict[tuple[int, ...], list[Any]] = {}
        for row in grid:
            groups.setdefault(row.prompt, []).append(row)
        return list(groups.values())

    def _log_probabilities(self, batch: Sequence[Any]) -> list[Any]:
        import torch

        longest = max(len(row.prompt) + len(row.response) for row in batch)
        tokens = torch.zeros((len(batch), longest), dtype=torch.long)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        for number, row in enumerate(batch):
            sequence = torch.tensor([*row.prompt, *row.response])
            tokens[number, : len(sequence)] = sequence
            mask[number, : len(sequence)] = 1
        kept = longest - min(len(row.prompt) for row in batch) + 1
        logits = self._model(input_ids=tokens, attention_mask=mask, use_cache=False, logits_to_keep=kept).logits
        found = []
        for number, row in enumerate(batch):
            start = len(row.prompt) - 1 - (longest - kept)
            own = torch.log_softmax(logits[number, start : start + len(row.response)], dim=-1)
            found.append(own.gather(1, torch.tensor(row.response)[:, None])[:, 0])
        return found


def plain_name(name: str) -> str:
    """A parameter's name as PEFT stores it."""
    return name.replace(".default.", ".")


def ways_of(options: argparse.Namespace) -> list[str]:
    """The ways that are compared."""
    return [way for way in WAYS if way != "padded_group" or options.padded_group]


def trainer_of(way: str, options: argparse.Namespace) -> Ours | Plain:
    """The named way of training, ready to step."""
    return Ours(options) if way == "ours" else Plain(options, by_group=way == "padded_group")


def visible_adapter(trainer: Plain) -> dict[str, Any]:
    """An adapter that changes the policy, so that base and policy differ."""
    import torch
    from peft import get_peft_model_state_dict

    generator = torch.Generator().manual_seed(SEED)
    return {
        name: torch.randn(tensor.shape, generator=generator) * (0.005 if "lora_B" in name else 0.02)
        for name, tensor in sorted(get_peft_model_state_dict(trainer._model).items())
    }


def make_grid(options: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """Rows of random tokens whose recorded log-probabilities are the policy's, off by a little; and that policy."""
    import torch
    from peft import set_peft_model_state_dict

    from tttd.local.trainer import TrainingRow

    plain = Plain(options, by_group=False)
    adapter = visible_adapter(plain)
    generator = torch.Generator().manual_seed(SEED)
    vocabulary = int(plain._model.config.vocab_size)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocabulary, (count,), generator=generator).tolist())

    set_peft_model_state_dict(plain._model, dict(adapter))
    rows = []
    for _ in range(options.groups):
        prompt = tokens(options.prompt_tokens)
        for rollout in range(options.rollouts):
            length = options.answer_tokens
            row = TrainingRow(prompt, tokens(length), (1,) * length, (0.0,) * length, float(rollout % 3) - 1.0)
            with torch.no_grad():
                found = plain._log_probabilities([row])[0]
            noise = 0.02 * torch.randn(length, generator=generator)
            rows.append(TrainingRow(prompt, row.response, row.mask, tuple((found + noise).tolist()), row.advantage))
    return rows, adapter


def relative(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The size of the difference of two sets of tensors, over the size of the second."""
    if found.keys() != expected.keys():
        raise SystemExit("error: the two ways trained different parameters")
    square = {name: float((found[name].double() - expected[name].double()).pow(2).sum()) for name in expected}
    return math.sqrt(sum(square.values()) / sum(float(t.double().pow(2).sum()) for t in expected.values()))


def times(options: argparse.Namespace, grid: Sequence[Any], adapter: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of each way, and how far their results are apart."""
    results: dict[str, Update] = {}
    ways = ways_of(options)
    trainers = {way: trainer_of(way, options) for way in ways}

    def stepper(way: str) -> Callable[[], None]:
        def step() -> None:
            results[way] = trainers[way].step(grid, adapter)

        return step

    rounds = alternating({way: stepper(way) for way in ways}, repeats=options.repeats, warm_ups=0)
    plain = results["per_sequence"]
    return {
        "step_s": rounds.medians_s(),
        "step_rounds_s": dict(rounds.times_s),
        "speedup": {f"over_{way}": rounds.speedup("ours", way) for way in ways if way != "ours"},
        "relative_difference_to_per_sequence": {
            way: {
                "gradients": relative(results[way].gradients, plain.gradients),
                "updated_weights": relative(results[way].weights, plain.weights),
            }
            for way in ways
            if way != "per_sequence"
        },
        "machine": machine_facts(),
    }


def memory(way: str, options: argparse.Namespace, grid: Sequence[Any], adapter: Mapping[str, Any]) -> dict[str, float]:
    """Resident memory of this process before a step, and its peak during it."""
    trainer = trainer_of(way, options)
    before = resident_mb()
    trainer.step(grid, adapter)
    return {"loaded_mb": before, "peak_mb": peak_memory_mb(), "step_adds_mb": peak_memory_mb() - before}


def resident_mb() -> float:
    """What this process has in memory now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_child(options: argparse.Namespace) -> dict[str, Any]:
    """One part of the benchmark, in a process of its own, on the grid that the first part has left."""
    import torch

    if options.part == "grid":
        grid, adapter = make_grid(options)
        torch.save({"grid": grid, "adapter": adapter}, options.grid)
        return {}
    stored = torch.load(options.grid, weights_only=False)
    if options.part == "times":
        return times(options, stored["grid"], stored["adapter"])
    return memory(options.part, options, stored["grid"], stored["adapter"])


def targets(result: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the project's own limits hold."""
    difference = result["relative_difference_to_per_sequence"]["ours"]
    memory_mb = {way: numbers["step_adds_mb"] for way, numbers in result["memory"].items()}
    return {
        "speed >= 2.0 x per_sequence": result["speedup"]["over_per_sequence"] >= 2.0,
        "memory of the step <= per_sequence": memory_mb["ours"] <= memory_mb["per_sequence"],
        "gradients equal to 1e-5": difference["gradients"] < 1e-5,
    }


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a Hugging Face model directory")
    parser.add_argument("--groups", type=positive, default=2)
    parser.add_argument("--rollouts", type=positive, default=4)
    parser.add_argument("--prompt-tokens", type=positive, default=600)
    parser.add_argument("--answer-tokens", type=positive, default=100)
    parser.add_argument("--token-budget", type=positive, help="ours only; default: the service's own")
    parser.add_argument("--no-padded-group", dest="padded_group", action="store_false", help="saves 11 GB of memory")
    parser.add_argument("--repeats", type=positive, default=2)
    parser.add_argument("--part", choices=("grid", "times", *WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--grid", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Run every part in a process of its own, so that one's memory is not counted for another."""
    options = arguments().parse_args()
    model_directory(options.model)
    if options.token_budget is None:
        from tttd.local.settings import LocalTorchSettings

        options.token_budget = LocalTorchSettings("unused").train_token_budget
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.part:
        print_result(run_child(options))
        return
    with tempfile.TemporaryDirectory() as folder:

        def part(name: str) -> dict[str, Any]:
            return run_part(__file__, *sys.argv[1:], "--part", name, "--grid", str(Path(folder, "grid.pt")))

        part("grid")
        result = {**part("times"), "memory": {way: part(way) for way in ways_of(options)}}
    names = ("groups", "rollouts", "prompt_tokens", "answer_tokens", "token_budget", "repeats")
    sizes = {name: getattr(options, name) for name in names}
    print_result({**result, **sizes, "targets": targets(result)})


if __name__ == "__main__":
    main()
