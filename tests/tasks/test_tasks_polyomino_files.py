"""The task directory is a complete Harbor task whose parts agree with each other."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

TASK = Path(__file__).resolve().parents[2] / "harbor" / "polyomino_packing"


def text(name: str) -> str:
    return (TASK / name).read_text(encoding="utf-8")


def task_toml() -> dict[str, dict[str, object]]:
    return tomllib.loads(text("task.toml"))


def test_the_contract_has_exactly_its_seven_text_keys() -> None:
    contract = json.loads(text("contract.json"))
    assert sorted(contract) == [
        "judge_problem_id",
        "mechanism_constraint",
        "objective",
        "raw_score_label",
        "score_direction",
        "solution_contract",
        "solution_language",
    ]
    assert all(isinstance(value, str) and value.strip() for value in contract.values())
    shown = [contract[key] for key in ("judge_problem_id", "solution_language", "score_direction")]
    assert shown == ["0", "cpp", "max"]
    assert "C++17" in contract["solution_contract"]


def test_harbor_reads_the_task() -> None:
    task_module = pytest.importorskip("harbor.models.task.task")
    task = task_module.Task(TASK)
    assert task.name == "guidance-ttt/polyomino-packing"
    assert task.instruction.startswith("# Polyomino packing")


def test_only_the_judge_can_be_reached() -> None:
    environment = task_toml()["environment"]
    assert (environment["network_mode"], environment["allowed_hosts"]) == ("allowlist", ["host.docker.internal"])


def test_the_grader_gives_up_before_the_verifier_is_killed() -> None:
    deadline = re.search(r"^DEFAULT_DEADLINE_S = ([0-9.]+)$", text("tests/grade.py"), re.MULTILINE)
    assert deadline is not None
    verifier_s = task_toml()["verifier"]["timeout_sec"]
    assert isinstance(verifier_s, float)
    assert float(deadline[1]) + 60 <= verifier_s


def test_every_compose_variable_has_a_default_in_the_env_file() -> None:
    compose = text("environment/docker-compose.yaml")
    service = yaml.safe_load(compose)["services"]["main"]
    assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
    defaults = dict(
        line.split("=", 1) for line in text("environment/.env").splitlines() if line and not line.startswith("#")
    )
    names = re.findall(r"\$\{([A-Z_]+)", compose)
    assert names == ["GUIDANCE_JUDGE_CONTAINER_URL"]
    assert set(names) <= set(defaults)
    assert f"{{{names[0]}:-{defaults[names[0]]}}}" in compose


def test_the_grader_needs_only_the_standard_library() -> None:
    roots = set()
    for node in ast.walk(ast.parse(text("tests/grade.py"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])
    assert roots <= sys.stdlib_module_names


def test_planted_rewards_go_before_the_grader_runs_isolated() -> None:
    lines = [line for line in text("tests/test.sh").splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("rm -rf ")
    assert "/logs/verifier/reward.json" in lines[0]
    assert "/logs/verifier/reward.txt" in lines[0]
    assert lines[-1] == "exec python3 -I /tests/grade.py"


@pytest.mark.parametrize("name", ["tests/test.sh", "solution/solve.sh"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(TASK / name, os.X_OK)


def test_the_statement_says_all_that_a_solver_needs() -> None:
    statement = text("instruction.md")
    for fact in ("n <= 10000", "k_i <= 10", "X Y R F", "(-x, y)", "(y, -x)", "2 seconds", "256 MB", "W*H", "4e12"):
        assert fact in statement, fact


def test_the_seed_summary_shows_no_code() -> None:
    program = {line.strip() for line in text("solution/seed.cpp").splitlines() if len(line.strip()) > 8}
    summary = text("solution/seed.md")
    assert not any(line in summary for line in program)
    assert not re.search(r"[`;{}=#]", summary)


def test_the_examples_are_eight_short_turns_of_one_form() -> None:
    data = json.loads(text("guidance_examples.json"))
    assert sorted(data) == ["brief", "examples"]
    assert len(data["examples"]) == 8
    for example in data["examples"]:
        assert sorted(example) == ["guidance", "parent"]
        assert re.fullmatch(r"Use [a-z -]+\.", example["guidance"]), example["guidance"]
        assert re.match(r"Score [0-9.]+\. ", example["parent"])
        assert len(example["parent"]) <= 120
        assert len(example["guidance"]) <= 120
