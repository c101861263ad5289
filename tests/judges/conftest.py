"""Shared fixtures: one sandbox for the whole folder, programs compiled in it, and a real judge process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judges_testkit import (
    JudgeProcess,
    RunProgram,
    first_line,
    groups_of_this_process,
    run_source,
    scratch_of_this_process,
)

from judges.errors import SandboxUnavailable
from judges.polyomino.suite import Suite, load_own_suite
from judges.sandbox import RunResult, Sandbox, Tier, open_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The best sandbox of this machine; afterwards nothing of it may be left."""
    try:
        opened = open_sandbox()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened
    assert groups_of_this_process() == []
    assert scratch_of_this_process() == []


@pytest.fixture(scope="session")
def cgroup_sandbox(sandbox: Sandbox) -> Sandbox:
    """The sandbox, on machines where it uses control groups."""
    if sandbox.tier is not Tier.CGROUP:
        pytest.skip(f"needs control groups; the sandbox tier here is {sandbox.tier.value}")
    return sandbox


@pytest.fixture
def run_program(sandbox: Sandbox) -> RunProgram:
    """`run_program(source, ...)` in the session's sandbox."""

    def run(source: str, *arguments: str, **options: object) -> RunResult:
        return run_source(sandbox, source, *arguments, **options)  # type: ignore[arg-type]

    return run


@pytest.fixture(scope="session")
def own_suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """The project's own cases, generated once for the whole folder."""
    return load_own_suite(tmp_path_factory.mktemp("suite") / "cases")


@pytest.fixture(scope="session")
def official_dir() -> Path:
    """The official data, on machines that have it."""
    shared = Path(__file__).parents[2].parent / "shared/data/frontiercs-problem-0"
    directory = Path(os.environ.get("GUIDANCE_TEST_DATA", shared))
    if not (directory / "testdata").is_dir():
        pytest.skip(f"no official data in {directory}")
    return directory


@pytest.fixture
def start_judge(tmp_path: Path, sandbox: Sandbox, own_suite: Suite) -> Iterator[Callable[..., JudgeProcess]]:
    """Start `python -m judges polyomino` on a free port; every judge started here is ended."""
    started: list[JudgeProcess] = []

    def start(*options: str, state_dir: Path | None = None) -> JudgeProcess:
        state_dir = state_dir or tmp_path / "state"
        if not state_dir.exists():
            # Saves each judge the second it takes to generate them; the hash is verified all the same.
            (state_dir / "polyomino-cases").mkdir(parents=True)
            for number, data in enumerate(own_suite.inputs, start=1):
                (state_dir / f"polyomino-cases/{number}.in").write_bytes(data)
        environment = {key: value for key, value in os.environ.items() if key != "FRONTIERCS_DIR"}
        command = [sys.executable, "-m", "judges", "polyomino", "--port", "0"]
        process = subprocess.Popen(
            [*command, "--state-dir", str(state_dir), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment,
        )
        judge = JudgeProcess(process, url="", banner="")
        started.append(judge)
        judge.banner = first_line(process)
        found = re.search(r"http://\S+", judge.banner)
        assert found, judge.banner
        judge.url = found.group(0)
        return judge

    yield start
    for judge in started:
        judge.process.terminate()
        judge.process.communicate(timeout=20)
