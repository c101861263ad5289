"""How fast the local engine samples, beside `transformers.generate` on the same weights, measured in alternation.

    python benchmarks/bench_sampling.py [--sequences 8] [--prompt-tokens 600] [--new-tokens 128] [--repeats 2]

Prints one JSON object.  Every answer has exactly `--new-tokens` tokens (nothing stops one early), temperature 1, no
truncation.  Each round has prompts of its own, so that nothing is remembered from the round before.  Three mixes:

* shared: all sequences continue one prompt, as the rollouts of one group do;
* two_groups: two prompts of different lengths, each continued by half of the sequences;
* all_different: every sequence has a prompt of its own, all of different lengths.

`x_one_by_one` and `x_batched` say how many times as fast the engine is as `generate` called once per sequence and
called once with all of them (shorter prompts padded on the left).  Calls for single sequences cost the same each, so
only `--alone` of them are timed in a round, and their time is multiplied up.  `_cpu` compares processor time instead,
which other programs disturb less.  `targets` says which of the project's own limits hold.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_support import (
    DEFAULT_MODEL,
    ROOT,
    alternating,
    machine_facts,
    model_directory,
    peak_memory_mb,
    positive,
    print_result,
)

sys.path.insert(0, str(ROOT))
# Read when the libraries are imported: no model hub, and idle threads sleep instead of taking a core from the others.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import GenerationConfig

from tttd.local.decoding import SamplingOptions
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler, SampledAnswer

MIXES = ("shared", "two_groups", "all_different")
LENGTH_SPREAD = 0.25
"""The shortest prompt of a mixed batch is this much shorter than the longest."""


def mixed_prompts(mix: str, sequences: int, tokens: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random prompts of one round; the longest of any mix has `tokens` tokens."""
    generator = torch.Generator().manual_seed(seed)
    distinct = {"shared": 1, "two_groups": min(2, sequences), "all_different": sequences}[mix]
    prompts = []
    for number in range(distinct):
        shorter = int(tokens * LENGTH_SPREAD * number / max(1, distinct - 1))
        length = max(1, tokens - shorter)
        prompts.append(torch.randint(0, vocabulary, (length,), generator=generator).tolist())
    return [prompts[index * distinct // sequences] for index in range(sequences)]


@dataclass
class Rival:
    """One way to sample all sequences of a mix; every call takes the next round's prompts."""

    run: Callable[[Sequence[list[int]], int], object]
    mix: str
    options: argparse.Namespace
    vocabulary: int
    sequences: int
    rounds: int = field(default=0)

    def __call__(self) -> object:
        self.rounds += 1
        prompts = mixed_prompts(
            self.mix, self.options.sequences, self.options.prompt_tokens, self.vocabulary, self.rounds
        )
        return self.run(prompts[: self.sequences], self.options.new_tokens)


class Engine:
    """The project's sampler."""

    def __init__(self, sampler: BatchedSampler) -> None:
        self._sampler = sampler
        self.latest: list[tuple[list[int], SampledAnswer]] = []

    def __call__(self, prompts: Sequence[list[int]], new_tokens: int) -> None:
        futures = [
            self._sampler.submit("base", prompt, SamplingOptions(new_tokens, seed=index))
            for index, prompt in enumerate(prompts)
        ]
        answers = [future.result() for future in futures]
        assert all(len(answer.tokens) == new_tokens for answer in answers)
        self.latest = list(zip(prompts, answers, strict=True))


class Generate:
    """`transformers.generate` on the same weights: all sequences in one call, or one call for each."""

    def __init__(self, policy: PolicyModel, *, batched: bool) -> None:
        self._policy = policy
        self._batched = batched

    def __call__(self, prompts: Sequence[list[int]], new_tokens: int) -> None:
        calls = [prompts] if self._batched else [[prompt] for prompt in prompts]
        for call in calls:
            produced = self._call(call, new_tokens)
            assert produced == new_tokens
        if self._policy.device.type == "cuda":
            torch.cuda.synchronize()

    def _call(self, prompts: Sequence[list[int]], new_tokens: int) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=self._policy.device)
        mask = torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=self._policy.device
        )
        config = GenerationConfig(
            max_new_tokens=new_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0
        )
        with torch.inference_mode():
            model: Any = self._policy.sampling_model
            output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        return int(output.shape[1]) - longest


