"""Choosing a tier: what does not hold is refused, with the reason and the cure."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from judges_testkit import JudgeProcess, groups_of_this_process, scratch_of_this_process

import judges.sandbox.detect as detect
from judges.errors import SandboxFault, SandboxUnavailable
from judges.sandbox import Sandbox, Tier, open_sandbox
from judges.sandbox.cpp import find_compiler
from judges.sandbox.jail import NOBODY, Jail, Tools
from judges.sandbox.owner import owner_is_gone, owner_token
from judges.sandbox.sandbox import make_scratch_root

ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    groups, scratch = len(groups_of_this_process()), len(scratch_of_this_process())
    yield
    assert len(groups_of_this_process()) == groups
    assert len(scratch_of_this_process()) == scratch


def test_a_jail_that_keeps_capabilities_is_found_out(sandbox: Sandbox) -> None:
    if not ROOT:
        pytest.skip("only root has capabilities to keep")
    leaking = Jail(tools=Tools.find(), tier=Tier.RLIMIT, host_uid=None, drop_capabilities=False)
    with (
        Sandbox(leaking, None, make_scratch_root(None)) as jailed,
        pytest.raises(SandboxFault, match="remounted a read-only host directory"),
    ):
        detect.check_containment(jailed)


def test_process_limits_that_root_ignores_are_found_out(sandbox: Sandbox) -> None:
    """Without a user of its own a program of root's may fork as it likes; the check must see that."""
    if not ROOT:
        pytest.skip("only root is exempt from the process limit")
    as_root = Jail(tools=Tools.find(), tier=Tier.RLIMIT, host_uid=None)
    with (
        Sandbox(as_root, None, make_scratch_root(None)) as jailed,
        pytest.raises(SandboxFault, match="processes where 16 are allowed"),
    ):
        detect.check_containment(jailed)


def test_probe_answers_are_judged_strictly() -> None:
    good = {"bound": "0", "root": "0", "passwd": "0", "links": "0", "forks": "12"}
    detect._judge_probe(good, escaped=False)
    for change in ({"bound": "1"}, {"root": "1"}, {"passwd": "1"}, {"links": "2"}, {"forks": "16"}):
        with pytest.raises(SandboxFault):
            detect._judge_probe(good | change, escaped=False)
    with pytest.raises(SandboxFault):
        detect._judge_probe(good, escaped=True)
    with pytest.raises(SandboxFault):
        detect._judge_probe({}, escaped=False)


def test_without_control_groups_the_weaker_tier_is_taken(tmp_path: Path) -> None:
    with open_sandbox(cgroup_root=tmp_path) as sandbox:
        assert sandbox.tier is Tier.RLIMIT


def test_unsafe_is_never_chosen_unasked() -> None:
    with pytest.raises(SandboxUnavailable, match="--unsafe"):
        open_sandbox(only=Tier.UNSAFE)


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"g\+\+ is missing; install it with: apt-get install -y g\+\+"):
        find_compiler(str(tmp_path))
    elsewhere = tmp_path / "g++"
    elsewhere.write_text("#!/bin/sh\n")
    elsewhere.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="outside /usr"):
        find_compiler(str(tmp_path))


def test_a_missing_bubblewrap_is_named_with_the_command_that_installs_it() -> None:
    bare = Tools(sh=Path("/bin/sh"), bwrap=None, setpriv=None, prlimit=None)
    with pytest.raises(SandboxUnavailable, match="apt-get install -y bubblewrap"):
        open_sandbox(tools=bare)


def test_a_bubblewrap_that_is_too_old_is_refused() -> None:
    old = dataclasses.replace(Tools.find(), bwrap_options=frozenset())
    with pytest.raises(SandboxUnavailable, match=r"install bubblewrap 0\.4 or newer"):
        open_sandbox(tools=old)


