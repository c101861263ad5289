"""What jailed commands can and cannot do: escapes, limits, identity, output, Python."""

# ruff: noqa: ASYNC240 - the loop has nothing else to do while a test looks at the disk

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.jail_fixture import make_environment, needs_jail, output, running, wait_until

from harness.jail.check import check_jail, try_to_escape
from harness.jail.limits import ControlGroups, Limit
from harness.jail.tools import JailUnavailable, find_tools
from harness.local_environment import LocalEnvironment

pytestmark = needs_jail
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")


# --- before anything runs ---------------------------------------------------------------------------------------------


@as_root
def test_a_jail_that_keeps_its_capabilities_is_caught_by_the_escape_attempt() -> None:
    leaky = replace(find_tools(None), drop_capabilities=False, forbid_nested_namespaces=False)
    with pytest.raises(JailUnavailable, match=r"does not hold.*remounted"):
        try_to_escape(leaky)


@as_root
def test_the_check_passes_even_when_root_keeps_its_identity() -> None:
    check_jail(find_tools(None))


def test_preflight_can_be_called_with_and_without_the_keyword_arguments() -> None:
    LocalEnvironment.preflight()
    LocalEnvironment.preflight(None)
    LocalEnvironment.preflight(kwargs={"host_uid": 65534})


def test_missing_bubblewrap_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.jail.tools.HOST_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install -y bubblewrap"):
        LocalEnvironment.preflight()


