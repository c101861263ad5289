"""A timed run is fed and read through pipes, its time is taken from outside, and nothing a program does can hang it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from judges.errors import SandboxFault
from judges.lasso_path.judge import RUN_LIMITS
from judges.lasso_path.stopwatch import Stopwatch, TimedRun
from judges.sandbox import MIB, Limits, Sandbox, Status, Tier, compile_cpp

pytestmark = pytest.mark.slow

HEAD = """
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <initializer_list>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
static void pause_ms(long ms) { timespec t{ms / 1000, ms % 1000 * 1000000}; nanosleep(&t, nullptr); }
static long drain() { static char b[65536]; long n = 0, k; while ((k = read(0, b, sizeof b)) > 0) n += k; return n; }
"""
SHORT = replace(RUN_LIMITS, wall_s=1.0, cpu_s=2.0)
RunTimed = Callable[..., TimedRun]


@pytest.fixture(scope="module")
def stopwatch(sandbox: Sandbox) -> Stopwatch:
    return Stopwatch(sandbox)


@pytest.fixture
def run_timed(sandbox: Sandbox, stopwatch: Stopwatch) -> Iterator[RunTimed]:
    def run(source: str, payload: bytes = b"", expected: int = 4, limits: Limits = SHORT) -> TimedRun:
        compiled = compile_cpp(sandbox, (HEAD + source).encode(), flags=("-O0", "-pipe", "-pthread"))
        assert compiled.ok, compiled.message
        with stopwatch.program(compiled.binary) as program:
            return program.run(payload, expected, limits)

    yield run
    assert list(_scratch(sandbox).iterdir()) == []


def _scratch(sandbox: Sandbox) -> Path:
    return sandbox._scratch_root


def test_a_large_instance_goes_in_and_the_answer_comes_back(run_timed: RunTimed) -> None:
    source = "int main() { long n = drain(); char c[9]; snprintf(c, 9, \"%08ld\", n); return write(1, c, 8) != 8; }"
    timed = run_timed(source, payload=b"x" * (20 * MIB + 5), expected=8)
    assert timed.run.status is Status.ACCEPTED
    assert timed.output == b"20971525"
    assert timed.solve_s is not None
    assert 0 < timed.solve_s < timed.run.wall_s


def test_the_clock_covers_the_program_and_neither_the_jail_nor_what_follows(run_timed: RunTimed) -> None:
    """The program sleeps 0.3 s before its last byte and 0.3 s after it."""
    timed = run_timed('int main() { write(1, "abc", 3); pause_ms(300); write(1, "d", 1); pause_ms(300); }')
    assert timed.run.status is Status.ACCEPTED
    assert timed.solve_s is not None
    assert timed.solve_s >= 0.3
    assert timed.run.wall_s >= timed.solve_s + 0.3
    assert timed.overhead_s == pytest.approx(timed.run.wall_s - timed.solve_s)


def test_a_program_that_reads_nothing_ends_without_a_hang(run_timed: RunTimed) -> None:
    timed = run_timed('int main() { return write(1, "abcd", 4) != 4; }', payload=b"x" * (4 * MIB))
    assert (timed.run.status, timed.output) == (Status.ACCEPTED, b"abcd")


def test_a_program_that_sleeps_is_cut_at_the_wall_limit(run_timed: RunTimed) -> None:
    timed = run_timed("int main() { pause_ms(60000); }", payload=b"x" * (4 * MIB))
    assert (timed.run.status, timed.output, timed.solve_s) == (Status.TIME_LIMIT, b"", None)


def test_a_flood_of_output_is_cut_one_byte_after_the_expected_ones(run_timed: RunTimed) -> None:
    timed = run_timed("int main() { static char b[4096]; while (write(1, b, sizeof b) > 0) {} }")
    assert timed.output == b"\0" * 5
    assert timed.run.status in (Status.SIGNALLED, Status.NONZERO_EXIT, Status.ACCEPTED)


def test_an_answer_that_ends_early_has_no_time(run_timed: RunTimed) -> None:
    timed = run_timed('int main() { drain(); return write(1, "abc", 3) != 3; }', payload=b"xyz")
    assert (timed.run.status, timed.output, timed.solve_s) == (Status.ACCEPTED, b"abc", None)


def test_a_child_that_keeps_the_output_open_ends_with_the_run(run_timed: RunTimed) -> None:
    source = 'int main() { if (fork() == 0) { pause_ms(60000); } else { write(1, "abcd", 4); } }'
    timed = run_timed(source, limits=RUN_LIMITS)
    assert (timed.run.status, timed.output) == (Status.ACCEPTED, b"abcd")
    assert timed.run.wall_s < RUN_LIMITS.wall_s


def test_the_clock_cannot_be_reached_through_the_jails_first_process(run_timed: RunTimed) -> None:
    """The program takes over the standard streams of that process and writes an answer to each before it works."""
    source = """
    int main() {
        int init = syscall(SYS_pidfd_open, 1, 0);
        for (int fd = 0; fd < 3; ++fd) {
            int copy = syscall(SYS_pidfd_getfd, init, fd, 0);
            if (copy >= 0 && write(copy, "ABCDABCD", 8) < 0) close(copy);
        }
        pause_ms(300);
        return write(1, "abcd", 4) != 4;
    }"""
    timed = run_timed(source, limits=RUN_LIMITS)
    assert timed.output == b"abcd"
    assert timed.solve_s is not None
    assert timed.solve_s >= 0.3


def test_four_threads_are_allowed_and_a_crowd_is_not(run_timed: RunTimed) -> None:
    source = """
    int main() {
        std::thread all[20]; int made = 0;
        try { for (; made < 20; ++made) all[made] = std::thread([] { pause_ms(200); }); } catch (...) {}
        for (int i = 0; i < made; ++i) all[i].join();
        char c = 'a' + made;
        return write(1, &c, 1) != 1;
    }"""
    timed = run_timed(source, expected=1, limits=RUN_LIMITS)
    assert timed.run.status is Status.ACCEPTED
    assert timed.output in (b"d", b"e")


def test_libraries_are_told_to_use_one_thread(run_timed: RunTimed) -> None:
    source = """
    int main() {
        for (const char *name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) {
            const char *value = getenv(name);
            if (!value || value[0] != '1' || value[1]) return 1;
        }
        return write(1, "good", 4) != 4;
    }"""
    assert run_timed(source).output == b"good"


def test_two_runs_at_once_do_not_mix(sandbox: Sandbox, stopwatch: Stopwatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    source = "int main() { char c[65536]; long n = read(0, c, 4); pause_ms(50); drain(); return write(1, c, n) != n; }"
    compiled = compile_cpp(sandbox, (HEAD + source).encode(), flags=("-O0", "-pipe", "-pthread"))
    with stopwatch.program(compiled.binary) as program, ThreadPoolExecutor(3) as pool:
        payloads = [f"{number:04d}".encode() + b"x" * MIB for number in range(9)]
        timed = list(pool.map(lambda payload: program.run(payload, 4, RUN_LIMITS), payloads))
    assert [run.output for run in timed] == [payload[:4] for payload in payloads]


def test_a_run_that_cannot_start_is_the_judges_fault(sandbox: Sandbox, stopwatch: Stopwatch, tmp_path: Path) -> None:
    with stopwatch.program(b"") as program:
        broken = replace(program, starter=program.path)
        with pytest.raises(SandboxFault, match="did not start"):
            broken.run(b"x" * MIB, 4, SHORT)


def test_a_file_that_is_no_program_is_not_run(sandbox: Sandbox, stopwatch: Stopwatch) -> None:
    with stopwatch.program(b"no program") as program:
        timed = program.run(b"x", 4, SHORT)
    assert (timed.run.exit_code, timed.output) == (126, b"")


def test_without_a_jail_the_measurement_is_the_same() -> None:
    from judges.sandbox import open_sandbox

    source = 'int main() { drain(); pause_ms(100); return write(1, "abcd", 4) != 4; }'
    with open_sandbox(allow_unsafe=True, only=Tier.UNSAFE) as unsafe:
        compiled = compile_cpp(unsafe, (HEAD + source).encode(), flags=("-O0", "-pipe", "-pthread"))
        started = time.monotonic()
        with Stopwatch(unsafe).program(compiled.binary) as program:
            timed = program.run(b"x" * MIB, 4, SHORT)
        spent_s = time.monotonic() - started
    assert (timed.run.status, timed.output) == (Status.ACCEPTED, b"abcd")
    assert timed.solve_s is not None
    assert 0.1 <= timed.solve_s <= spent_s
