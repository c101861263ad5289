"""A step of the engine equals the plain computation, whatever is shared, cut into pieces or left out of memory."""

from __future__ import annotations

import hashlib
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine_support import tiny_policy, visible_adapter
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_training import PlainTrainer
from torch import Tensor

from tttd.local.policy import PolicyModel
from tttd.local.token_scores import HEAD_POSITIONS, micro_batches
from tttd.local.trainer import TrainedStep, TrainingRow, train_step
from tttd.token_loss import base_differences, divergence_sums, mean_divergence, shaped_advantages

KL_COEF = 0.3
RATE = 0.01
BOUND = 1e-5
PROMPTS = ((258, 84, 82, 68, 81, 198), (258, 84, 82, 68, 81, 198, 71, 72, 256, 198), (65,))
PARENT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def model_path(request: pytest.FixtureRequest, tiny_model: Path, tiny_llama: Path) -> Path:
    return tiny_model if request.param == "qwen3" else tiny_llama


@pytest.fixture(scope="module")
def policy(model_path: Path) -> PolicyModel:
    return tiny_policy(model_path)


def awkward_rows(seed: int = 2) -> list[TrainingRow]:
    """Three groups, mixed up; answers of 1 to 30 tokens, one of them twice; masks with holes; ratios far from 1."""
    draw = random.Random(seed)
    rows = []
    for index, length in enumerate((5, 1, 30, 12, 1, 7, 2, 19, 1, 8)):
        response = tuple(draw.randrange(250) for _ in range(length))
        mask = tuple(int(draw.random() < 0.7) for _ in range(length)) if index else (0,) * length
        recorded = tuple(draw.uniform(-7.0, -3.0) for _ in range(length))
        rows.append(TrainingRow(PROMPTS[index % 3], response, mask, recorded, draw.uniform(-2.0, 3.0)))
    return [*rows, rows[3]]


def engine_step(
    policy: PolicyModel,
    rows: Sequence[TrainingRow],
    adapter: Mapping[str, Tensor] | None,
    before: TrainedStep | None = None,
    budget: int = 2048,
) -> TrainedStep:
    return train_step(
        policy,
        rows,
        adapter=adapter if before is None else before.adapter,
        optimizer=None if before is None else before.optimizer,
        learning_rate=RATE,
        kl_coef=KL_COEF,
        token_budget=budget,
    )


def plain_trainer(policy: PolicyModel, adapter: Mapping[str, Tensor]) -> PlainTrainer:
    return PlainTrainer(policy.model_path, dict(adapter), policy.alpha / policy.rank, RATE, KL_COEF)


def by_file_name(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace(".default.", "."): tensor for name, tensor in tensors.items()}


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Every tensor for itself, relative to its size."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert float((found[name].double() - tensor).norm() / tensor.norm()) < BOUND, name


# 2048: every group at once; 60: most groups in several pieces; 1: every row exceeds it and is run alone.
@pytest.mark.parametrize("budget", [2048, 60, 1])
def test_loss_gradients_moments_and_weights_of_two_steps_equal_the_plain_ones(policy: PolicyModel, budget: int) -> None:
    adapter = visible_adapter(policy)
    plain = plain_trainer(policy, adapter)
    trained: TrainedStep | None = None
    for seed in (2, 3):
        rows = awkward_rows(seed)
        plain.step(rows)
        trained = engine_step(policy, rows, adapter, trained, budget)
        assert trained.metrics["train/loss"] == pytest.approx(plain.loss, abs=BOUND * plain.loss_size)
        assert trained.metrics["train/kl"] == pytest.approx(plain.mean_difference, rel=BOUND)
        norm = torch.cat([gradient.flatten() for gradient in plain.gradients.values()]).norm()
        assert trained.metrics["train/grad_norm"] == pytest.approx(float(norm), rel=BOUND)
        if seed == 2:
            # After the first step, and only then, Adam's first moment is the gradient itself.
            gradients = {name: moment / 0.1 for name, moment in trained.optimizer.first.items()}
            assert_equal(by_file_name(gradients), plain.gradients)
        assert_equal(by_file_name(trained.optimizer.first), plain.first)
        assert_equal(by_file_name(trained.optimizer.second), plain.second)
        assert_equal(trained.adapter, plain.adapter)
    assert trained is not None
    assert trained.optimizer.steps == plain.steps == 2


