"""The peer experiment: its rows are those of our own runs, and OpenEvolve itself is run over scripted services."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support.fake_services import CONTRACT
from support.peer_world import GRID, SEED, World, answering, scored

from benchmarks import peers
from benchmarks.experiment import openevolve_evaluator
from benchmarks.experiment.arms import RunPlan
from benchmarks.experiment.curves import draw_curves
from benchmarks.experiment.openevolve_install import DEFAULT_VENV, VERSION, install_commands, packages, python_of
from benchmarks.experiment.openevolve_prompt import read_parent
from benchmarks.experiment.openevolve_proxy import EVALUATE_PATH, sha256_of
from benchmarks.experiment.openevolve_run import (
    ARM,
    PeerFailed,
    PeerPlan,
    evolve,
    openevolve_settings,
    peer_environment,
    read_result,
)
from benchmarks.experiment.peer_records import UNCHANGED, PeerRollout, named_by_update, peer_rows, step_summaries
from benchmarks.experiment.records import UpdateRow, read_updates, write_rows
from executors.catalogue import Catalogue
from harness.errors import ConfigError, JudgeUnavailable
from harness.state import VerificationResult
from harness.storage import write_json

ROOT = Path(__file__).resolve().parents[2]

needs_openevolve = pytest.mark.skipif(
    packages(DEFAULT_VENV).get("openevolve") != VERSION,
    reason=f"openevolve {VERSION} is not installed; benchmarks/peers.py installs it into work/peers/openevolve",
)


# --- records ----------------------------------------------------------------------------------------------------------


def rollout(
    number: int, reward: float, *, status: str = "valid", guidance: str = "", ended_s: float = 0.0
) -> PeerRollout:
    raw = reward if status in ("valid", UNCHANGED) else None
    return PeerRollout(number, "p", 1.0, guidance, "c", status, reward, raw, ended_s)


ROLLOUTS = [
    rollout(0, 10.0, guidance="Use a skyline.", ended_s=1.0),
    rollout(1, 0.0, status="guidance_format_error", ended_s=3.0),
    rollout(3, 30.0, status=UNCHANGED, ended_s=4.0),
    rollout(2, 0.0, status="invalid", ended_s=9.0),
    rollout(4, 99.0, ended_s=10.0),
]


def test_rollouts_become_the_rows_of_our_own_runs(tmp_path: Path) -> None:
    named = named_by_update(ROLLOUTS, 2, Catalogue.load(ROOT / "harbor/polyomino_packing/offline"))
    assert named[0]["guidance"] == 1
    assert named[1] == Counter({"guidance": 0})
    first, second = peer_rows(7, ARM, ROLLOUTS, 2, 20.0, named)
    assert (first.seed, first.arm, first.update, first.evaluations, first.named) == (7, ARM, 1, 2, 1)
    assert (first.reward_mean, first.reward_max, first.best_score) == (5.0, 10.0, 20.0)
    assert (first.valid, first.well_formed, first.kl, first.rollout_s) == (1, 1, None, 3.0)
    assert (second.update, second.evaluations, second.best_score, second.valid) == (2, 4, 30.0, 1)
    assert (second.well_formed, second.rollout_s) == (2, 6.0)
    write_rows(tmp_path / "peers.csv", [first, second], UpdateRow)
    assert read_updates(tmp_path / "peers.csv") == [first, second]


def test_a_part_of_an_update_makes_no_row() -> None:
    assert [summary["step"] for summary in step_summaries(ROLLOUTS, 4, 0.0)] == [0]
    assert step_summaries([], 4, 0.0) == []


def test_rollouts_survive_their_file() -> None:
    assert [PeerRollout.from_dict(json.loads(json.dumps(each.to_dict()))) for each in ROLLOUTS] == ROLLOUTS


def test_the_picture_has_a_line_for_the_peer(tmp_path: Path) -> None:
    named = [Counter[str](), Counter[str]()]
    draw_curves(tmp_path / "a.svg", peer_rows(1, ARM, ROLLOUTS, 2, 20.0, named))
    assert f"{ARM} (1 seeds)" in (tmp_path / "a.svg").read_text()


# --- one run ----------------------------------------------------------------------------------------------------------


def plan_in(folder: Path, *, updates: int = 2) -> PeerPlan:
    return PeerPlan(RunPlan(3, ARM, updates, GRID.groups, GRID.rollouts, folder), DEFAULT_VENV)


def write_result(plan: PeerPlan) -> None:
    rollouts = [each.to_dict() for each in ROLLOUTS[:4]]
    identity = plan.identity()
    write_json(plan.result_path, {"identity": identity, "seed_score": 20.0, "rollouts": rollouts, "facts": {}})


def test_the_run_of_another_budget_is_not_taken_for_this_one(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert read_result(plan) is None
    write_result(plan)
    found = read_result(plan)
    assert found is not None
    assert list(found.rollouts) == ROLLOUTS[:4]
    with pytest.raises(ConfigError, match=r"budget=4 \(asked for: 6\)"):
        read_result(plan_in(tmp_path, updates=3))


def test_records_hold_complete_runs_and_the_picture_all_arms(tmp_path: Path) -> None:
    complete, missing = plan_in(tmp_path / "runs"), PeerPlan(RunPlan(4, ARM, 2, 1, 2, tmp_path / "runs"), tmp_path)
    assert "run the experiment first" in peers.report(tmp_path)
    peers.save(tmp_path, [missing])
    assert not (tmp_path / "peers.csv").exists()
    write_result(complete)
    named = [Counter[str](), Counter[str]()]
    write_rows(tmp_path / "updates.csv", peer_rows(3, "trained", ROLLOUTS, 2, 30.0, named), UpdateRow)
    peers.save(tmp_path, [complete, missing])
    assert [(row.seed, row.best_score) for row in read_updates(tmp_path / "peers.csv")] == [(3, 20.0), (3, 30.0)]
    picture = (tmp_path / "peers.svg").read_text()
    assert "trained (1 seeds)" in picture
    assert f"{ARM} (1 seeds)" in picture
    assert "trained minus openevolve" in peers.report(tmp_path)
    record = json.loads((tmp_path / "peers.json").read_text())
    assert (record["openevolve"], record["runs"]["seed 3"]["evaluations"]) == (VERSION, 4)


def test_a_complete_seed_is_not_run_again_and_none_is_begun_without_time(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    write_result(plan)
    before = plan.result_path.read_bytes()
    assert peers.run_all([plan], tmp_path / "records", deadline_s=None)
    assert plan.result_path.read_bytes() == before
    late = PeerPlan(RunPlan(4, ARM, 2, 1, 2, tmp_path), DEFAULT_VENV)
    assert not peers.run_all([late], tmp_path / "records", deadline_s=time.monotonic())
    assert not late.run.state_dir.exists()


def test_no_key_and_no_client_setting_reaches_the_peer() -> None:
    base = {"PATH": "/bin", "OPENAI_BASE_URL": "http://x", "OPENAI_API_KEY": "k", "SOME_TOKEN": "t", "PYTHONPATH": "/p"}
    found = peer_environment(base, "http://127.0.0.1:9")
    assert set(found) == {"PATH", "ENABLE_ARTIFACTS", openevolve_evaluator.URL_VARIABLE}
    assert peer_environment({}, "http://127.0.0.1:9")[openevolve_evaluator.URL_VARIABLE].endswith(EVALUATE_PATH)


def test_the_version_is_pinned_with_and_without_uv(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    without = install_commands(tmp_path / "venv", uv)
    uv.touch()
    for commands in (without, install_commands(tmp_path / "venv", uv)):
        assert commands[-1][-1] == f"openevolve=={VERSION}"
        assert str(python_of(tmp_path / "venv")) in commands[-1]


_BUILD_PROMPT = """
import json, sys
from openevolve.config import Config
from openevolve.prompt.sampler import PromptSampler
request = json.load(sys.stdin)
config = Config.from_dict(request["settings"])
programs = [{"id": code, "code": code, "metrics": {"combined_score": 50.0}} for code in request["others"]]
prompt = PromptSampler(config.prompt).build_prompt(
    current_program=request["program"], parent_program=request["program"],
    program_metrics={"combined_score": request["score"]}, previous_programs=programs, top_programs=programs,
    inspirations=programs, language=config.language, evolution_round=3,
    diff_based_evolution=config.diff_based_evolution, program_artifacts={"stderr": "- Fitness: 99.0000"},
    feature_dimensions=config.database.feature_dimensions,
)
sys.stdout.write(prompt["user"])
"""


@needs_openevolve
def test_the_pinned_openevolves_own_prompt_is_read(tmp_path: Path) -> None:
    program = (ROOT / "harbor/polyomino_packing/solution/seed.cpp").read_text().strip()
    request = {
        "settings": openevolve_settings(plan_in(tmp_path), CONTRACT, parallel=2),
        "program": program,
        "score": 43.21098,
        "others": ["int one;", "// ```\nint two; // # Task\n", program],
    }
    command = [str(python_of(DEFAULT_VENV)), "-I", "-c", _BUILD_PROMPT]
    built = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True, timeout=60)
    assert "int one;" in built.stdout
    found = read_parent(built.stdout, "cpp")
    assert (found.program, found.fitness) == (program, 43.211)


def numbered(_guidance: str, call: int) -> str:
    """An executor that writes a new program each time, but for every third, which is no program."""
    return "no program" if call % 3 == 0 else answering(f"int main() {{ return {100 + call}; }}")("", call)


def score_by_digest(code: str) -> VerificationResult:
    return scored(float(int(hashlib.sha256(code.encode()).hexdigest()[:4], 16) % 90 + 1))


@needs_openevolve
async def test_openevolve_itself_spends_exactly_its_budget(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, updates=4)
    world = World(program=numbered, verdict=score_by_digest, budget=plan.budget)
    settings = openevolve_settings(plan, CONTRACT, parallel=2)
    assert await evolve(plan, world.proxy, CONTRACT, SEED, settings, dict(os.environ))
    assert sorted(each.number for each in world.proxy.rollouts) == list(range(8))
    assert Counter(each.status for each in world.proxy.rollouts) == {"valid": 6, "parse_error": 2}
    assert world.judge.calls == 1 + 6
    parents = {each.parent_sha256 for each in world.proxy.rollouts}
    assert parents <= {sha256_of(SEED.code), *(each.program_sha256 for each in world.proxy.rollouts)}


@needs_openevolve
async def test_a_judges_fault_ends_openevolve_and_its_process_pool(tmp_path: Path) -> None:
    plan = plan_in(tmp_path, updates=4)

    def judged(code: str) -> VerificationResult:
        if "return 102" in code:
            raise JudgeUnavailable("gone")
        return score_by_digest(code)

    world = World(program=numbered, verdict=judged, budget=plan.budget)
    settings = openevolve_settings(plan, CONTRACT, parallel=2)
    with pytest.raises(PeerFailed, match="JudgeUnavailable: gone"):
        await evolve(plan, world.proxy, CONTRACT, SEED, settings, dict(os.environ))
    assert _processes_with(str(plan.run.state_dir)) == []


@needs_openevolve
async def test_when_the_time_is_up_nothing_of_openevolve_is_left(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    world = World(budget=plan.budget)
    settings = openevolve_settings(plan, CONTRACT, parallel=2)
    assert not await evolve(plan, world.proxy, CONTRACT, SEED, settings, dict(os.environ), deadline_s=0.0)
    assert _processes_with(str(plan.run.state_dir)) == []
    assert read_result(plan) is None


def _processes_with(text: str) -> list[str]:
    """The command lines of running processes that hold a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if text in line]
