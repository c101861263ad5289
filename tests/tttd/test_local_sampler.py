"""Sampling: exact log-probabilities, batching that nobody notices, and adapters that never mix."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
import torch
from engine_support import PROMPTS, plain_log_probabilities, sample, sampling, tiny_policy, visible_adapter
from torch import Tensor

from tttd.local.decoding import SamplingOptions, TokenStream, choose_tokens
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def policy(request: pytest.FixtureRequest, tiny_model: Path, tiny_llama: Path) -> PolicyModel:
    return tiny_policy(tiny_model if request.param == "qwen3" else tiny_llama)


def without_stops(policy: PolicyModel) -> PolicyModel:
    policy.stop_ids = frozenset()
    return policy


def test_log_probabilities_equal_a_full_forward_pass(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    prompts = [PROMPTS[index % 3] for index in range(9)]
    options = [SamplingOptions(max_tokens=5 + 3 * index, seed=index) for index in range(9)]
    with sampling(policy, {"x": adapter}) as sampler:
        answers = sample(sampler, prompts, options, "x")
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = plain_log_probabilities(policy, adapter, prompt, answer.tokens)
        assert torch.tensor(answer.log_probabilities) == pytest.approx(expected, abs=1e-4)


def test_an_answer_does_not_depend_on_what_else_is_sampled(policy: PolicyModel) -> None:
    options = [SamplingOptions(max_tokens=20 + index, seed=100 + index) for index in range(6)]
    prompts = [PROMPTS[index % 3] for index in range(6)]
    with sampling(policy, {"base": None}) as sampler:
        together = sample(sampler, prompts, options)
        alone = [sample(sampler, [prompt], [option])[0] for prompt, option in zip(prompts, options, strict=True)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]


def test_siblings_of_one_prompt_get_different_answers_and_one_seed_repeats_itself(policy: PolicyModel) -> None:
    with sampling(policy, {"base": None}) as sampler:
        answers = sample(sampler, [PROMPTS[0]] * 3, [SamplingOptions(16, seed=seed) for seed in (1, 2, 1)])
    assert answers[0].tokens == answers[2].tokens
    assert answers[0].tokens != answers[1].tokens


def test_more_requests_than_rows_all_finish(policy: PolicyModel) -> None:
    options = [SamplingOptions(max_tokens=1 + index % 7, seed=index) for index in range(20)]
    with sampling(policy, {"base": None}, max_rows=3) as sampler:
        answers = sample(sampler, [PROMPTS[index % 3] for index in range(20)], options)
        assert sampler.load() == {"running": 0, "waiting": 0}
    assert all(1 <= len(answer.tokens) <= option.max_tokens for answer, option in zip(answers, options, strict=True))


def test_a_stop_token_ends_the_answer_and_belongs_to_it(tiny_model: Path) -> None:
    policy = tiny_policy(tiny_model)
    options = [SamplingOptions(max_tokens=400, seed=seed) for seed in range(8)]
    with sampling(policy, {"base": None}) as sampler:
        answers = sample(sampler, [PROMPTS[0]] * 8, options)
    for answer in answers:
        stopped = answer.tokens[-1] in policy.stop_ids
        assert answer.finish_reason == ("stop" if stopped else "length")
        assert not policy.stop_ids & set(answer.tokens[:-1])
    assert {answer.finish_reason for answer in answers} >= {"stop"}


def test_two_adapters_never_share_a_batch_and_nobody_is_overtaken(tiny_model: Path) -> None:
    policy = tiny_policy(tiny_model)
    adapters: dict[str, Mapping[str, Tensor] | None] = {"base": None, "x": visible_adapter(policy)}
    order = ["base", "x", "x", "base", "x"]
    with sampling(policy, adapters) as sampler:
        futures = [
            sampler.submit(name, list(PROMPTS[0]), SamplingOptions(12, seed=index)) for index, name in enumerate(order)
        ]
        answers = [future.result(timeout=60) for future in futures]
    for name, answer in zip(order, answers, strict=True):
        expected = plain_log_probabilities(policy, adapters[name], PROMPTS[0], answer.tokens)
        assert torch.tensor(answer.log_probabilities) == pytest.approx(expected, abs=1e-4)


def test_a_cancelled_request_frees_its_place(tiny_model: Path) -> None:
    policy = without_stops(tiny_policy(tiny_model))
    with sampling(policy, {"base": None}, max_rows=1) as sampler:
        endless = sampler.submit("base", list(PROMPTS[0]), SamplingOptions(100_000))
        waiting = sampler.submit("base", list(PROMPTS[0]), SamplingOptions(100_000))
        wanted = sampler.submit("base", list(PROMPTS[0]), SamplingOptions(4))
        wait_until(lambda: sampler.load() == {"running": 1, "waiting": 2})
        assert waiting.cancel()
        assert endless.cancel()
        assert len(wanted.result(timeout=60).tokens) == 4
        wait_until(lambda: sampler.load() == {"running": 0, "waiting": 0})


def test_an_unreadable_adapter_fails_its_own_request_only(tiny_model: Path) -> None:
    policy = tiny_policy(tiny_model)
    with sampling(policy, {"base": None}) as sampler:
        with pytest.raises(KeyError):
            sample(sampler, [PROMPTS[0]], [SamplingOptions(4)], "gone")
        assert len(sample(sampler, [PROMPTS[0]], [SamplingOptions(4)])[0].tokens) >= 1


def test_a_diverged_adapter_is_an_error_not_an_answer(tiny_model: Path) -> None:
    policy = tiny_policy(tiny_model)
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in policy.initial_adapter.items()}
    with sampling(policy, {"base": None, "broken": broken}) as sampler:
        with pytest.raises(FloatingPointError, match="diverged"):
            sample(sampler, [PROMPTS[0]], [SamplingOptions(4)], "broken")
        assert len(sample(sampler, [PROMPTS[0]], [SamplingOptions(4)])[0].tokens) >= 1


def test_shutting_down_fails_what_has_not_ended(tiny_model: Path) -> None:
    sampler = BatchedSampler(without_stops(tiny_policy(tiny_model)), {"base": None}.__getitem__, max_rows=1)
    futures = [sampler.submit("base", list(PROMPTS[0]), SamplingOptions(100_000)) for _ in range(2)]
    sampler.close()
    for future in futures:
        with pytest.raises((RuntimeError, CancelledError)):
            future.result(timeout=10)
    with pytest.raises(RuntimeError, match="shut down"):
        sampler.submit("base", [1], SamplingOptions(1))


def test_the_cache_bound_makes_long_requests_wait(tiny_model: Path) -> None:
    policy = without_stops(tiny_policy(tiny_model))
    with sampling(policy, {"base": None}, max_cache_tokens=60) as sampler:
        answers = sample(sampler, [PROMPTS[0]] * 4, [SamplingOptions(30, seed=seed) for seed in range(4)])
    assert [len(answer.tokens) for answer in answers] == [30] * 4


def test_in_bfloat16_the_sampling_model_carries_the_adapter_itself(tiny_model: Path) -> None:
    policy = PolicyModel(tiny_model, rank=4, alpha=8, seed=3, device="cpu", dtype=torch.bfloat16)
    adapters: dict[str, Mapping[str, Tensor] | None] = {"base": None, "x": visible_adapter(policy)}
    with sampling(policy, adapters) as sampler:
        answers = {name: sample(sampler, [PROMPTS[0]], [SamplingOptions(20, seed=1)], name)[0] for name in adapters}
    assert answers["base"].tokens != answers["x"].tokens
    for name, answer in answers.items():
        expected = plain_log_probabilities(policy, adapters[name], PROMPTS[0], answer.tokens)
        assert torch.tensor(answer.log_probabilities) == pytest.approx(expected, abs=0.3)


LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def drawn(option: SamplingOptions, count: int = 300) -> tuple[set[int], set[float]]:
    stream = TokenStream(0)
    pairs = [choose_tokens(LOGITS, [option], [stream]) for _ in range(count)]
    return {tokens[0] for tokens, _ in pairs}, {round(values[0], 4) for _, values in pairs}


@pytest.mark.parametrize(
    ("option", "possible"),
    [
        (SamplingOptions(1, temperature=0.0), {0}),
        (SamplingOptions(1, top_k=2), {0, 1}),
        (SamplingOptions(1, top_p=0.5), {0}),
        (SamplingOptions(1, top_p=0.51), {0, 1}),
        (SamplingOptions(1, top_p=0.9, top_k=3), {0, 1, 2}),
        (SamplingOptions(1), {0, 1, 2, 3}),
        (SamplingOptions(1, temperature=2.0), {0, 1, 2, 3}),
        (SamplingOptions(1, top_k=99), {0, 1, 2, 3}),
    ],
)
def test_truncation_limits_the_tokens_but_not_the_recorded_probability(
    option: SamplingOptions, possible: set[int]
) -> None:
    tokens, values = drawn(option)
    assert tokens == possible
    assert values == {round(float(LOGITS[0, token]), 4) for token in possible}


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    stream = TokenStream(1)
    counts = [0, 0, 0, 0]
    for _ in range(4000):
        counts[choose_tokens(LOGITS, [SamplingOptions(1)], [stream])[0][0]] += 1
    assert [count / 4000 for count in counts] == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.03)


def wait_until(condition, timeout_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
