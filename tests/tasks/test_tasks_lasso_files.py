"""The lasso task directory is a complete Harbor task whose parts agree with each other and with the judge."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from guidance_ttt.model import ensure_policy_model
from harness.bootstrap import load_seed, seed_entry
from harness.config import PROJECT_ROOT
from harness.contract import load_task
from harness.prompts import GuidanceExamples, build_guidance_prompt
from harness.state import VerdictStatus, VerificationResult
from judges.lasso_path.cases import CASES
from judges.lasso_path.judge import BASE_FLAGS, BUDGET_S, COMPILE_LIMITS, RUN_LIMITS, LassoJudge
from judges.lasso_path.wrapper import read_wrapper

ROOT = Path(__file__).resolve().parents[2]
TASK = ROOT / "harbor" / "lasso_path"
MODEL_TASK = ROOT / "harbor" / "polyomino_packing"


def text(name: str) -> str:
    return (TASK / name).read_text(encoding="utf-8")


def task_toml() -> dict[str, Any]:
    return tomllib.loads(text("task.toml"))


def test_the_contract_has_exactly_its_seven_text_keys() -> None:
    contract = json.loads(text("contract.json"))
    assert sorted(contract) == sorted(json.loads((MODEL_TASK / "contract.json").read_text(encoding="utf-8")))
    assert all(isinstance(value, str) and value.strip() for value in contract.values())
    shown = [contract[key] for key in ("judge_problem_id", "solution_language", "score_direction")]
    assert shown == ["lasso_path", "python", "max"]
    assert contract["judge_problem_id"] in LassoJudge.problems
    assert "float64" in contract["mechanism_constraint"]
    assert "CPP_CODE" in contract["solution_contract"]


def test_harbor_reads_the_task() -> None:
    task = pytest.importorskip("harbor.models.task.task").Task(TASK)
    assert task.name == "guidance-ttt/lasso-path"
    assert task.instruction.startswith("# Lasso path")


def test_the_task_file_has_the_limits_of_a_long_search() -> None:
    task = task_toml()
    assert task["schema_version"] == "1.4"
    assert task["agent"]["timeout_sec"] == 604800.0
    assert task["verifier"]["timeout_sec"] == 1800.0
    assert task["environment"]["network_mode"] == "allowlist"
    assert task["environment"]["allowed_hosts"] == ["host.docker.internal"]


def test_the_grader_gives_up_before_the_verifier_is_killed_and_after_the_judge_has_ended() -> None:
    deadline = re.search(r"^DEFAULT_DEADLINE_S = ([0-9.]+)$", text("tests/grade.py"), re.MULTILINE)
    assert deadline is not None
    assert BUDGET_S + 60 <= float(deadline[1]) <= task_toml()["verifier"]["timeout_sec"] - 60


def test_every_compose_variable_has_a_default_in_the_env_file() -> None:
    compose = text("environment/docker-compose.yaml")
    service = yaml.safe_load(compose)["services"]["main"]
    assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
    defaults = dict(
        line.split("=", 1) for line in text("environment/.env").splitlines() if line and not line.startswith("#")
    )
    assert defaults == {"GUIDANCE_JUDGE_CONTAINER_URL": "http://host.docker.internal:8082"}
    assert "${GUIDANCE_JUDGE_CONTAINER_URL:-http://host.docker.internal:8082}" in compose


def test_the_grader_is_that_of_the_other_tasks_but_for_what_it_sends() -> None:
    """One grader's behaviour is tested in depth; here it only must be the same program."""
    model = (MODEL_TASK / "tests/grade.py").read_text(encoding="utf-8")
    changed = [
        line
        for line in difflib.unified_diff(model.splitlines(), text("tests/grade.py").splitlines(), lineterm="", n=0)
        if re.match(r"\+(?!\+\+)", line)
    ]
    assert len(changed) <= 14, changed
    for line in changed:
        known = r"PROBLEM_ID|DEFAULT_(JUDGE_URL|DEADLINE_S)|1800 s|text/x-python|solution\.py|valid|judge's own word"
        assert re.search(known, line), line
    assert (TASK / "tests/test.sh").read_bytes() == (MODEL_TASK / "tests/test.sh").read_bytes()


@pytest.mark.parametrize("name", ["tests/test.sh", "solution/solve.sh"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(TASK / name, os.X_OK)


def test_the_statement_says_all_that_a_solver_needs() -> None:
    statement = text("instruction.md")
    facts = ["int32", "float64", "row after row", "1e-6", "1 %"]
    facts += [f"{spec.rows} x {spec.columns}" for spec in CASES]
    facts += [f"{RUN_LIMITS.wall_s:g} seconds", f"{RUN_LIMITS.memory_bytes >> 30} GiB", "four threads"]
    facts += [f"{COMPILE_LIMITS.wall_s:g} seconds for compiling", f"{BUDGET_S:g} seconds", "(1 / 2n)", "CPP_CODE"]
    facts += [" ".join(("g++", *BASE_FLAGS))]
    for fact in facts:
        assert fact in statement, fact


def test_the_seed_is_a_file_that_the_judge_can_read_and_its_summary_shows_no_code() -> None:
    seed = text("solution/seed.py")
    assert read_wrapper(seed.encode()).flags == ()
    lines = {line.strip() for line in seed.splitlines() if len(line.strip()) > 8}
    summary = text("solution/seed.md")
    assert not any(line in summary for line in lines)
    assert not re.search(r"[`;{}=#]", summary)


def test_the_examples_are_eight_short_turns_of_one_form_that_name_mechanisms_of_the_catalogue() -> None:
    data = json.loads(text("guidance_examples.json"))
    names = {mechanism["name"] for mechanism in json.loads(text("offline/catalogue.json"))["mechanisms"]}
    assert sorted(data) == ["brief", "examples"]
    assert len(data["examples"]) == 8
    listed = data["brief"].split("Mechanisms: ")[1].rstrip(".").split(", ")
    assert set(listed) <= names
    for example in data["examples"]:
        assert sorted(example) == ["guidance", "parent"]
        found = re.fullmatch(r"Use ([A-Za-z -]+): [a-z][^.:]*\.", example["guidance"])
        assert found, example["guidance"]
        assert found[1] in listed
        assert re.match(r"Score [0-9.]+\. ", example["parent"])
        assert len(example["parent"]) <= 120
        assert len(example["guidance"]) <= 120


def test_the_first_prompt_leaves_room_for_the_answer() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ensure_policy_model(PROJECT_ROOT / "work/models") / "tokenizer.json"))
    contract = load_task(TASK)
    verdict = VerificationResult(0.0123, 0.0123, True, VerdictStatus.VALID, "accepted", {})
    entry = seed_entry(load_seed(TASK, contract), verdict, problem_id="lasso_path", run_seed=0)
    examples = GuidanceExamples.load(TASK / "guidance_examples.json")
    prompt = build_guidance_prompt(contract=contract, entry=entry, style="few-shot", examples=examples)
    turns = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in prompt.messages)
    # The last turn may grow to 120 characters.
    assert len(tokenizer.encode(turns).ids) + 60 + 128 <= 1024
