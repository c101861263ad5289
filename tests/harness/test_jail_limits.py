"""Control groups: both kernel interfaces, and limits that the kernel does not confirm."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jail.limits import ControlGroups, Limit, _set_limit


def _files(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).write_text("max\n")
    return directory


def test_a_limit_that_does_not_read_back_counts_as_not_set(tmp_path: Path) -> None:
    (tmp_path / "pids.max").symlink_to("/dev/null")
    with pytest.raises(OSError, match=r"pids.max reads  after 99 was written"):
        _set_limit(tmp_path, Limit("pids", 99))


def test_the_unified_interface_bounds_memory_and_forbids_swap(tmp_path: Path) -> None:
    _set_limit(_files(tmp_path, "memory.max", "memory.swap.max"), Limit("memory", 1 << 26))
    assert (tmp_path / "memory.max").read_text() == str(1 << 26)
    assert (tmp_path / "memory.swap.max").read_text() == "0"


def test_the_older_interface_bounds_memory_and_swap_together(tmp_path: Path) -> None:
    _set_limit(_files(tmp_path, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), Limit("memory", 1 << 26))
    assert (tmp_path / "memory.limit_in_bytes").read_text() == str(1 << 26)
    assert (tmp_path / "memory.memsw.limit_in_bytes").read_text() == str(1 << 26)


def test_limits_are_in_force_or_named_with_the_reason_and_the_groups_go_away() -> None:
    groups = ControlGroups.create([Limit("memory", 1 << 28), Limit("pids", 500)])
    try:
        assert all(directory.is_dir() for directory in groups.directories)
        assert all(groups.unmet.values())
        assert groups.directories or len(groups.unmet) == 2
    finally:
        groups.remove()
    assert not any(directory.exists() for directory in groups.directories)
    groups.remove()  # a second time is harmless
