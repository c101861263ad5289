"""The TriMul task directory is a complete Harbor task whose parts agree with each other and with the judge."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.bootstrap import load_seed
from harness.config import TASKS
from harness.contract import load_task
from harness.prompts import GuidanceExamples
from judges.trimul.cases import BENCHMARKS, CAUCHY, HIDDEN, TESTS
from judges.trimul.judge import BUDGET_S
from judges.trimul.timing import REWARD_SCALE_US

TASK = Path(__file__).resolve().parents[2] / "harbor" / "trimul"


def text(name: str) -> str:
    return (TASK / name).read_text(encoding="utf-8")


def task_toml() -> dict[str, Any]:
    return tomllib.loads(text("task.toml"))


def constant(name: str) -> Any:
    for node in ast.parse(text("tests/grade.py")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"grade.py has no constant {name}")


def test_the_contract_is_for_python_and_lower_is_better() -> None:
    contract = load_task(TASK)
    assert (contract.judge_problem_id, contract.solution_language) == ("trimul", "python")
    assert contract.score_direction == "min"
    assert contract.source_file.name == "solution.py"
    for word in ("custom_kernel(data)", "Triton", "`python`", "masked"):
        assert word in contract.solution_contract


def test_harbor_reads_the_task() -> None:
    task_module = pytest.importorskip("harbor.models.task.task")
    task = task_module.Task(TASK)
    assert task.name == "guidance-ttt/trimul"
    assert task.instruction.startswith("# Triangle multiplicative update")


def test_only_the_judge_can_be_reached() -> None:
    environment = task_toml()["environment"]
    assert (environment["network_mode"], environment["allowed_hosts"]) == ("allowlist", ["host.docker.internal"])


def test_the_limits_leave_room_for_each_other() -> None:
    """The judge ends an evaluation first, then the search and the grader give up, then Harbor ends the verifier."""
    assert TASKS["trimul"].verifier_timeout_s > BUDGET_S + 30
    assert constant("DEFAULT_DEADLINE_S") >= BUDGET_S + 60
    assert constant("DEFAULT_DEADLINE_S") + 60 <= task_toml()["verifier"]["timeout_sec"]


def test_the_grader_asks_the_tasks_judge_for_the_tasks_problem() -> None:
    contract = load_task(TASK)
    assert constant("PROBLEM_ID") == contract.judge_problem_id
    assert constant("LANGUAGE") == contract.language.key
    assert (constant("FILE_NAME"), constant("CONTENT_TYPE")) == (contract.source_file.name, "text/x-python")
    port = TASKS["trimul"].judge_port
    assert constant("DEFAULT_JUDGE_URL") == f"http://host.docker.internal:{port}"
    compose = text("environment/docker-compose.yaml")
    service = yaml.safe_load(compose)["services"]["main"]
    assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
    default = f"GUIDANCE_JUDGE_CONTAINER_URL=http://host.docker.internal:{port}"
    assert default in text("environment/.env").splitlines()
    assert f"${{{default.replace('=', ':-', 1)}}}" in compose


def test_the_grader_needs_only_the_standard_library_and_runs_isolated_after_the_planted_rewards_are_gone() -> None:
    roots = set()
    for node in ast.walk(ast.parse(text("tests/grade.py"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").split(".")[0])
    assert roots <= sys.stdlib_module_names
    lines = [line for line in text("tests/test.sh").splitlines() if line and not line.startswith("#")]
    assert lines[0] == "rm -rf /logs/verifier/reward.json /logs/verifier/reward.txt"
    assert lines[-1] == "exec python3 -I /tests/grade.py"


@pytest.mark.parametrize("name", ["tests/test.sh", "solution/solve.sh"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(TASK / name, os.X_OK)


def test_the_statement_says_what_the_judge_does() -> None:
    statement = " ".join(text("instruction.md").split())
    rows = re.findall(r"\| (\d+) \| (\d) \| (\d+) \| (\w+) \| ([\w ]+) \|", text("instruction.md"))
    assert rows == [
        (
            str(case.seqlen),
            str(case.batch),
            str(case.dim),
            "Cauchy" if case.kind == CAUCHY else "normal",
            "zeros and ones" if case.masked else "ones",
        )
        for case in BENCHMARKS
    ]
    words = {6: "six", 7: "seven", 8: "eight"}
    assert f"There are {len(TESTS)} cases" in statement
    assert f"{words[sum(case.masked for case in TESTS)]} of them have a mask with zeros" in statement
    assert f"`hidden_dim` (H, always {HIDDEN})" in statement
    assert f"{REWARD_SCALE_US:.0f} divided by the latency" in statement
    assert f"at most {BUDGET_S:.0f} seconds" in statement
    for fact in ("0.02 + 0.02 * |want|", "epsilon 1e-5", "sum over k of left[b, i, k, h] * right[b, j, k, h]", "int64"):
        assert fact in statement, fact


def test_the_seed_is_plain_python_with_a_triton_kernel_and_a_summary_without_code() -> None:
    seed = load_seed(TASK, load_task(TASK))
    tree = ast.parse(seed.code)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert "custom_kernel" in functions
    decorators = [ast.unparse(decorator) for node in functions.values() for decorator in node.decorator_list]
    assert decorators == ["triton.jit"]
    for name in ("seed.md", "../bootstrap-summary.md"):
        assert not re.search(r"[`;{}=#]", text(f"solution/{name}"))


def test_the_examples_are_short_turns_of_one_form_and_each_uses_a_mechanism_of_the_brief() -> None:
    examples = GuidanceExamples.load(TASK / "guidance_examples.json")
    listed = re.search(r"Mechanisms: (.*)\.$", examples.brief)
    assert listed is not None
    mechanisms = listed[1].split(", ")
    assert len(examples.examples) == 8
    used = []
    for example in examples.examples:
        match = re.fullmatch(r"Use ([a-z -]+): [a-z0-9][^.:]*\.", example.guidance)
        assert match, example.guidance
        used.append(match[1])
        assert re.match(r"Score [0-9.]+\. ", example.parent)
        assert len(example.parent) <= 120
        assert len(example.guidance) <= 120
    assert set(used) <= set(mechanisms)
    assert len(set(used)) == 8