def test_unsafe_runs_without_bubblewrap_when_it_is_allowed() -> None:
    bare = Tools(sh=Path("/bin/sh"), bwrap=None, setpriv=None, prlimit=None)
    with open_sandbox(tools=bare, allow_unsafe=True) as sandbox:
        assert sandbox.tier is Tier.UNSAFE


def test_an_ordinary_user_gets_a_sandbox_or_a_clear_refusal() -> None:
    if not ROOT:
        pytest.skip("this whole run is the test when it is not run by root")
    program = """
import judges.errors, judges.sandbox as s
try:
    with s.open_sandbox() as box:
        c = s.compile_cpp(box, b"int main() {}")
        with box.executable(c.binary) as p:
            command = s.Command(("/w/a",), s.Limits(2, 4, 64 * s.MIB), (s.Bind(p, "/w/a"),))
            print(box.tier.value, box.run(command).status.value)
except judges.errors.SandboxUnavailable as error:
    print("refused", "user namespaces" in str(error))
"""
    with tempfile.TemporaryDirectory(prefix="judges-copy-") as name:
        # A copy, because the checkout may lie in a directory that only root can enter.
        copy = Path(name)
        copy.chmod(0o755)
        shutil.copytree(Path(detect.__file__).parents[1], copy / "judges", ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "program.py").write_text(program)
        python = next((p for p in (sys.executable, "/usr/bin/python3") if _can_run_as_nobody(p)), None)
        if python is None:
            pytest.skip("no recent Python that an ordinary user can run")
        done = subprocess.run(
            _as_nobody([python, "-B", "program.py"]), cwd=copy, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.stdout.strip() in ("cgroup Accepted", "rlimit Accepted", "refused True"), done.stderr


def _as_nobody(command: list[str]) -> list[str]:
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", *command]


def _can_run_as_nobody(python: str) -> bool:
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run(_as_nobody([python, "-c", check]), capture_output=True, check=False).returncode == 0


def test_a_directory_the_jail_cannot_enter_is_not_used(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    inner = private / "inner"
    inner.mkdir()
    with pytest.raises(SandboxUnavailable, match="cannot enter"):
        make_scratch_root(NOBODY, inner)
    with pytest.raises(SandboxUnavailable, match="set TMPDIR"):
        make_scratch_root(None, tmp_path / "absent")


def test_scratch_of_dead_judges_is_removed_and_that_of_live_ones_kept(tmp_path: Path) -> None:
    namespace, pid, start = owner_token().split(".")
    dead = tmp_path / f"guidance-judge-{namespace}.{pid}.{int(start) + 1}.abc"
    live = tmp_path / f"guidance-judge-{owner_token()}.abc"
    foreign = tmp_path / f"guidance-judge-1{namespace}.{pid}.1.abc"
    other = tmp_path / "guidance-judge-notes"
    for path in (dead, live, foreign, other):
        path.mkdir()
    shutil.rmtree(make_scratch_root(None, tmp_path))
    assert [path.exists() for path in (dead, live, foreign, other)] == [False, True, True, True]


def test_owner_tokens_tell_live_from_dead() -> None:
    assert not owner_is_gone(f"{owner_token()}.1")
    assert not owner_is_gone("README")
    done = subprocess.Popen(["true"])
    namespace = owner_token().split(".")[0]
    done.wait()
    assert owner_is_gone(f"{namespace}.{done.pid}.1.1")


def test_a_killed_judge_leaves_nothing_that_the_next_does_not_remove(
    start_judge: Callable[..., JudgeProcess], tmp_path: Path
) -> None:
    first = start_judge()
    mark = f".{first.process.pid}."
    first.process.kill()
    first.process.wait()
    assert any(mark in path.name for path in Path(tempfile.gettempdir()).glob("guidance-judge-*"))
    second = start_judge(state_dir=tmp_path / "other")
    assert not any(mark in path.name for path in Path(tempfile.gettempdir()).glob("guidance-judge-*"))
    assert second.stop() == 0
