"""The main job, end to end: all parts are real (Reef, training, judge, sandbox, trial), only the policy is tiny."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.guide_model import build_guide_model
from support.main_job import MainJob, finish
from support.reef_process import PROJECT_ROOT, free_port
from support.tiny_model import build_tiny_model

from guidance_ttt import run
from harness.errors import GuidanceError
from harness.jail.check import check_jail
from harness.jail.tools import JailUnavailable, find_tools

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _jail() -> None:
    try:
        check_jail(find_tools())
    except JailUnavailable as error:
        pytest.skip(f"no jail can be built here: {error}")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> MainJob:
    """A run of two steps in two launches, so Reef and everything else was restarted in between."""
    folder = tmp_path_factory.mktemp("main-job")
    job = MainJob(folder, build_guide_model(folder / "model"))
    for steps in ("1", "2"):
        code, output = job.run(GUIDANCE_STEPS=steps)
        (folder / f"output-{steps}.txt").write_text(output, encoding="utf-8")
        assert code == 0, output
    return job


def output(job: MainJob, steps: int) -> str:
    return (job.folder / f"output-{steps}.txt").read_text(encoding="utf-8")


def releases(job: MainJob) -> list[str]:
    listed = subprocess.run(
        ["git", "--git-dir", str(job.state_dir / "artifacts.git"), "for-each-ref", "--format=%(refname)", "refs/reef"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [ref for ref in listed.stdout.split() if "/releases/" in ref or ref.endswith("/base")]


def adapters(job: MainJob) -> list[Path]:
    return sorted((job.state_dir / "backend" / "checkpoints").glob("*/adapter_model.safetensors"), key=os.path.getmtime)


def test_a_run_prints_its_steps_scores_reward_and_places(job: MainJob) -> None:
    text = output(job, 1)
    for part in ("step 1/1", "seed ", "best ", "Harbor reward", str(job.run_dir), str(job.state_dir / "stack")):
        assert part in text
    assert "step 2/2" in output(job, 2)
    assert "step 1/2" not in output(job, 2)


def test_the_verifiers_reward_is_the_winners_score_on_the_whole_problem(job: MainJob) -> None:
    result = job.read("result.json")
    assert result["rewards"]["reward"] > 1.1 * result["seed_score"]
    assert result["best_score"] > 1.1 * result["seed_score"]
    assert (job.run_dir / "best.cpp").read_text(encoding="utf-8").strip()


def test_archive_resume_state_and_releases_agree_on_the_step(job: MainJob) -> None:
    working, committed = job.read("library.json"), job.read("committed-library.json")
    assert working == committed
    assert committed["puct_T"] == 2 * 8
    assert job.read("resume-state.json")["next_step"] == 2
    assert len(releases(job)) == 3, releases(job)


def test_every_update_moved_the_served_adapter_and_it_loads_in_peft(job: MainJob) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    first, second = (load_file(path) for path in adapters(job)[-2:])
    moved = [name for name in second if "lora_B" in name and not second[name].equal(first[name])]
    assert moved
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(job.model_path), adapters(job)[-1].parent)
    assert any(p.abs().sum() > 0 for name, p in model.named_parameters() if "lora_B" in name)


def test_no_call_was_made_twice_and_every_receipt_was_reported_once(job: MainJob) -> None:
    for step in (1, 2):
        kinds = [record["kind"] for record in job.journal(step)]
        assert [kinds.count(kind) for kind in ("attempt", "guidance", "verdict", "reported", "committed")] == [
            1,
            8,
            8,
            8,
            1,
        ]
        receipts = [record["receipt"] for record in job.journal(step) if record["kind"] == "guidance"]
        assert len(set(receipts)) == 8


def test_the_trajectory_is_valid_and_names_every_receipt(job: MainJob) -> None:
    from harbor.utils.trajectory_validator import TrajectoryValidator

    paths = sorted(job.state_dir.glob("lab/trials/*/agent/trajectory.json"), key=os.path.getmtime)
    validator = TrajectoryValidator()
    assert validator.validate(paths[-1]), validator.get_errors()
    text = paths[-1].read_text(encoding="utf-8")
    assert all(r["receipt"] in text for r in job.journal(2) if r["kind"] == "guidance")


def test_a_complete_run_says_so_without_starting_anything(job: MainJob) -> None:
    code, text = job.run(GUIDANCE_STEPS="2")
    assert code == 0
    assert "already complete: 2 step(s)" in text
    assert "starting" not in text


def test_the_python_api_gives_the_program_the_scores_and_the_state(job: MainJob) -> None:
    own = ("GUIDANCE_TASK", "GUIDANCE_STEPS", "GUIDANCE_STATE_DIR", "GUIDANCE_MODEL_PATH", "GUIDANCE_JUDGE_URL")
    environ = job.environ()
    settings = {name: value for name, value in environ.items() if name.startswith("GUIDANCE_") and name not in own}
    result = run(
        "polyomino_packing",
        steps=2,
        state_dir=job.state_dir,
        policy=job.model_path,
        judge=environ["GUIDANCE_JUDGE_URL"],
        settings=settings,
    )
    assert (result.task, result.steps_done, result.stopped) == ("polyomino_packing", 2, None)
    assert result.best_score > result.seed_score
    assert result.reward == job.read("result.json")["rewards"]["reward"]
    assert result.program.read_text(encoding="utf-8") == (job.run_dir / "best.cpp").read_text(encoding="utf-8")
    with pytest.raises(GuidanceError, match="exit code 1"):
        run("polyomino_packing", steps=2, state_dir=job.state_dir, settings={**settings, "run_seed": 5})


def test_other_settings_on_the_same_state_are_refused_field_by_field(job: MainJob) -> None:
    code, text = job.run(GUIDANCE_STEPS="2", GUIDANCE_RUN_SEED="5")
    assert code == 1
    assert "run_seed: 1 -> 5" in text


def test_malformed_guidance_scores_zero_without_an_executor_and_the_step_still_commits(tmp_path: Path) -> None:
    job = MainJob(tmp_path, build_tiny_model(tmp_path / "model", context_length=8192))
    process = job.start(GUIDANCE_STEPS="2")
    code, text = finish(process)
    assert code == 0, text
    assert "no learning signal" in text
    for step in (1, 2):
        records = job.journal(step)
        assert not [record for record in records if record["kind"] == "execution"]
        verdicts = [record["verification"] for record in records if record["kind"] == "verdict"]
        assert {(v["status"], v["reward"]) for v in verdicts} == {("guidance_format_error", 0.0)}
    assert job.read("resume-state.json")["next_step"] == 2
    assert job.read("result.json")["best_step"] == 0


@pytest.fixture
def openai_server() -> Iterator[str]:
    """An OpenAI-compatible server that the launcher does not know of; its base URL."""
    port = free_port()
    argv = [sys.executable, "-m", "executors", "--port", str(port), "--task", "polyomino_packing"]
    argv += ["--catalogue", str(PROJECT_ROOT / "harbor/polyomino_packing/offline")]
    process = subprocess.Popen(argv, cwd=PROJECT_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_ctrl_c_saves_the_state_and_the_next_run_finishes_the_same_step(tmp_path: Path, openai_server: str) -> None:
    job = MainJob(
        tmp_path,
        build_guide_model(tmp_path / "model"),
        {
            "GUIDANCE_EXECUTOR": "openai",
            "GUIDANCE_EXECUTOR_URL": openai_server,
            "GUIDANCE_EXECUTOR_MODEL": "offline-catalogue",
            "GUIDANCE_EXECUTOR_KEY_ENV": "LOOPBACK_EXECUTOR_KEY",
            "LOOPBACK_EXECUTOR_KEY": "sk-loopback-sentinel",
        },
    )
    process = job.start(GUIDANCE_STEPS="1")
    journal = job.run_dir / "rollouts" / "step-000001.jsonl"
    deadline = time.monotonic() + 240
    while not (journal.exists() and b'"verdict"' in journal.read_bytes()) and time.monotonic() < deadline:
        assert process.poll() is None, finish(process)
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    code, text = finish(process, timeout_s=90)
    assert code == 130, text
    assert "./run.sh" in text
    done = {r["receipt"] for r in job.journal(1) if r["kind"] == "guidance"}
    code, text = job.run(GUIDANCE_STEPS="1")
    assert code == 0, text
    receipts = [r["receipt"] for r in job.journal(1) if r["kind"] == "guidance"]
    assert done <= set(receipts)
    assert len(receipts) == len(set(receipts)) == 8
    assert {r["model"] for r in job.journal(1) if r["kind"] == "execution"} == {"offline-catalogue"}
    kept = [
        path for path in job.state_dir.rglob("*") if path.is_file() and b"sk-loopback-sentinel" in path.read_bytes()
    ]
    assert kept == []
