"""The embedded policy model and its prompt: untrained, it already answers in the required form most of the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.catalogue import Catalogue
from executors.matching import Matcher
from guidance_ttt.model import ensure_policy_model
from harness.bootstrap import load_seed, seed_entry
from harness.config import PROJECT_ROOT
from harness.contract import load_task
from harness.grid import Grid, sampling_seed
from harness.parsing import extract_strict_guidance
from harness.prompts import GuidanceExamples, build_guidance_prompt
from harness.state import VerdictStatus, VerificationResult
from tttd.local.decoding import SamplingOptions
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler

TASK_DIR = PROJECT_ROOT / "harbor/polyomino_packing"
SAMPLES = Grid(4, 8)
SEED_SCORE = 28.17


@pytest.mark.slow
def test_most_first_guidance_of_the_embedded_model_is_well_formed_and_some_names_a_mechanism() -> None:
    model = PolicyModel(ensure_policy_model(PROJECT_ROOT / "work/models"), rank=32, alpha=32, seed=0, device="cpu")
    prompt = model.render(first_prompt(TASK_DIR), {})
    sampler = BatchedSampler(model, {"base": None}.__getitem__)
    try:
        waiting = [
            sampler.submit("base", list(prompt), SamplingOptions(max_tokens=128, seed=sampling_seed(2, 0, 1, slot)))
            for slot in SAMPLES.slots()
        ]
        answers = [future.result(timeout=300) for future in waiting]
    finally:
        sampler.close()
    texts = [extract_strict_guidance(model.decode(a.tokens), a.finish_reason).guidance for a in answers]
    well_formed = [text for text in texts if text is not None]
    assert len(well_formed) >= 0.8 * SAMPLES.size
    matcher = Matcher(Catalogue.load(TASK_DIR / "offline"))
    assert sum(bool(matcher.match(text).applied) for text in well_formed) >= 2
    assert len(set(well_formed)) > SAMPLES.size / 2


def first_prompt(task_dir: Path) -> list[dict[str, str]]:
    """What the policy is asked at the very start of a run."""
    contract = load_task(task_dir)
    verdict = VerificationResult(SEED_SCORE, SEED_SCORE, True, VerdictStatus.VALID, "accepted", {})
    entry = seed_entry(load_seed(task_dir, contract), verdict, problem_id="0", run_seed=0)
    examples = GuidanceExamples.load(task_dir / "guidance_examples.json")
    return build_guidance_prompt(contract=contract, entry=entry, style="few-shot", examples=examples).to_list()
