"""The production task directory is a complete Harbor task whose parts agree with each other and with the judge."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.bootstrap import load_seed, seed_entry
from harness.config import TASKS
from harness.contract import load_task
from harness.prompts import GuidanceExamples, build_guidance_prompt
from harness.state import VerdictStatus, VerificationResult
from judges.ahc058.generator import generate_input
from judges.ahc058.judge import COMPILE_LIMITS, RUN_LIMITS, TIME_LIMIT_S
from judges.ahc058.scoring import REWARD_DIVISOR
from judges.ahc058.simulator import judge_output, parse_case
from judges.ahc058.suite import FULL_PROBLEM, QUICK_PROBLEM

ROOT = Path(__file__).resolve().parents[2]
TASK = ROOT / "harbor" / "ahc058"
TOKENIZER = ROOT / "work/models/SmolLM2-135M-Instruct/tokenizer.json"
SEQUENCE_TOKENS, ANSWER_TOKENS = 1024, 128
SEED_SCORE = 1_694_734.0


def text(name: str) -> str:
    return (TASK / name).read_text(encoding="utf-8")


def task_toml() -> dict[str, Any]:
    return tomllib.loads(text("task.toml"))


def constant(name: str) -> Any:
    for node in ast.parse(text("tests/grade.py")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"grade.py has no constant {name}")


def test_the_contract_is_for_cpp20_and_higher_is_better() -> None:
    contract = load_task(TASK)
    assert sorted(json.loads(text("contract.json"))) == [
        "judge_problem_id",
        "mechanism_constraint",
        "objective",
        "raw_score_label",
        "score_direction",
        "solution_contract",
        "solution_language",
    ]
    assert (contract.judge_problem_id, contract.score_direction) == (FULL_PROBLEM, "max")
    assert (contract.language.key, contract.language_label, contract.language.fence) == ("cpp", "C++20", "cpp")
    assert "C++20" in contract.solution_contract
    assert "C++20" in contract.mechanism_constraint


def test_harbor_reads_the_task() -> None:
    task_module = pytest.importorskip("harbor.models.task.task")
    task = task_module.Task(TASK)
    assert task.name == "guidance-ttt/ahc058"
    assert task.instruction.startswith("# Apple production")


def test_only_the_judge_can_be_reached() -> None:
    environment = task_toml()["environment"]
    assert (environment["network_mode"], environment["allowed_hosts"]) == ("allowlist", ["host.docker.internal"])


def test_the_limits_leave_room_for_each_other() -> None:
    """The judge ends a judgement first, then search and grader give up, then Harbor ends the verifier."""
    longest_s = COMPILE_LIMITS.wall_s + 150 * RUN_LIMITS.wall_s
    assert longest_s + 60 <= TASKS["ahc058"].verifier_timeout_s
    assert 2 * longest_s <= constant("DEFAULT_DEADLINE_S")
    assert constant("DEFAULT_DEADLINE_S") + 60 <= task_toml()["verifier"]["timeout_sec"]


def test_the_grader_asks_the_tasks_judge_for_the_tasks_problem() -> None:
    contract = load_task(TASK)
    entry = TASKS["ahc058"]
    assert (entry.judge_port, entry.quick_problem) == (8082, QUICK_PROBLEM)
    assert constant("PROBLEM_ID") == contract.judge_problem_id
    assert constant("LANGUAGE") == contract.language.key
    assert constant("FILE_NAME") == contract.source_file.name
    assert constant("CONTENT_TYPE") == contract.source_file.content_type
    url = f"http://host.docker.internal:{entry.judge_port}"
    assert constant("DEFAULT_JUDGE_URL") == url
    compose = text("environment/docker-compose.yaml")
    service = yaml.safe_load(compose)["services"]["main"]
    assert service["extra_hosts"] == ["host.docker.internal:host-gateway"]
    assert service["environment"] == {"GUIDANCE_JUDGE_CONTAINER_URL": f"${{GUIDANCE_JUDGE_CONTAINER_URL:-{url}}}"}
    assert f"GUIDANCE_JUDGE_CONTAINER_URL={url}\n" in text("environment/.env")


def functions(task: str) -> dict[str, str]:
    """The grader's functions and classes by name, as syntax trees."""
    source = (ROOT / "harbor" / task / "tests" / "grade.py").read_text(encoding="utf-8")
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: ast.dump(node) for node in ast.parse(source).body if isinstance(node, kinds)}