def test_the_first_step_from_the_initial_adapter_equals_the_plain_one(policy: PolicyModel) -> None:
    plain = plain_trainer(policy, policy.initial_adapter)
    plain.step(awkward_rows())
    trained = engine_step(policy, awkward_rows(), None)
    for name, gradient in by_file_name(trained.optimizer.first).items():
        # B is zero, and therefore so is the gradient of A: exactly.
        if ".lora_A." in name:
            assert not gradient.any()
            assert torch.equal(trained.adapter[name], policy.initial_adapter[name])
        else:
            assert float((gradient / 0.1 - plain.gradients[name]).norm() / plain.gradients[name].norm()) < BOUND


def test_a_grid_in_which_every_answer_is_one_token_equals_the_plain_computation(policy: PolicyModel) -> None:
    rows = [row for row in awkward_rows() if len(row.response) == 1]
    rows = [replace(row, mask=(1,)) for row in rows]
    adapter = visible_adapter(policy)
    plain = plain_trainer(policy, adapter)
    plain.step(rows)
    trained = engine_step(policy, rows, adapter)
    # The last layer's queries, outputs and MLP see only the first state, but every tensor has a gradient.
    assert_equal(by_file_name({name: m / 0.1 for name, m in trained.optimizer.first.items()}), plain.gradients)


def test_the_divergence_is_centred_over_the_whole_batch() -> None:
    advantages = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    differences = [torch.tensor([0.3, 0.15]), torch.tensor([0.0])]
    ones = [torch.ones(2), torch.ones(1)]
    mean = mean_divergence(*divergence_sums(differences, ones))
    shaped = shaped_advantages(advantages, differences, ones, mean=mean, kl_coef=0.1)
    assert mean == pytest.approx(0.15)
    assert [tensor.tolist() for tensor in shaped] == [pytest.approx([0.985, 2.0]), pytest.approx([3.015])]


def test_a_masked_token_is_not_shaped_but_keeps_its_place_in_the_loss(policy: PolicyModel) -> None:
    masks = [torch.tensor([1.0, 0.0]), torch.tensor([1.0])]
    nothing = [torch.zeros(2), torch.zeros(1)]
    differences = base_differences([torch.tensor([0.3, 9.0]), torch.tensor([0.1])], nothing, masks)
    mean = mean_divergence(*divergence_sums(differences, masks))
    shaped = shaped_advantages([1.0, 3.0], differences, masks, mean=mean, kl_coef=0.1)
    assert mean == pytest.approx(0.2)
    assert [tensor.tolist() for tensor in shaped] == [pytest.approx([0.99, 1.0]), pytest.approx([3.01])]
    # The whole answer of row 0 is masked out; changing its advantage still changes the loss.
    rows = awkward_rows()
    louder = [replace(rows[0], advantage=50.0), *rows[1:]]
    one, two = engine_step(policy, rows, None), engine_step(policy, louder, None)
    assert two.metrics["train/loss"] != pytest.approx(one.metrics["train/loss"], rel=0.01)


def test_no_mask_at_all_is_refused(policy: PolicyModel) -> None:
    rows = [TrainingRow((65,), (66,), (0,), (-5.0,), 1.0)]
    with pytest.raises(ValueError, match="no token of the batch"):
        engine_step(policy, rows, None)


# --- the same bits ---------------------------------------------------------------------------------------------------


