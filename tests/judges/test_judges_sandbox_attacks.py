"""Programs that try to get out, stay, or take the machine down; each must fail and leave nothing."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from judges_testkit import RUN_LIMITS, RunProgram, groups_of_this_process, processes_with, run_source

from judges.sandbox import MIB, Bind, Command, Sandbox, Status, compile_cpp
from judges.sandbox.cpp import COMPILE_LIMITS

# Prints one line per attempt: the path and whether the attempt worked.
WRITE_PATHS = ["/x", "/usr/x", "/usr/lib/x", "/etc/x", "/lib/x", "/w/x", "/dev/x", "/bin/x", "/root/x", "/var/x"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert groups_of_this_process() == []


def test_writing_outside_the_temporary_directory_fails(run_program: RunProgram) -> None:
    source = """
    #include <cstdio>
    int main(int n, char **a) {
        for (int i = 1; i < n; ++i) {
            FILE *f = fopen(a[i], "w"); printf("%s %d\\n", a[i], f != nullptr);
            if (f) fclose(f);
        }
    }
    """
    result = run_program(source, *WRITE_PATHS, "/tmp/x")
    written = dict(line.rsplit(" ", 1) for line in result.stdout.decode().splitlines())
    assert written == {**dict.fromkeys(WRITE_PATHS, "0"), "/tmp/x": "1"}
    assert not any(Path(path).exists() for path in WRITE_PATHS)


def test_host_files_cannot_be_read_even_through_links(run_program: RunProgram, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    tmp_path.chmod(0o755)
    source = """
    #include <cstdio>
    #include <string>
    #include <unistd.h>
    int main(int n, char **a) {
        for (int i = 1; i < n; ++i) {
            std::string link = "/tmp/link" + std::to_string(i);
            symlink(a[i], link.c_str());
            int seen = 0;
            const char *ways[] = {a[i], link.c_str()};
            for (const char *path : ways) if (FILE *f = fopen(path, "r")) { seen = 1; fclose(f); }
            printf("%d", seen);
        }
    }
    """
    paths = [str(secret), "/etc/passwd", "/etc/shadow", "/etc/hostname", str(Path.home()), __file__, "/proc/1/environ"]
    paths += ["/sys/fs/cgroup", "/usr/local/bin", "/usr/bin/env", "/var/log", "/dev/sda", "/dev/mem", "/dev/shm"]
    result = run_program(source, *paths)
    assert result.stdout == b"0" * len(paths)


def test_the_network_is_unreachable_even_on_the_loopback(run_program: RunProgram) -> None:
    source = """
    #include <arpa/inet.h>
    #include <cstdio>
    #include <cstdlib>
    #include <sys/socket.h>
    #include <unistd.h>
    int main(int, char **a) {
        const char *hosts[] = {"127.0.0.1", "192.0.2.1"};
        for (const char *host : hosts) {
            int s = socket(AF_INET, SOCK_STREAM, 0);
            sockaddr_in to{}; to.sin_family = AF_INET; to.sin_port = htons(atoi(a[1]));
            inet_pton(AF_INET, host, &to.sin_addr);
            printf("%d", s >= 0 && connect(s, (sockaddr *)&to, sizeof to) == 0);
        }
    }
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = run_program(source, str(listener.getsockname()[1]))
    assert result.stdout == b"00"


def test_no_environment_of_the_judge_is_visible(run_program: RunProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "do-not-leak")
    source = "#include <cstdio>\nextern char **environ;\nint main() { for (char **e = environ; *e; ++e) puts(*e); }"
    names = {line.split("=")[0] for line in run_program(source).stdout.decode().splitlines()}
    assert names <= {"PATH", "PWD"}


def test_the_program_has_no_open_files_privileges_or_namespaces_to_use(run_program: RunProgram) -> None:
    source = """
    #include <cstdio>
    #include <fcntl.h>
    #include <sched.h>
    #include <sys/mount.h>
    #include <unistd.h>
    int main() {
        for (int i = 3; i < 64; ++i) if (fcntl(i, F_GETFD) != -1) printf("open %d\\n", i);
        if (getuid() == 0 || geteuid() == 0) puts("root");
        if (setuid(0) == 0) puts("setuid");
        if (mount("none", "/tmp", "tmpfs", 0, nullptr) == 0) puts("mount");
        if (mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr) == 0) puts("remount");
        if (chroot("/tmp") == 0) puts("chroot");
        if (unshare(CLONE_NEWUSER) == 0) puts("user namespace");
        if (sethostname("x", 1) == 0) puts("hostname");
        if (nice(-5) != -1) puts("nice");
    }
    """
    result = run_program(source)
    assert (result.status, result.stdout) == (Status.ACCEPTED, b"")


def test_filling_the_temporary_directory_stops_at_its_size(run_program: RunProgram) -> None:
    source = """
    #include <cstdio>
    #include <fcntl.h>
    #include <unistd.h>
    int main() {
        static char block[1 << 16]; long total = 0, got;
        for (int file = 0; file < 8; ++file) {
            char name[32]; snprintf(name, sizeof name, "/tmp/f%d", file);
            int f = open(name, O_CREAT | O_WRONLY, 0600);
            while ((got = write(f, block, sizeof block)) > 0) total += got;
            close(f);
        }
        printf("%ld", total);
    }
    """
    result = run_program(source)
    assert result.status is Status.ACCEPTED
    assert int(result.stdout) <= RUN_LIMITS.scratch_bytes