def test_the_grader_is_the_one_of_the_other_tasks_but_for_names() -> None:
    ours, theirs = functions("ahc058"), functions("polyomino_packing")
    # These name the language, the file or what is valid.
    named = {"multipart", "ask_judge", "grade_answer", "main"}
    assert set(theirs) - set(ours) <= {"is_valid"}
    assert set(ours) <= set(theirs)
    assert {name for name in ours if ours[name] != theirs[name]} <= named


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
    assert {"/logs/verifier/reward.json", "/logs/verifier/reward.txt"} <= set(lines[0].split())
    assert lines[-1] == "exec python3 -I /tests/grade.py"


@pytest.mark.parametrize("name", ["tests/test.sh", "solution/solve.sh"])
def test_scripts_are_executable(name: str) -> None:
    assert os.access(TASK / name, os.X_OK)


def test_the_statement_says_all_that_a_solver_needs() -> None:
    statement = " ".join(text("instruction.md").split())
    facts = ["`K = 1` apple", "`T = 500` turns", "C[i][j] * (P[i][j] + 1)", "A[j] * B[0][j] * P[0][j]", "`10 4 500 1`"]
    facts += ["`B[i-1][j]` += `B[i][j] * P[i][j]`", "work in the next turn", "round(10^u)", "500^i", "UTF-8", "`-1 3`"]
    facts += ["round(100000 * log2(K))", "150 instances", "1 GiB of memory", "whatever follows is ignored"]
    for fact in facts:
        assert fact in statement, fact
    assert f"divided by {REWARD_DIVISOR:,.0f}" in statement
    assert f"{TIME_LIMIT_S:g} seconds of CPU time, {RUN_LIMITS.wall_s:g} seconds in all" in statement
    assert f"{RUN_LIMITS.stdout_bytes >> 20} MiB of output" in statement


def test_the_seed_plays_legally_on_any_instance_and_is_fast(tmp_path: Path) -> None:
    binary = tmp_path / "seed"
    command = ["g++", "-O1", "-std=gnu++20", "-Wall", "-Wextra", "-Werror", "-o", str(binary)]
    subprocess.run([*command, str(TASK / "solution/seed.cpp")], check=True, timeout=120)
    for seed in (0, 149, 12345):
        case = generate_input(seed)
        limited = ["prlimit", "--cpu=1", str(binary)]
        done = subprocess.run(limited, input=case.encode(), capture_output=True, timeout=60, check=True)
        outcome = judge_output(parse_case(case), done.stdout)
        assert outcome.accepted, outcome.message
        assert 1_000_000 < outcome.score < 3_000_000


def test_the_seed_summary_shows_no_code() -> None:
    program = {line.strip() for line in text("solution/seed.cpp").splitlines() if len(line.strip()) > 8}
    for summary in (text("solution/seed.md"), text("bootstrap-summary.md")):
        assert not any(line in summary for line in program)
        assert not re.search(r"[`;{}=#]", summary)


def test_the_examples_are_eight_short_turns_of_one_form() -> None:
    examples = GuidanceExamples.load(TASK / "guidance_examples.json")
    assert len(examples.examples) == 8
    for example in examples.examples:
        assert re.fullmatch(r"Use [A-Za-z -]+: [a-z][^.:]*\.", example.guidance), example.guidance
        assert re.match(r"Score [1-5]\.\d{3}e\+06\. ", example.parent), example.parent
        assert max(len(example.parent), len(example.guidance)) <= 120


def first_prompt() -> list[tuple[str, str]]:
    """What the policy is asked at the very start of a run."""
    contract = load_task(TASK)
    verdict = VerificationResult(SEED_SCORE / 3e6, SEED_SCORE, True, VerdictStatus.VALID, "accepted", {})
    entry = seed_entry(load_seed(TASK, contract), verdict, problem_id=FULL_PROBLEM, run_seed=0)
    examples = GuidanceExamples.load(TASK / "guidance_examples.json")
    prompt = build_guidance_prompt(contract=contract, entry=entry, style="few-shot", examples=examples)
    return [(message.role, message.content) for message in prompt.messages]


def test_the_seed_is_shown_in_the_form_of_the_examples() -> None:
    assert first_prompt()[-1] == ("user", "Score 1.695e+06. Cheapest upgrade first. Level 0 only.")


def test_the_few_shot_prompt_leaves_room_for_the_answer() -> None:
    if not TOKENIZER.is_file():
        pytest.skip("the embedded model is not here; ./run.sh prepares it")
    from tokenizers import Tokenizer

    messages = first_prompt()
    # The longest line about a parent instead of the seed's.
    messages[-1] = ("user", "Score 1.695e+06. " + "W w. " * 24)
    rendered = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    tokens = len(Tokenizer.from_file(str(TOKENIZER)).encode(rendered + "<|im_start|>assistant\n").ids)
    assert tokens + ANSWER_TOKENS <= SEQUENCE_TOKENS