def digest(trained: TrainedStep) -> str:
    """Of every bit of the result."""
    found = hashlib.sha256()
    for tensors in (trained.adapter, trained.optimizer.first, trained.optimizer.second):
        for name in sorted(tensors):
            found.update(name.encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def two_steps(policy: PolicyModel) -> str:
    adapter = visible_adapter(policy)
    first = engine_step(policy, awkward_rows(2), adapter, budget=60)
    return digest(engine_step(policy, awkward_rows(3), adapter, first, budget=60))


@pytest.mark.slow
def test_the_same_steps_give_the_same_bits_here_and_in_another_process(tiny_model: Path) -> None:
    policy = tiny_policy(tiny_model)
    here = two_steps(policy)
    assert two_steps(policy) == here
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from engine_support import tiny_policy\n"
        "from test_local_trainer_exact import two_steps\n"
        "print(two_steps(tiny_policy(Path(sys.argv[1]))))\n"
    )
    folders = [str(PARENT), str(PARENT / "tttd"), str(PARENT.parent)]
    command = [sys.executable, "-c", code, str(policy.model_path), *folders]
    there = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert there.strip() == here


# --- memory ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=30),
    st.integers(1, 200),
)
@settings(deadline=None)
def test_micro_batches_keep_to_the_budget_and_lose_no_row(shapes: list[tuple[int, int]], budget: int) -> None:
    prompts = [(0,) * 5, (1,) * 17, (2,), (3,) * 50]
    pairs = [(prompts[prompt], (9,) * length) for prompt, length in shapes]
    batches = micro_batches(pairs, budget)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(pairs)))
    changes = sum(one.prompt != two.prompt for one, two in itertools.pairwise(batches))
    assert changes == len({batch.prompt for batch in batches}) - 1
    for batch in batches:
        assert [(batch.prompt, response) for response in batch.responses] == [pairs[row] for row in batch.rows]
        assert batch.tokens <= budget or len(batch.rows) == 1


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """What automatic differentiation keeps for the backward pass: the running total, and its peak in place 1."""
    total = [0, 0]

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            self.size = tensor.numel() * tensor.element_size()
            total[0] += self.size
            total[1] = max(total)

        def __del__(self) -> None:
            total[0] -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        yield total


def peak_bytes(policy: PolicyModel, answers: int, budget: int) -> int:
    prompt = tuple(range(1, 41))
    rows = [TrainingRow(prompt, (index + 1,) * 20, (1,) * 20, (-5.0,) * 20, 1.0) for index in range(answers)]
    with saved_bytes() as total:
        metrics = engine_step(policy, rows, None, budget=budget).metrics
    assert metrics["train/micro_batch_tokens_max"] <= budget
    assert total[0] == 0
    return total[1]


def test_memory_is_bounded_by_the_budget_and_not_by_the_grid(policy: PolicyModel) -> None:
    small = peak_bytes(policy, answers=3, budget=100)
    assert peak_bytes(policy, answers=24, budget=100) == pytest.approx(small, rel=0.02)
    assert peak_bytes(policy, answers=24, budget=2048) > 3 * small


def test_the_prompt_is_run_once_per_group_however_many_pieces_there_are(policy: PolicyModel) -> None:
    runs: list[int] = []
    hook = policy.training_model.register_forward_pre_hook(
        lambda _, args, kwargs: runs.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        engine_step(policy, awkward_rows(), None, budget=1)
    finally:
        hook.remove()
    answers = sorted(len(row.response) - 1 for row in awkward_rows() if len(row.response) > 1)
    prompts = [len(prompt) for prompt in PROMPTS]
    # Once for the base model and once with gradients.
    assert sorted(runs) == sorted(2 * [*prompts, *answers])


def test_logits_are_made_for_answer_tokens_only_and_a_few_at_a_time(policy: PolicyModel) -> None:
    positions: list[int] = []
    head = policy.training_model.get_base_model().get_output_embeddings()
    hook = head.register_forward_hook(lambda _, inputs, __: positions.append(inputs[0].shape[-2]))
    prompt = tuple(range(1, 100))
    rows = [TrainingRow(prompt, (index + 1,) * 70, (1,) * 70, (-5.0,) * 70, 1.0) for index in range(4)]
    try:
        engine_step(policy, rows, None)
    finally:
        hook.remove()
    assert max(positions) == HEAD_POSITIONS
    # For the base model and with gradients; the rest are the four runs' own last positions, each looked at twice.
    assert sum(positions) == 2 * 4 * 70 + 4 * 2
