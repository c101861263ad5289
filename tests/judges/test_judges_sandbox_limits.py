"""What a run costs and how it ends: statuses, limits, measurements."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import threading
import time

import pytest
from judges_testkit import RUN_LIMITS, RunProgram, groups_of_this_process, processes_with

from judges.errors import SandboxFault, SandboxStopped
from judges.sandbox import MIB, Bind, Command, Limits, Sandbox, Status, Tier, compile_cpp, open_sandbox
from judges.sandbox.cage import TreeCage, core_wait_s
from judges.sandbox.supervise import Supervisor

SPIN = "int main() { volatile unsigned long n = 0; for (;;) n = n + 1; }"
SLEEP = "#include <unistd.h>\nint main() { sleep(60); }"
ECHO = """
#include <cstdio>
int main() { int c; while ((c = getchar()) != EOF) putchar(c); }
"""


def with_cpu(cpu_s: float) -> Limits:
    return dataclasses.replace(RUN_LIMITS, cpu_s=cpu_s, wall_s=2 * cpu_s)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("return 3;", Status.NONZERO_EXIT, 3),
        ("abort();", Status.SIGNALLED, 134),
        ("*(volatile int *)0 = 1; return 0;", Status.SIGNALLED, 139),
        ("std::vector<char> v(10ull << 30); return v[5];", Status.SIGNALLED, 134),
        ("return 0;", Status.ACCEPTED, 0),
    ],
)
def test_a_run_reports_how_the_program_ended(run_program: RunProgram, body: str, status: Status, code: int) -> None:
    result = run_program(f"#include <cstdlib>\n#include <vector>\nint main() {{ {body} }}")
    assert (result.status, result.exit_code) == (status, code)


def test_a_spinning_program_is_cut_at_its_cpu_limit(run_program: RunProgram) -> None:
    result = run_program(SPIN, limits=with_cpu(0.5))
    assert result.status is Status.TIME_LIMIT
    assert 0.5 <= result.cpu_s < 0.8
    assert result.exit_code is None


def test_a_sleeping_program_is_cut_at_its_wall_limit(run_program: RunProgram) -> None:
    result = run_program(SLEEP, limits=with_cpu(0.4))
    assert result.status is Status.TIME_LIMIT
    assert result.wall_s >= 0.8
    assert result.cpu_s < 0.2


def test_cpu_time_of_children_counts_for_the_parent(run_program: RunProgram) -> None:
    source = """
    #include <sys/wait.h>
    #include <unistd.h>
    int main() {
        for (int i = 0; i < 4; ++i) if (fork() == 0) { volatile unsigned long n = 0; for (;;) n = n + 1; }
        while (wait(nullptr) > 0) {}
    }
    """
    # No child alone reaches the limit before the wall limit on two cores; only their sum does.
    result = run_program(source, limits=dataclasses.replace(RUN_LIMITS, cpu_s=0.8, wall_s=8.0))
    assert result.status is Status.TIME_LIMIT
    assert 0.8 <= result.cpu_s < 1.5


def test_memory_use_is_capped_and_measured(cgroup_sandbox: Sandbox, run_program: RunProgram) -> None:
    touch = """
    #include <cstring>
    #include <cstdlib>
    int main(int, char **a) {
        size_t n = atol(a[1]) << 20; char *p = (char *)malloc(n); if (!p) return 9;
        memset(p, 1, n); return p[n / 2] - 1;
    }
    """
    limits = dataclasses.replace(RUN_LIMITS, memory_bytes=64 * MIB, address_space_bytes=None, stack_bytes=None)
    within = run_program(touch, "32", limits=limits)
    assert within.status is Status.ACCEPTED
    assert 32 * MIB <= within.memory_bytes <= 64 * MIB
    assert run_program(touch, "512", limits=limits).status is Status.MEMORY_LIMIT
    address_space = dataclasses.replace(limits, address_space_bytes=64 * MIB)
    assert run_program(touch, "512", limits=address_space).exit_code == 9


def test_endless_output_is_cut_by_the_reader(run_program: RunProgram) -> None:
    flood = '#include <cstdio>\nint main() { for (;;) puts("0123456789012345678901234567890123456789"); }'
    result = run_program(flood, limits=dataclasses.replace(RUN_LIMITS, stdout_bytes=100_000))
    assert result.status is Status.OUTPUT_LIMIT
    assert len(result.stdout) == 100_000


def test_endless_diagnostics_are_cut_short_but_not_punished(run_program: RunProgram) -> None:
    chatty = """
    #include <cstdio>
    int main() { for (int i = 0; i < 20000; ++i) fputs("0123456789\\n", stderr); puts("fine"); }
    """
    result = run_program(chatty)
    assert result.status is Status.ACCEPTED
    assert result.stdout == b"fine\n"
    assert len(result.stderr) == RUN_LIMITS.stderr_bytes


def test_input_and_output_larger_than_a_pipe_arrive_unchanged(run_program: RunProgram) -> None:
    data = bytes(range(256)) * 4096
    result = run_program(ECHO, stdin=data)
    assert result.status is Status.ACCEPTED
    assert result.stdout == data


def test_a_program_that_ignores_its_input_is_not_at_fault(run_program: RunProgram) -> None:
    assert run_program("int main() {}", stdin=b"x" * (4 * MIB)).status is Status.ACCEPTED


def test_a_program_that_cannot_be_started_is_a_fault_of_the_judge(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFault, match="did not start"):
        sandbox.run(Command(("/w/absent",), RUN_LIMITS))
    assert groups_of_this_process() == []


def test_nonsensical_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="cpu_s"):
        Limits(cpu_s=0, wall_s=1, memory_bytes=MIB)


def test_isolation_costs_less_than_forty_milliseconds_a_run(sandbox: Sandbox) -> None:
    compiled = compile_cpp(sandbox, b"int main() {}")
    with sandbox.executable(compiled.binary) as program:
        command = Command(("/w/a",), RUN_LIMITS, (Bind(program, "/w/a"),))
        bare, jailed = [], []
        for _ in range(15):
            begin = time.perf_counter()
            subprocess.run([str(program)], check=True)
            middle = time.perf_counter()
            sandbox.run(command)
            bare.append(middle - begin)
            jailed.append(time.perf_counter() - middle)
    # The best third: this machine may be busy with other things.
    quick_bare, quick_jailed = (statistics.median(sorted(times)[:5]) for times in (bare, jailed))
    assert quick_jailed - quick_bare < 0.040


def test_stopping_kills_running_programs_and_refuses_new_ones() -> None:
    with open_sandbox() as sandbox:
        compiled = compile_cpp(sandbox, SLEEP.encode())
        outcome: list[BaseException] = []
        marker = "/w/sleeper-to-be-stopped"
        with sandbox.executable(compiled.binary) as program:

            def run() -> None:
                try:
                    sandbox.run(Command((marker,), RUN_LIMITS, (Bind(program, marker),)))
                except SandboxStopped as stopped:
                    outcome.append(stopped)

            thread = threading.Thread(target=run)
            thread.start()
            deadline = time.monotonic() + 5
            while not processes_with(marker) and time.monotonic() < deadline:
                time.sleep(0.01)
            sandbox.stop()
            thread.join(5)
            assert len(outcome) == 1
            assert processes_with(marker) == []
            with pytest.raises(SandboxStopped):
                sandbox.run(Command((marker,), RUN_LIMITS, (Bind(program, marker),)))


def test_parallel_runs_do_not_disturb_each_other(sandbox: Sandbox) -> None:
    compiled = compile_cpp(sandbox, ECHO.encode())
    results: dict[int, bytes] = {}

    def work(number: int) -> None:
        # A fresh executable each time: a program still open for writing elsewhere could not be started.
        for _ in range(8):
            with sandbox.executable(compiled.binary) as program:
                command = Command(("/w/a",), RUN_LIMITS, (Bind(program, "/w/a"),), str(number).encode())
                results[number] = sandbox.run(command).stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: str(number).encode() for number in range(4)}


def test_waiting_for_a_core_is_told_apart_from_sleeping() -> None:
    sleeper = subprocess.Popen(["sleep", "5"])
    core = str(min(os.sched_getaffinity(0)))
    rivals = [subprocess.Popen(["taskset", "-c", core, "sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        time.sleep(0.6)
        assert core_wait_s([sleeper.pid]) < 0.3
        assert core_wait_s([rival.pid for rival in rivals]) > 0.1
    finally:
        for process in [sleeper, *rivals]:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("waited_s", "fault"), [(0.0, False), (99.0, True)])
def test_a_run_that_never_got_a_core_is_the_machines_fault_and_not_the_programs(waited_s: float, fault: bool) -> None:
    process = subprocess.Popen(
        ["sleep", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, bufsize=0
    )
    with process:
        cage = TreeCage()
        cage.attach(process.pid)
        supervisor = Supervisor(
            process=process,
            cage=cage,
            limits=dataclasses.replace(RUN_LIMITS, wall_s=0.2),
            status_fd=None,
            stopping=threading.Event(),
            measure_wait_s=lambda _: waited_s,
        )
        if fault:
            with pytest.raises(SandboxFault, match="the machine is too busy"):
                supervisor.watch()
        else:
            assert supervisor.watch().status is Status.TIME_LIMIT
    assert process.returncode == -9


def test_a_process_tree_is_measured_and_killed_without_control_groups() -> None:
    process = subprocess.Popen(["sh", "-c", "while :; do :; done & while :; do :; done"])
    cage = TreeCage()
    cage.attach(process.pid)
    try:
        deadline = time.monotonic() + 10
        while (cage.cpu_s() < 0.1 or len(cage.processes()) < 2) and time.monotonic() < deadline:
            time.sleep(0.02)
        members = cage.processes()
        assert len(members) == 2
        assert cage.cpu_s() >= 0.1
        assert cage.memory_peak_bytes() > 0
        assert cage.pids_max() is None
    finally:
        cage.kill()
        process.wait()
    assert cage.processes() == [process.pid] or cage.processes() == []


@pytest.mark.parametrize("tier", [Tier.RLIMIT, Tier.UNSAFE])
def test_the_weaker_tiers_keep_time_output_and_exit_codes(tier: Tier) -> None:
    with open_sandbox(only=tier, allow_unsafe=True) as sandbox:
        assert sandbox.tier is tier
        for source, limits, status in [
            (ECHO, RUN_LIMITS, Status.ACCEPTED),
            ("int main() { return 4; }", RUN_LIMITS, Status.NONZERO_EXIT),
            (SPIN, with_cpu(0.3), Status.TIME_LIMIT),
            (SLEEP, with_cpu(0.3), Status.TIME_LIMIT),
        ]:
            compiled = compile_cpp(sandbox, source.encode(), flags=("-O1", "-pipe"))
            assert compiled.ok, compiled.message
            with sandbox.executable(compiled.binary) as program:
                result = sandbox.run(Command(("/w/a",), limits, (Bind(program, "/w/a"),), b"text"))
            assert result.status is status
            assert result.stdout == (b"text" if source is ECHO else b"")
        broken = compile_cpp(sandbox, b"int main() { return x; }")
        assert broken.message.startswith("main.cpp: In function")