@as_root
async def test_a_state_root_that_the_jailed_account_cannot_enter_is_refused_by_name(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(JailUnavailable, match=r"uid 65534, which cannot enter .*set TMPDIR"):
        await make_environment(tmp_path, state_root=str(closed)).start(force_build=False)


async def test_a_command_before_the_start_says_that_the_environment_is_not_running(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not running"):
        await make_environment(tmp_path).exec("true")


# --- escapes ----------------------------------------------------------------------------------------------------------


async def test_jailed_code_cannot_write_to_the_host(tmp_path: Path) -> None:
    attempts = """
    for place in /usr /opt /usr/lib /etc /jail /proc/sys/kernel; do
        touch $place/escaped 2>/dev/null && echo wrote $place
    done
    mount -o remount,bind,rw /usr 2>/dev/null && echo remounted
    unshare --user --map-root-user --mount mount -o remount,bind,rw /usr 2>/dev/null && echo remounted nested
    mount -t tmpfs none /tmp 2>/dev/null && echo mounted
    rm -f /lib64 2>/dev/null && echo removed /lib64
    mv /usr /usr2 2>/dev/null && echo moved /usr
    echo evil > /etc/ld.so.preload && echo wrote preload
    mknod /tmp/sda b 8 0 2>/dev/null && echo made a device
    true
    """
    async with running(make_environment(tmp_path)) as environment:
        result = await environment.exec(attempts)
    assert result.stdout == ""
    assert not Path("/usr/escaped").exists()


_HOME = str(Path.home())


async def test_jailed_code_sees_neither_the_hosts_files_nor_its_processes(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("sentinel")
    async with running(make_environment(tmp_path)) as environment:
        seen = await output(environment, f"cat {secret}; ls -A /root /home/agent; ls {_HOME}/.ssh; ls /proc")
        capabilities = await output(environment, "grep CapEff /proc/self/status; touch /workspace/mine")
        assert environment._machine is not None
        assert environment._machine.path is not None
        owner = (environment._machine.path / "root/workspace/mine").stat().st_uid
    assert "sentinel" not in seen
    assert len([word for word in seen.split() if word.isdigit()]) < 5
    assert capabilities.split()[1] == "0" * 16
    assert owner == (os.geteuid() or 65534)


async def test_the_commands_environment_is_not_that_of_the_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUIDANCE_SECRET", "sentinel")
    async with running(make_environment(tmp_path, persistent_env={"TASK": "one"})) as environment:
        shown = await output(environment, "env; tr '\\0' ' ' </proc/1/cmdline", env={"MINE": "two words"})
    assert "sentinel" not in shown
    assert "TASK=one" in shown
    assert "MINE=two words" in shown
    assert shown.count("two words") == 1  # not on the command line as well


async def test_a_planted_link_at_a_mount_point_stops_the_environment(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    mounts = [{"type": "bind", "source": str(shown), "target": "/shared/data"}]
    async with running(make_environment(tmp_path, mounts=mounts)) as environment:
        await environment.exec("mv /shared /away && ln -s /oldroot/tmp /shared")
        with pytest.raises(RuntimeError, match="jailed code replaced /shared/data"):
            await environment.exec("true")


# --- what works -------------------------------------------------------------------------------------------------------


async def test_files_stay_between_commands_and_each_command_starts_in_the_task_directory(tmp_path: Path) -> None:
    async with running(make_environment(tmp_path)) as environment:
        assert await output(environment, "pwd; id -u; mkdir -p /tests/new && echo kept > note") == "/workspace\n0"
        assert await output(environment, "cat note; ls /tests") == "kept\nnew"
        assert await output(environment, "pwd", cwd="/tests") == "/tests"
        assert await output(environment, "id -u; echo $HOME", user="agent") == "1000\n/home/agent"
        with pytest.raises(ValueError, match="no user 'someone'"):
            await environment.exec("true", user="someone")


async def test_the_exit_status_and_both_streams_come_back(tmp_path: Path) -> None:
    async with running(make_environment(tmp_path)) as environment:
        result = await environment.exec("echo out; echo err >&2; exit 7")
        killed = await environment.exec("kill -9 $$")
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 7)
    assert killed.return_code == 137


async def test_concurrent_commands_and_environments_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with running(make_environment(tmp_path / "a")) as first, running(make_environment(tmp_path / "b")) as second:
        texts = await asyncio.gather(
            *(output(env, f"echo {i} > {i}; cat {i}") for i in range(4) for env in (first, second))
        )
        assert texts == ["0", "0", "1", "1", "2", "2", "3", "3"]
        await first.exec("echo secret > /tmp/mine")
        assert "secret" not in await output(second, "cat /tmp/mine")


async def test_output_is_cut_at_the_limit_and_says_so(tmp_path: Path) -> None:
    async with running(make_environment(tmp_path, max_output_bytes=1000)) as environment:
        result = await environment.exec("head -c 3000000 /dev/zero | tr '\\0' a")
    assert result.stdout is not None
    assert result.stdout.startswith("a" * 1000)
    assert "[2999000 further bytes left out]" in result.stdout
    assert len(result.stdout) < 1100


async def test_output_is_streamed_to_the_callback_while_the_command_runs(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def listen(text: str, stream: str) -> None:
        seen.append((stream, text))

    async with running(make_environment(tmp_path)) as environment:
        with environment.scoped_output_callback(listen):
            await environment.exec("echo one; echo two >&2")
    assert sorted(seen) == [("stderr", "two\n"), ("stdout", "one\n")]


@pytest.mark.parametrize("python", ["system", "bundled"])
async def test_python_with_its_standard_library_runs_in_the_jail(tmp_path: Path, python: str) -> None:
    if python == "system" and not os.path.exists("/usr/bin/python3"):
        pytest.skip("no system Python here")
    command = "/jail/bin/python3" if python == "bundled" else "python3"
    script = "import json, ssl, subprocess, sys; print(json.dumps(sys.version_info[0])); print(sys.prefix)"
    async with running(make_environment(tmp_path, python=python)) as environment:
        text = await output(environment, f'{command} -I -c "{script}"')
        written = await output(environment, "touch /jail/python/escaped /jail/bin/escaped")
    assert text.splitlines()[0] == "3"
    if python == "bundled":
        assert text.splitlines()[1] == "/jail/python"
    assert written.count("cannot touch") == 2


async def test_a_host_directory_behind_a_closed_one_can_be_shown(tmp_path: Path) -> None:
    hidden = tmp_path / "closed" / "data"
    hidden.mkdir(parents=True)
    (hidden / "word").write_text("shown")
    hidden.parent.chmod(0o700)
    async with running(make_environment(tmp_path, extra_ro=[str(hidden)])) as environment:
        assert await output(environment, f"cat {hidden}/word") == "shown"
        assert "Read-only" in await output(environment, f"touch {hidden}/new")


# --- limits -----------------------------------------------------------------------------------------------------------


def _enforced(controller: str) -> bool:
    groups = ControlGroups.create([Limit(controller, 64 << 20 if controller == "memory" else 99)])
    groups.remove()
    return not groups.unmet


async def test_memory_above_the_limit_ends_the_command(tmp_path: Path) -> None:
    if not _enforced("memory"):
        pytest.skip("no writable memory control group here")
    async with running(make_environment(tmp_path, config={"memory_mb": 64})) as environment:
        result = await environment.exec("python3 -I -c 'print(len(bytearray(300 << 20)))'")
        small = await environment.exec("python3 -I -c 'print(len(bytearray(8 << 20)))'")
    assert result.return_code == 137
    assert result.stdout == ""
    assert small.return_code == 0


async def test_the_number_of_processes_is_bounded_by_the_kernel_setting(tmp_path: Path) -> None:
    """Reads the limit back where the jail's processes are; nothing is forked to try it."""
    if not _enforced("pids"):
        pytest.skip("no writable pids control group here")
    async with running(make_environment(tmp_path, max_processes=99)) as environment:
        assert environment._machine is not None
        directory = environment._machine._groups.directories[0]
        assert (directory / "pids.max").read_text().strip() == "99"
        task = asyncio.create_task(environment.exec("sleep 30"))
        try:
            assert await asyncio.to_thread(wait_until, lambda: (directory / "cgroup.procs").read_text() != "")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_commands_run_on_as_many_processors_as_the_task_asks_for(tmp_path: Path) -> None:
    async with running(make_environment(tmp_path, config={"cpus": 1})) as environment:
        assert await output(environment, "nproc") == "1"
