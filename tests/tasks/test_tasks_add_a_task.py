"""The page about adding a task is followed to the letter, in a folder of its own; what it promises comes true."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guidance_ttt import evaluate, smoke
from harness.config import TASKS, RunConfig, TaskEntry
from harness.contract import load_task
from harness.prompts import GuidanceExamples

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-task.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Block:
    """One fenced block and the paragraph before it."""

    before: str
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the paragraph begins with or ends with, if it says that the block is one."""
        named = re.findall(r"`(harbor/length/[\w./]+)`", self.before)
        return str(named[-1]) if named else None


def read_blocks(page: str) -> list[Block]:
    found: list[Block] = []
    # Outside a fence at even places, inside at odd ones.
    pieces = re.split(r"^```", page, flags=re.MULTILINE)
    for before, inside in zip(pieces[0::2], pieces[1::2], strict=False):
        language, _, text = inside.partition("\n")
        found.append(Block(before.strip().rsplit("\n\n", 1)[-1], language, text))
    return found


BLOCKS = read_blocks(PAGE)


def blocks(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one task, to which the page's task is added as the page says."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "harbor/trimul", root / "harbor/trimul")
    shutil.copy(ROOT / "serve.local.yaml", root)
    subprocess.run(["bash", "-euc", blocks("bash")[0].text], cwd=root, check=True)
    written = []
    for block in BLOCKS:
        if block.file is not None and block.language != "bash":
            (root / block.file).write_text(block.text, encoding="utf-8")
            written.append(block.file.removeprefix("harbor/length/"))
    assert written == [
        "instruction.md",
        "contract.json",
        "solution/seed.py",
        "solution/seed.md",
        "guidance_examples.json",
        "judge.py",
    ]
    (line,) = [block.text for block in blocks("python") if "harness/config.py" in block.before]
    assert len(line.strip().splitlines()) == 1
    for name, entry in eval(f"{{{line}}}", {"TaskEntry": TaskEntry}).items():
        monkeypatch.setitem(TASKS, name, entry)  # type: ignore[arg-type]
    return root


@pytest.fixture
def judge_url(project: Path) -> Iterator[str]:
    """The page's judge, as a process of its own."""
    command = [sys.executable, str(project / "harbor/length/judge.py"), "--port", "0"]
    process = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        banner = process.stdout.readline()
        found = re.search(r"http://\S+", banner)
        assert found, banner
        yield found.group(0)
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def grade(project: Path, url: str, program: Path) -> tuple[float, str]:
    command = [sys.executable, "-I", str(project / "harbor/length/tests/grade.py"), "--solution", str(program)]
    command += ["--logs-dir", str(project / "logs"), "--deadline-s", "30", "--poll-s", "0.05"]
    environment = {"PATH": os.environ["PATH"], "GUIDANCE_JUDGE_CONTAINER_URL": url}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    reward = json.loads((project / "logs/reward.json").read_text())["reward"]
    return reward, (project / "logs/reason.txt").read_text()


def test_the_task_of_the_page_is_scored_by_its_judge_through_the_harness(
    project: Path, judge_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = project / "harbor/length/solution/seed.py"
    state = tmp_path / "state"
    environment = {"GUIDANCE_STATE_DIR": str(state), "GUIDANCE_JUDGE_URL": judge_url}
    assert smoke.main(["length"], environment, root=project) == 0
    (entry,) = json.loads((state / "verified-bootstrap-library.json").read_text())["entries"].values()
    assert entry["verifier_raw_score"] == len(seed.read_text())
    assert entry["summary"] == "Prints one word."

    assert evaluate.main(["length", "--judge-url", judge_url], root=project) == 0
    for number, code in enumerate(["x = 1\n" * 500, "no python at all"]):
        wrong = tmp_path / f"wrong-{number}.py"
        wrong.write_text(code)
        assert evaluate.main(["length", "--judge-url", judge_url, "--solution", str(wrong)], root=project) == 1
    said = capsys.readouterr().out
    assert "3000 characters are more than 1000" in said
    assert "this is no Python" in said

    assert grade(project, judge_url, seed)[0] == len(seed.read_text())
    reward, reason = grade(project, judge_url, tmp_path / "wrong-0.py")
    assert reward == 0
    assert "3000 characters" in reason


def test_the_directory_of_the_page_is_a_task_for_harbor_and_for_the_search(project: Path) -> None:
    task_dir = project / "harbor/length"
    contract = load_task(task_dir)
    assert (contract.judge_problem_id, contract.score_direction) == ("length", "max")
    assert len(GuidanceExamples.load(task_dir / "guidance_examples.json").examples) == 3
    task_module = pytest.importorskip("harbor.models.task.task")
    task = task_module.Task(task_dir)
    assert task.name == "guidance-ttt/length"
    assert "8083" in (task_dir / "environment/docker-compose.yaml").read_text()
    assert "trimul" not in (task_dir / "tests/grade.py").read_text()


def test_the_command_of_the_page_resolves_to_this_task_and_its_judge(project: Path, tmp_path: Path) -> None:
    words = shlex.split(blocks("bash")[-1].text.replace("\\\n", " "))
    assert words[-1] == "./run.sh"
    environment = dict(word.split("=", 1) for word in words[:-1])
    config = RunConfig.load({**environment, "GUIDANCE_STATE_DIR": str(tmp_path / "state")}, root=project)
    assert (config.task, config.judge_url, config.executor) == ("length", "http://127.0.0.1:8083", "openai")
    assert config.verifier_timeout_s == 60.0
    assert config.task_dir == project / "harbor/length"


def test_every_other_command_of_the_page_names_programs_that_exist() -> None:
    (block,) = [block for block in blocks("bash") if "smoke.py" in block.text]
    for line in block.text.splitlines():
        python, program, *_ = line.split()
        assert python == ".venv/bin/python"
        assert program == "harbor/length/judge.py" or (ROOT / program).is_file()