@torch.inference_mode()
def largest_error(policy: PolicyModel, prompt: list[int], answer: SampledAnswer) -> float:
    """How far the recorded log-probabilities of one answer are from a fresh forward pass over the whole sequence."""
    ids = torch.tensor([[*prompt, *answer.tokens]], device=policy.device)
    logits = policy.sampling_model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    return float((expected.cpu() - torch.tensor(answer.log_probabilities)).abs().max())


def measure(policy: PolicyModel, sampler: BatchedSampler, options: argparse.Namespace) -> dict[str, Any]:
    """Every mix, the rivals of each in alternation."""
    engine = Engine(sampler)
    runs: dict[str, Callable[[Sequence[list[int]], int], object]] = {
        "engine": engine,
        "batched": Generate(policy, batched=True),
        "one_by_one": Generate(policy, batched=False),
    }
    for run in runs.values():
        run([[1, 2, 3]] * 2, 2)
    result: dict[str, Any] = {}
    tokens = options.sequences * options.new_tokens
    alone = min(options.alone, options.sequences)
    for mix in MIXES:
        names = list(runs) if mix == "shared" else ["engine", "batched"]
        timed = {name: alone if name == "one_by_one" else options.sequences for name in names}
        rivals = {name: Rival(runs[name], mix, options, policy.vocabulary, timed[name]) for name in names}
        rounds = alternating(rivals, repeats=options.repeats if mix == "shared" else 1, warm_ups=0)
        scale = {name: options.sequences / timed[name] for name in names}
        result[mix] = {
            **{f"{name}_s": seconds * scale[name] for name, seconds in rounds.medians_s().items()},
            "engine_tokens_per_s": tokens / rounds.median_s("engine"),
            **{f"x_{name}": rounds.speedup("engine", name) * scale[name] for name in names if name != "engine"},
        }
        if policy.device.type == "cpu":
            result[mix] |= {
                f"x_{name}_cpu": rounds.cpu_speedup("engine", name) * scale[name] for name in names if name != "engine"
            }
    result["largest_log_probability_error"] = max(largest_error(policy, *pair) for pair in engine.latest[:2])
    return result


def targets(result: dict[str, Any], policy: PolicyModel) -> dict[str, bool]:
    """Which of the project's own limits hold."""
    exact = 1e-4 if policy.dtype == torch.float32 else 0.3
    return {
        "shared >= 3.0 x generate called one by one": result["shared"]["x_one_by_one"] >= 3.0,
        "shared >= 0.9 x one batched generate call": result["shared"]["x_batched"] >= 0.9,
        f"log-probabilities within {exact:g}": result["largest_log_probability_error"] <= exact,
    }


def main() -> None:
    """Load the model once and measure every mix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--sequences", type=positive, default=8)
    parser.add_argument("--prompt-tokens", type=positive, default=600)
    parser.add_argument("--new-tokens", type=positive, default=128)
    parser.add_argument("--repeats", type=positive, default=2, help="rounds of the shared mix; the others get one")
    parser.add_argument("--alone", type=positive, default=2, help="single-sequence calls timed in a round")
    options = parser.parse_args()
    policy = PolicyModel(model_directory(options.model), rank=32, alpha=32, seed=0)
    policy.stop_ids = frozenset()
    policy.sampling_model.generation_config.eos_token_id = None
    sampler = BatchedSampler(policy, {"base": None}.__getitem__)
    try:
        result = measure(policy, sampler, options)
    finally:
        sampler.close()
    print_result(
        {
            "model": options.model.name,
            "sequences": options.sequences,
            "prompt_tokens": options.prompt_tokens,
            "new_tokens": options.new_tokens,
            "repeats": options.repeats,
            "device": str(policy.device),
            "dtype": str(policy.dtype).removeprefix("torch."),
            **result,
            "peak_memory_mb": peak_memory_mb(),
            "machine": machine_facts(),
            "targets": targets(result, policy),
        }
    )


if __name__ == "__main__":
    main()