def test_nothing_survives_from_one_run_to_the_next(run_program: RunProgram) -> None:
    source = """
    #include <cstdio>
    int main() { FILE *f = fopen("/tmp/memory", "r"); puts(f ? "seen" : "fresh"); if (!f) fopen("/tmp/memory", "w"); }
    """
    assert [run_program(source).stdout for _ in range(2)] == [b"fresh\n"] * 2


@pytest.mark.parametrize("keep_output_open", [True, False])
def test_a_background_process_dies_with_its_run(run_program: RunProgram, keep_output_open: bool) -> None:
    source = """
    #include <cstdio>
    #include <unistd.h>
    int main(int n, char **) {
        if (fork() == 0) {
            setsid();
            if (fork() == 0) { if (n < 2) for (int i = 0; i < 3; ++i) close(i); sleep(50); }
            _exit(0);
        }
        usleep(50000); puts("parent done");
    }
    """
    name = f"daemon-{os.getpid()}-{keep_output_open}"
    begin = time.monotonic()
    result = run_program(source, *(["keep"] if keep_output_open else []), name=name)
    assert result.status is Status.ACCEPTED
    assert result.stdout == b"parent done\n"
    assert time.monotonic() - begin < 20
    assert processes_with(name) == []


def test_a_fork_bomb_is_held_by_a_process_cap_that_was_read_back(cgroup_sandbox: Sandbox) -> None:
    bomb = "#include <unistd.h>\nint main() { for (;;) fork(); }"
    limits = dataclasses.replace(RUN_LIMITS, cpu_s=1.0, wall_s=2.0, pids=32)
    compiled = compile_cpp(cgroup_sandbox, bomb.encode())
    assert compiled.ok
    with cgroup_sandbox.executable(compiled.binary) as program:
        cage = cgroup_sandbox.new_cage(limits)
        if cage.pids_max() != 32 or not cage.join_files:
            cage.remove()
            pytest.skip("the process cap of the run's group could not be read back")
        result = cgroup_sandbox.run(Command(("/w/bomb",), limits, (Bind(program, "/w/bomb"),)), cage)
    assert result.status is Status.TIME_LIMIT
    assert processes_with("/w/bomb") == []


def test_many_processes_are_refused_at_the_cap(run_program: RunProgram) -> None:
    # Not a bomb: one parent, at most 60 children that only wait.
    source = """
    #include <cstdio>
    #include <unistd.h>
    int main() {
        int n = 0;
        for (; n < 60; ++n) { pid_t p = fork(); if (p < 0) break; if (p == 0) { pause(); _exit(0); } }
        printf("%d", n);
    }
    """
    result = run_program(source)
    assert 0 < int(result.stdout) < RUN_LIMITS.pids


# --- the compile step -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/shadow", "/proc/self/environ", __file__])
def test_a_source_cannot_include_host_files(sandbox: Sandbox, path: str) -> None:
    compiled = compile_cpp(sandbox, f'#include "{path}"\nint main() {{}}'.encode())
    assert not compiled.ok
    assert "No such file or directory" in compiled.message


def test_a_source_cannot_embed_host_files(sandbox: Sandbox) -> None:
    source = 'asm(".incbin \\"/etc/passwd\\"");\nint main() {}'
    compiled = compile_cpp(sandbox, source.encode())
    assert not compiled.ok
    assert "root:" not in compiled.message


def test_endless_devices_are_not_there_to_include(sandbox: Sandbox) -> None:
    begin = time.monotonic()
    for device in ("/dev/zero", "/dev/urandom", "/dev/stdin"):
        assert not compile_cpp(sandbox, f"#include <{device}>\n".encode()).ok
    assert time.monotonic() - begin < 20


def test_a_huge_array_does_not_fill_the_disk(sandbox: Sandbox) -> None:
    compiled = compile_cpp(
        sandbox, b"char big[900000000] = {1};\nint main() { return big[5]; }", flags=("-O0", "-pipe")
    )
    assert not compiled.ok
    assert compiled.message


def test_a_template_bomb_ends_at_a_compile_limit(sandbox: Sandbox) -> None:
    source = b"""
    template <int N, int M> struct S { static const long v = S<N - 1, M * 2>::v + S<N - 1, M * 2 + 1>::v; };
    template <int M> struct S<0, M> { static const long v = M; };
    int main() { return S<24, 1>::v; }
    """
    limits = dataclasses.replace(COMPILE_LIMITS, cpu_s=1.0, wall_s=10.0, memory_bytes=256 * MIB)
    compiled = compile_cpp(sandbox, source, limits=limits)
    assert not compiled.ok
    assert compiled.status in (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.NONZERO_EXIT)
    assert compiled.cpu_s < 3


def test_compiler_messages_name_the_source_and_are_cut_short(sandbox: Sandbox) -> None:
    compiled = compile_cpp(sandbox, b"int main() {" + b" return undefined_name;" * 200 + b"}")
    assert compiled.message.startswith("main.cpp: In function")
    assert len(compiled.message.encode()) <= 2000


def test_a_source_with_utf8_compiles_unchanged(sandbox: Sandbox) -> None:
    result = run_source(sandbox, '#include <cstdio>\nint main() { puts("größer ≤ 猫"); }')
    assert result.stdout.decode() == "größer ≤ 猫\n"
