"""Control groups of both versions, written to a directory that stands in for the kernel's."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from judges.errors import SandboxFault
from judges.sandbox import MIB, Limits
from judges.sandbox.cage import kill_all
from judges.sandbox.cgroup import open_tree, read_int, read_keyed_int, read_members, write_checked
from judges.sandbox.cgroup_v1 import CgroupV1, GroupV1
from judges.sandbox.cgroup_v2 import CgroupV2, GroupV2, own_v2_path
from judges.sandbox.owner import owner_token

LIMITS = Limits(cpu_s=2.0, wall_s=4.0, memory_bytes=256 * MIB, pids=32)


@pytest.fixture
def v1_root(tmp_path: Path) -> Path:
    for name in ("memory", "pids", "cpuacct"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def v2_root(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    return tmp_path


def test_version_1_writes_each_limit_to_its_controller(v1_root: Path) -> None:
    tree = open_tree(v1_root)
    assert isinstance(tree, CgroupV1)
    group = tree.create(LIMITS)
    [name] = [path.name for path in (v1_root / "memory/guidance-judge").iterdir()]
    assert name.startswith(owner_token())
    assert (v1_root / f"memory/guidance-judge/{name}/memory.limit_in_bytes").read_text() == str(256 * MIB)
    assert (v1_root / f"pids/guidance-judge/{name}/pids.max").read_text() == "32"
    assert group.pids_max() == 32
    assert [path.parent.parent.parent.name for path in group.join_files] == ["memory", "pids", "cpuacct"]
    assert {path.name for path in group.join_files} == {"cgroup.procs"}


def test_version_1_measurements_are_read_from_its_files(v1_root: Path) -> None:
    group = CgroupV1(v1_root).create(LIMITS)
    with pytest.raises(SandboxFault, match=r"cpuacct\.usage"):
        group.cpu_s()
    memory, _, cpuacct = (path.parent for path in group.join_files)
    (cpuacct / "cpuacct.usage").write_text("1500000000\n")
    (memory / "memory.max_usage_in_bytes").write_text("4096\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (group.cpu_s(), group.memory_peak_bytes(), group.oom_kills()) == (1.5, 4096, 2)


def test_version_1_limits_swap_where_swap_is_counted(v1_root: Path) -> None:
    directories = {name: v1_root / name / "group" for name in ("memory", "pids", "cpuacct")}
    swap = directories["memory"] / "memory.memsw.limit_in_bytes"
    swap.parent.mkdir()
    swap.write_text("9223372036854771712\n")
    GroupV1(directories).prepare(LIMITS)
    assert swap.read_text() == str(256 * MIB)


def test_version_2_delegates_and_writes_every_limit(v2_root: Path) -> None:
    tree = open_tree(v2_root)
    assert isinstance(tree, CgroupV2)
    assert (v2_root / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (v2_root / "guidance-judge/cgroup.subtree_control").read_text() == "+memory +pids"
    group = tree.create(LIMITS)
    [directory] = [path for path in (v2_root / "guidance-judge").iterdir() if path.is_dir()]
    assert (directory / "memory.max").read_text() == str(256 * MIB)
    assert (directory / "pids.max").read_text() == "32"
    assert group.join_files == (directory / "cgroup.procs",)
    assert group.pids_max() == 32


def test_version_2_measurements_are_read_from_its_files(v2_root: Path) -> None:
    group = CgroupV2.open(v2_root).create(LIMITS)
    with pytest.raises(SandboxFault, match=r"cpu\.stat"):
        group.cpu_s()
    directory = group.join_files[0].parent
    (directory / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    (directory / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n")
    (directory / "memory.current").write_text("100\n")
    assert (group.cpu_s(), group.oom_kills(), group.memory_peak_bytes()) == (2.5, 1, 100)
    (directory / "memory.peak").write_text("4096\n")
    assert group.memory_peak_bytes() == 4096


def test_version_2_turns_swap_off_and_kills_a_run_as_a_whole(tmp_path: Path) -> None:
    for name in ("memory.swap.max", "memory.oom.group", "cgroup.kill", "cgroup.procs"):
        (tmp_path / name).write_text("")
    group = GroupV2(tmp_path)
    group.prepare(LIMITS)
    assert (tmp_path / "memory.swap.max").read_text() == "0"
    assert (tmp_path / "memory.oom.group").read_text() == "1"
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        (tmp_path / "cgroup.procs").write_text(f"{sleeper.pid}\n")

        def drop_the_dead() -> None:
            sleeper.wait()
            (tmp_path / "cgroup.procs").write_text("")

        kernel = threading.Thread(target=drop_the_dead)
        kernel.start()
        group.kill()
        kernel.join()
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    assert sleeper.returncode == -9
    assert group.processes() == []


def test_a_process_that_survives_its_kill_is_a_fault() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(SandboxFault, match=r"some run: processes \[\d+\] survived SIGKILL for 0.1 s"):
        kill_all(lambda: [gone.pid], "some run", deadline_s=0.1)


def test_version_2_climbs_to_an_ancestor_that_can_delegate(v2_root: Path) -> None:
    own = v2_root / "user.slice/session.scope"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("pids\n")
    (own.parent / "cgroup.controllers").write_text("memory pids\n")
    (own.parent / "cgroup.subtree_control").write_text("memory pids\n")
    CgroupV2.open(v2_root, "user.slice/session.scope")
    assert (own.parent / "guidance-judge").is_dir()
    assert (own.parent / "cgroup.subtree_control").read_text() == "memory pids\n"
    assert not (v2_root / "guidance-judge").exists()


def test_version_2_says_why_nothing_can_be_delegated(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(SandboxFault, match="does not offer the controllers memory, pids"):
        open_tree(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_a_parent_that_another_judge_removed_is_made_again(version: int, tmp_path: Path) -> None:
    if version == 1:
        for name in ("memory", "pids", "cpuacct"):
            (tmp_path / name).mkdir()
    else:
        (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    tree = open_tree(tmp_path)
    tree.create(LIMITS)
    for parent in list(tmp_path.glob("**/guidance-judge")):
        shutil.rmtree(parent)
    assert tree.create(LIMITS).pids_max() == LIMITS.pids
    if version == 2:
        assert (tmp_path / "guidance-judge/cgroup.subtree_control").read_text() == "+memory +pids"


def test_own_group_is_found_in_the_process_file(tmp_path: Path) -> None:
    listing = tmp_path / "cgroup"
    listing.write_text("9:name=systemd:/x\n0::/user.slice/a.scope\n")
    assert own_v2_path(listing) == "user.slice/a.scope"
    listing.write_text("0::/../../other\n")
    assert own_v2_path(listing) == ""
    assert own_v2_path(tmp_path / "absent") == ""


def test_a_machine_without_control_groups_is_named(tmp_path: Path) -> None:
    with pytest.raises(SandboxFault, match="neither version 2"):
        open_tree(tmp_path)


def test_a_limit_that_the_kernel_does_not_take_is_a_fault(tmp_path: Path) -> None:
    limit = tmp_path / "limit"
    limit.symlink_to("/dev/null")
    with pytest.raises(SandboxFault, match="does not hold"):
        write_checked(limit, 32)
    with pytest.raises(SandboxFault, match="cannot write"):
        write_checked(tmp_path / "absent/limit", 32)


def test_kernel_files_are_read_forgivingly(tmp_path: Path) -> None:
    path = tmp_path / "value"
    assert read_int(path) is None
    path.write_text("max\n")
    assert read_int(path) is None
    path.write_text("a 1\nb x\n")
    assert (read_keyed_int(path, "a"), read_keyed_int(path, "b"), read_keyed_int(path, "c")) == (1, None, None)
    assert read_members(tmp_path) == []


@pytest.mark.parametrize("version", [1, 2])
def test_groups_of_dead_judges_are_swept_and_others_kept(version: int, tmp_path: Path) -> None:
    if version == 1:
        for name in ("memory", "pids", "cpuacct"):
            (tmp_path / name / "guidance-judge").mkdir(parents=True)
        parents = [tmp_path / name / "guidance-judge" for name in ("memory", "pids", "cpuacct")]
    else:
        (tmp_path / "cgroup.controllers").write_text("memory pids\n")
        parents = [tmp_path / "guidance-judge"]
        parents[0].mkdir()
    tree = open_tree(tmp_path)
    namespace, pid, start = owner_token().split(".")
    for parent in parents:
        (parent / f"{namespace}.{pid}.{int(start) + 1}.1").mkdir()
        (parent / f"{owner_token()}.1").mkdir()
        (parent / "something-else").mkdir()
    assert tree.sweep() == 1
    for parent in parents:
        left = {path.name for path in parent.iterdir() if path.is_dir()}
        assert left == {f"{owner_token()}.1", "something-else"}
    tree.close()
    assert all(parent.exists() for parent in parents)
    for parent in parents:
        shutil.rmtree(parent)
