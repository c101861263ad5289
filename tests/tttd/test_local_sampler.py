"""Sampling: exact log-probabilities, batching that nobody notices, and adapters that never mix."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from engine_support import PROMPTS, plain_log_probabilities, sample, sampling, tiny_policy, visible_adapter
from torch import Tensor

from tttd.local.decoding import SamplingOptions
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler, SampledAnswer

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@pytest.fixture(scope="module", params=["cpu", CUDA])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def policy(request: pytest.FixtureRequest, device: str, tiny_model: Path, tiny_llama: Path) -> PolicyModel:
    path = tiny_model if request.param == "qwen3" else tiny_llama
    return PolicyModel(path, rank=4, alpha=8, seed=3, device=device, dtype=torch.float32)


def without_stops(policy: PolicyModel) -> PolicyModel:
    policy.stop_ids = frozenset()
    return policy


class Spy:
    """Notes the shape of every run of the sampling model: prompts that are prefilled, rows that step together."""

    def __init__(self, policy: PolicyModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefilled: list[int] = []
        self.steps: list[int] = []
        model = policy.sampling_model

        def run(*, input_ids: Tensor, **inputs: Any) -> Any:
            if "position_ids" in inputs:
                self.steps.append(input_ids.shape[0])
            else:
                self.prefilled.append(input_ids.shape[1])
            return model(input_ids=input_ids, **inputs)

        monkeypatch.setattr(policy, "sampling_model", run)


def check_exact(
    policy: PolicyModel, adapter: Mapping[str, Tensor] | None, prompt: Sequence[int], answer: SampledAnswer
) -> None:
    """The recorded log-probabilities are those of one fresh forward pass over the whole sequence."""
    policy.use_for_training(adapter)
    ids = torch.tensor([[*prompt, *answer.tokens]], device=policy.device)
    with torch.no_grad():
        logits = policy.training_model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    assert answer.log_probabilities == pytest.approx(expected.tolist(), abs=1e-4)


def test_log_probabilities_equal_a_full_forward_pass(policy: PolicyModel) -> None:
    adapter = visible_adapter(policy)
    prompts = [PROMPTS[index % 3] for index in range(9)]
    options = [SamplingOptions(max_tokens=5 + 3 * index, seed=index) for index in range(9)]
    with sampling(policy, {"x": adapter}) as sampler:
        answers = sample(sampler, prompts, options, "x")
    for prompt, answer in zip(prompts, answers, strict=True):
        check_exact(policy, adapter, prompt, answer)


@pytest.mark.parametrize(
    "reshaped", [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}, {"temperature": 2.0}]
)
def test_however_tokens_are_chosen_the_policy_itself_is_what_is_recorded(
    policy: PolicyModel, reshaped: dict[str, Any]
) -> None:
    options = [SamplingOptions(max_tokens=25, seed=index, **reshaped) for index in range(3)]
    with sampling(policy, {"base": None}) as sampler:
        answers = sample(sampler, PROMPTS, options)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        check_exact(policy, None, prompt, answer)


def test_a_row_that_moves_into_the_gap_of_another_goes_on_exactly(
    policy: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "stop_ids", frozenset())
    spy = Spy(policy, monkeypatch)
    lengths = (3, 40, 6, 60, 9, 50)
    adapter = visible_adapter(policy)
    prompts = [PROMPTS[index % 3] for index in range(6)]
    with sampling(policy, {"x": adapter}) as sampler:
        answers = sample(sampler, prompts, [SamplingOptions(length, seed=length) for length in lengths], "x")
    assert set(spy.steps) == {1, 2, 3, 4, 5, 6}
    for prompt, answer, length in zip(prompts, answers, lengths, strict=True):
        assert len(answer.tokens) == length
        check_exact(policy, adapter, prompt, answer)


def test_the_likeliest_token_is_taken_at_temperature_zero(policy: PolicyModel) -> None:
    with sampling(policy, {"base": None}) as sampler:
        answer = sample(sampler, [PROMPTS[1]], [SamplingOptions(20, temperature=0.0)])[0]
    policy.use_for_training(None)
    ids = torch.tensor([[*PROMPTS[1], *answer.tokens]], device=policy.device)
    with torch.no_grad():
        likeliest = policy.training_model(input_ids=ids, use_cache=False).logits[0, len(PROMPTS[1]) - 1 : -1].argmax(-1)
    assert list(answer.tokens) == likeliest.tolist()


@pytest.mark.parametrize("reshaped", [{}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 3}, {"temperature": 0.0}])
def test_an_answer_does_not_depend_on_what_else_is_sampled(policy: PolicyModel, reshaped: dict[str, Any]) -> None:
    options = [SamplingOptions(max_tokens=20 + index, seed=100 + index, **reshaped) for index in range(6)]
    prompts = [PROMPTS[index % 3] for index in range(6)]
    with sampling(policy, {"base": None}) as sampler:
        together = sample(sampler, prompts, options)
        alone = [sample(sampler, [prompt], [option])[0] for prompt, option in zip(prompts, options, strict=True)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]


def test_an_answer_does_not_depend_on_who_joins_late_or_leaves_early(
    policy: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "stop_ids", frozenset())
    options = [SamplingOptions(max_tokens=120, seed=1), *(SamplingOptions(15 + 10 * n, seed=2 + n) for n in range(3))]
    prompts = [PROMPTS[0], *PROMPTS]
    with sampling(policy, {"base": None}) as sampler:
        alone = [sample(sampler, [prompt], [option])[0] for prompt, option in zip(prompts, options, strict=True)]
        spy = Spy(policy, monkeypatch)
        late: list[Future[SampledAnswer]] = []

        def join(token: int) -> None:
            if len(late) < 3:  # one more joins at each of the first three tokens
                late.append(sampler.submit("base", list(prompts[len(late) + 1]), options[len(late) + 1]))

        first = sampler.submit("base", list(prompts[0]), options[0], join)
        together = [first.result(timeout=60), *(future.result(timeout=60) for future in late)]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert spy.steps[:3] == [2, 3, 4]
    assert spy.steps[-1] == 1


def test_running_requests_step_together_and_a_free_place_is_filled_at_once(
    policy: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "stop_ids", frozenset())
    spy = Spy(policy, monkeypatch)
    gate = BlockedAdapter()
    sampler = BatchedSampler(policy, gate, max_rows=2)
    futures = [
        sampler.submit("base", list(PROMPTS[0]), SamplingOptions(length, seed=length)) for length in (11, 31, 11, 11)
    ]
    gate.open.set()
    for future in futures:
        future.result(timeout=60)
    sampler.close()
    # The first token of an answer comes from its prompt: three short answers one after another beside the long one.
    assert spy.steps == [2] * 30


class BlockedAdapter:
    """The initial adapter, which cannot be read before `open`; so everything is in the queue when sampling begins."""

    def __init__(self) -> None:
        self.open = Event()

    def __call__(self, checkpoint_id: str) -> None:
        assert self.open.wait(timeout=60)


def test_a_shared_prompt_is_run_once(policy: PolicyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(policy, monkeypatch)
    prompts = [PROMPTS[index % 2] for index in range(8)]
    with sampling(policy, {"base": None, "x": visible_adapter(policy)}) as sampler:
        sample(sampler, prompts, [SamplingOptions(10, seed=seed) for seed in range(8)])
        assert sorted(spy.prefilled) == sorted(map(len, PROMPTS[:2]))
        sample(sampler, prompts[:1], [SamplingOptions(10)])
        assert len(spy.prefilled) == 2
        sample(sampler, prompts[:1], [SamplingOptions(10)], "x")
        assert len(spy.prefilled) == 3, "another adapter makes other keys and values of the same prompt"


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


def test_a_listener_is_told_every_token_before_the_answer_is_there(tiny_model: Path) -> None:
    told: list[int] = []
    with sampling(tiny_policy(tiny_model), {"base": None}) as sampler:
        answer = sampler.submit("base", list(PROMPTS[0]), SamplingOptions(30, seed=4), told.append).result(timeout=60)
        assert told == list(answer.tokens)


def test_a_listener_that_fails_loses_its_own_request_only(tiny_model: Path) -> None:
    def fail(token: int) -> None:
        raise ValueError("the reader is gone (injected)")

    with sampling(without_stops(tiny_policy(tiny_model)), {"base": None}) as sampler:
        neighbour = sampler.submit("base", list(PROMPTS[0]), SamplingOptions(40))
        lost = sampler.submit("base", list(PROMPTS[0]), SamplingOptions(100_000), fail)
        with pytest.raises(CancelledError):
            lost.result(timeout=60)
        assert len(neighbour.result(timeout=60).tokens) == 40
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


def wait_until(condition, timeout_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
