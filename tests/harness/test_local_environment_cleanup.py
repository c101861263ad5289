"""Nothing outlives its command, its trial or its harness: time-outs, cancellation, stop, and sweeping after a kill."""

# ruff: noqa: ASYNC240 - the loop has nothing else to do while a test looks at the disk

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.jail_fixture import leftovers, make_environment, needs_jail, output, processes_with, running, wait_until

from harness.jail.owner import is_abandoned, new_name
from harness.jail.space import remove_tree

pytestmark = needs_jail


def _seconds() -> str:
    """A sleeping time that no other process on this machine uses."""
    return f"300.{secrets.randbelow(10**9):09d}"


async def test_a_command_past_its_time_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    token = _seconds()
    async with running(make_environment(tmp_path)) as environment:
        with pytest.raises(RuntimeError, match="Command timed out after 1 seconds"):
            await environment.exec(f"setsid sleep {token} & sleep {token} & sleep {token}", timeout_sec=1)
        assert processes_with(token) == []
        assert await output(environment, "echo next") == "next"


async def test_a_cancelled_command_is_killed_with_its_children(tmp_path: Path) -> None:
    token = _seconds()
    async with running(make_environment(tmp_path)) as environment:
        task = asyncio.create_task(environment.exec(f"sleep {token} >/dev/null 2>&1 & sleep {token}"))
        assert await asyncio.to_thread(wait_until, lambda: len(processes_with(token)) >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(token) == []


async def test_a_command_cancelled_at_any_moment_of_its_start_leaves_no_process(tmp_path: Path) -> None:
    token = _seconds()
    async with running(make_environment(tmp_path)) as environment:
        for delay_ms in range(0, 40, 2):
            task = asyncio.create_task(environment.exec(f"sleep {token}"))
            await asyncio.sleep(delay_ms / 1000)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert processes_with(token) == []


async def test_background_processes_end_with_their_command(tmp_path: Path) -> None:
    token = _seconds()
    async with running(make_environment(tmp_path)) as environment:
        assert await output(environment, f"(setsid sleep {token} >/dev/null 2>&1 &) ; echo done") == "done"
        assert processes_with(token) == []


async def test_stopping_ends_a_running_command_and_leaves_nothing_behind(tmp_path: Path) -> None:
    token = _seconds()
    environment = make_environment(tmp_path, config={"memory_mb": 64})
    async with asyncio.timeout(60):
        await environment.start(force_build=False)
        assert leftovers()
        task = asyncio.create_task(environment.exec(f"sleep {token}"))
        assert await asyncio.to_thread(wait_until, lambda: bool(processes_with(token)))
        await environment.stop(delete=True)
        with pytest.raises(RuntimeError, match="stopped while a command ran"):
            await task
        await environment.stop(delete=True)  # a second stop is harmless
    assert processes_with(token) == []
    assert leftovers() == set()


async def test_trees_made_to_resist_deletion_are_deleted(tmp_path: Path) -> None:
    async with running(make_environment(tmp_path)) as environment:
        await environment.exec("mkdir locked && touch locked/file && chmod 0 locked")
        nest = "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
        assert await output(environment, f'python3 -I -c "{nest}"') == ""
    assert leftovers() == set()


async def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "Dockerfile").write_text("FROM scratch\nCOPY missing.txt /app/\n")
    with pytest.raises(ValueError, match=r"copies 'missing\.txt', which is not in that directory"):
        await make_environment(tmp_path).start(force_build=False)
    assert leftovers() == set()


async def test_a_start_cancelled_while_it_builds_leaves_nothing_behind(tmp_path: Path) -> None:
    cancelled = 0
    for delay_ms in (0, 20, 60, 150):
        environment = make_environment(tmp_path)
        task = asyncio.create_task(environment.start(force_build=False))
        await asyncio.sleep(delay_ms / 1000)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled += 1
        else:  # a fast machine was ready before it was cancelled
            await environment.stop(delete=True)
        assert leftovers() == set()
    assert cancelled >= 1


async def test_files_are_kept_out_of_the_sweep_when_deletion_is_not_wanted(tmp_path: Path) -> None:
    state_root = Path(tempfile.mkdtemp(prefix="guidance-test-"))
    state_root.chmod(0o755)
    try:
        environment = make_environment(tmp_path, state_root=str(state_root))
        await environment.start(force_build=False)
        await environment.exec("echo kept > note")
        await environment.stop(delete=False)
        notes = list(state_root.glob("*/kept-*/root/workspace/note"))
        assert [note.read_text() for note in notes] == ["kept\n"]
    finally:
        await asyncio.to_thread(remove_tree, state_root)


@pytest.mark.slow
async def test_after_a_kill_the_jail_dies_and_the_next_start_sweeps_its_files(tmp_path: Path) -> None:
    token = _seconds()
    (tmp_path / "held").mkdir()
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    holder = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "support.jail_holder", str(tmp_path / "held"), token],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert holder.stdout is not None
        left = Path((await asyncio.to_thread(holder.stdout.readline)).strip())
        assert await asyncio.to_thread(wait_until, lambda: len(processes_with(token)) >= 4)
        async with running(make_environment(tmp_path)):
            assert left.is_dir()  # its owner lives
        holder.send_signal(signal.SIGKILL)
        await asyncio.to_thread(holder.wait)
        assert await asyncio.to_thread(wait_until, lambda: processes_with(token) == [])
        assert left.is_dir()
        async with running(make_environment(tmp_path)):
            assert not left.exists()
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_only_names_of_dead_processes_of_this_pid_namespace_count_as_abandoned() -> None:
    mine = new_name()
    _, _, pid, start, space, tag = mine.split("-")
    assert not is_abandoned(mine)
    assert is_abandoned(f"guidance-ttt-{pid}-{int(start) + 1}-{space}-{tag}")  # the pid was reused
    assert is_abandoned(f"guidance-ttt-{2**22 + 1}-{start}-{space}-{tag}")  # no such process
    assert not is_abandoned(f"guidance-ttt-{2**22 + 1}-{start}-1-{tag}")  # a process of another container
    assert not is_abandoned("guidance-ttt-something-else")
    assert not is_abandoned(f"kept-{mine}")
