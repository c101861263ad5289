"""The set-up scripts on machines that lack things: everything they call is a stub on a PATH of its own; no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash") or "/bin/bash"
PLAIN_TOOLS = ("awk", "bash", "cat", "chmod", "cut", "df", "dirname", "du", "head", "mkdir", "mv", "rm", "sed")
FAKE_UV = """#!{bash}
echo "uv $*" >> "$UV_CALLS"
case "$1" in
  --version) echo "uv 9" ;;
  python) exit 1 ;;
  venv) "{python}" -m venv --without-pip "${{@: -1}}" ;;
  pip) [ ! -e "$UV_CALLS.fail" ] || exit 1 ;;
esac
"""
LOCK = """# made by hand
torch==2.13.0 \\
    --hash=sha256:aa
    # via peft
nvidia-cublas==13.1 ; sys_platform == 'linux' \\
    --hash=sha256:bb
torchvision==1.0 \\
    --hash=sha256:cc
triton==3.7.1 \\
    --hash=sha256:dd
typer==0.29.2 \\
    --hash=sha256:ee
"""


class Machine:
    """A PATH with only what a test puts there, and a copy of the scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.project = folder / "project"
        (self.project / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for script in ("scripts/lib.sh", "scripts/setup.sh", "run.sh", "test.sh"):
            shutil.copy(ROOT / script, self.project / script)
        (self.project / "requirements.lock").write_text(LOCK)
        (self.project / "pyproject.toml").write_text("[project]\n")
        for tool in PLAIN_TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        self.stub("id", "echo 1000")

    def stub(self, name: str, body: str = "exit 0") -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{BASH}\n{body}\n")
        path.chmod(0o755)

    def with_tools(self) -> Machine:
        for name in ("git", "g++", "bwrap"):
            self.stub(name)
        return self

    def run(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": str(self.bin),
            "HOME": str(self.folder),
            "UV_CALLS": str(self.folder / "uv-calls"),
            **environ,
        }
        return subprocess.run(
            [BASH, *argv], env=env, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )

    def call(self, function: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one function of lib.sh."""
        library = self.project / "scripts" / "lib.sh"
        return self.run(
            "-c", f'set -euo pipefail; TOOLS_DIR="{self.folder}/tools"; source "{library}"; {function}', **environ
        )

    def calls(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# --- finding Python ---------------------------------------------------------------------------------------------------


def test_without_any_usable_python_nothing_is_printed(machine: Machine) -> None:
    machine.stub("python3", "exit 1")  # too old
    machine.stub("python3.12", "echo 'no such version' >&2; exit 127")  # a shim without a version behind it
    done = machine.call("find_python")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_shim_that_does_not_start_is_passed_over(machine: Machine) -> None:
    machine.stub("python3.12", "exit 127")
    machine.stub("python3.13", "echo /opt/python3.13")
    assert machine.call("find_python").stdout == "/opt/python3.13\n"


def test_pyenv_versions_are_found_without_shims(machine: Machine) -> None:
    binary = machine.folder / "pyenv" / "versions" / "3.12.1" / "bin" / "python"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!{BASH}\necho /from/pyenv\n")
    binary.chmod(0o755)
    assert machine.call("find_python", PYENV_ROOT=str(machine.folder / "pyenv")).stdout == "/from/pyenv\n"


def test_uv_is_asked_last(machine: Machine) -> None:
    machine.stub("uv", f'case "$1" in --version) ;; python) echo "{machine.bin}/managed" ;; esac')
    machine.stub("managed", "echo /from/uv")
    assert machine.call("find_python").stdout == "/from/uv\n"


def test_a_named_python_that_is_too_old_is_refused_and_named(machine: Machine) -> None:
    machine.stub("python3.12", "echo /good")
    machine.stub("old", "exit 1")
    done = machine.call("find_python", GUIDANCE_PYTHON="old")
    assert (done.returncode, done.stdout) == (1, "")
    assert "GUIDANCE_PYTHON=old" in done.stderr


def test_the_real_interpreter_is_recognised(machine: Machine) -> None:
    done = machine.call("find_python", GUIDANCE_PYTHON=sys.executable)
    assert Path(done.stdout.strip()).resolve() == Path(sys.executable).resolve()


# --- system packages --------------------------------------------------------------------------------------------------


def test_missing_tools_are_listed_by_package(machine: Machine) -> None:
    assert machine.call("missing_packages").stdout == "git git-lfs g++ bubblewrap\n"
    assert machine.call("missing_packages eigen").stdout == "git git-lfs g++ bubblewrap libeigen3-dev\n"
    assert machine.call("missing_packages chromium").stdout == "git git-lfs g++ bubblewrap chromium\n"
    machine.with_tools()
    machine.stub("chromium", "exit 0")
    assert machine.call("missing_packages eigen chromium").stdout == "\n"
    assert machine.call("missing_packages eigen").stdout == "\n"
    machine.stub("git", '[ "$1" != lfs ]')
    assert machine.call("missing_packages").stdout == "git-lfs\n"


def test_an_ordinary_user_gets_the_one_command_and_exit_code_3(machine: Machine) -> None:
    machine.stub("apt-get", 'echo "$*" >> "$HOME/apt-calls"')
    done = machine.call("ensure_system_tools")
    assert done.returncode == 3
    assert "sudo apt-get update && sudo apt-get install -y git git-lfs g++ bubblewrap\n" in done.stderr
    assert machine.calls("apt-calls") == []


def test_root_installs_with_apt_after_refreshing_its_lists(machine: Machine) -> None:
    machine.stub("id", "echo 0")
    tools = 'for t in git g++ bwrap; do printf \'#!%s\\nexit 0\\n\' "$BASH" > "$BIN/$t"; chmod +x "$BIN/$t"; done'
    machine.stub("apt-get", f'echo "$*" >> "$HOME/apt-calls"; [ "$1" = update ] || {{ {tools}; }}')
    done = machine.call("ensure_system_tools", BIN=str(machine.bin))
    assert done.returncode == 0, done.stderr
    assert machine.calls("apt-calls") == [
        "update -qq",
        "install -y -qq --no-install-recommends git git-lfs g++ bubblewrap",
    ]


def test_a_failing_apt_ends_with_the_command_and_exit_code_3(machine: Machine) -> None:
    machine.stub("id", "echo 0")
    machine.stub("apt-get", "exit 100")
    done = machine.call("ensure_system_tools")
    assert done.returncode == 3
    assert "apt-get could not install: git git-lfs g++ bubblewrap" in done.stderr
    assert "install them with:" in done.stderr


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("dnf", "sudo dnf install -y git gcc-c++ eigen3-devel"),
        ("pacman", "sudo pacman -S --needed git gcc eigen"),
        ("none", "install with your package manager: git g++ libeigen3-dev"),
    ],
)
def test_other_systems_get_their_own_package_names(machine: Machine, manager: str, command: str) -> None:
    machine.stub(manager)
    assert machine.call("package_command git g++ libeigen3-dev").stdout.strip() == command


def test_a_full_disk_is_refused_with_numbers(machine: Machine) -> None:
    machine.stub("df", "printf 'head\\ndisk 9 9 1048576 1%% /\\n'")
    done = machine.call("require_disk /somewhere 6000")
    assert done.returncode == 3
    assert "/somewhere has 1024 MB free" in done.stderr
    assert "6000 MB" in done.stderr
    assert machine.call("require_disk /somewhere 1000").returncode == 0


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_torch_and_its_cuda_libraries_can_be_left_out_of_the_lock(machine: Machine) -> None:
    kept = machine.call(f"without_torch {machine.project}/requirements.lock").stdout
    assert [line for line in kept.splitlines() if "==" in line] == ["torchvision==1.0 \\", "typer==0.29.2 \\"]
    assert "sha256:cc" in kept
    assert not any(mark in kept for mark in ("sha256:aa", "sha256:bb", "sha256:dd", "via peft"))
    assert machine.call(f"locked_version {machine.project}/requirements.lock torch").stdout == "2.13.0\n"


def test_the_real_lock_pins_torch(machine: Machine) -> None:
    assert machine.call(f"locked_version {ROOT}/requirements.lock torch").stdout.strip()


# --- set-up as a whole, with a stub for uv ----------------------------------------------------------------------------


@pytest.fixture
def ready(machine: Machine) -> Machine:
    """A machine with all tools, a Python and a uv that only notes what it was asked."""
    machine.with_tools()
    machine.stub("uv")
    (machine.bin / "uv").write_text(FAKE_UV.format(bash=BASH, python=os.path.realpath(sys.executable)))
    machine.stub("python3.12", f'exec {os.path.realpath(sys.executable)} "$@"')
    return machine


def set_up(machine: Machine, **environ: str) -> tuple[int, list[str], str]:
    """Exit code, the pip calls of uv during this set-up, and what was said."""
    (machine.folder / "uv-calls").unlink(missing_ok=True)
    done = machine.run(str(machine.project / "scripts" / "setup.sh"), **environ)
    calls = [call for call in machine.calls("uv-calls") if call.startswith(("uv pip", "uv venv"))]
    return done.returncode, calls, done.stdout + done.stderr


def test_a_second_set_up_does_nothing(ready: Machine) -> None:
    code, calls, said = set_up(ready)
    assert code == 0, said
    assert [call.split()[1] for call in calls] == ["venv", "pip", "pip"]
    assert "--no-deps" in calls[1]
    assert "--require-hashes -r" in calls[1]
    assert "--no-build-isolation --editable" in calls[2]
    assert set_up(ready) == (0, [], "")


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_changed_lock_or_project_file_installs_again_in_place(ready: Machine, name: str) -> None:
    set_up(ready)
    with (ready.project / name).open("a") as stream:
        stream.write("# changed\n")
    code, calls, _ = set_up(ready)
    assert code == 0
    assert [call.split()[1] for call in calls] == ["pip", "pip"]


def test_a_failed_installation_leaves_no_stamp_and_the_next_one_starts_afresh(ready: Machine) -> None:
    blocker = ready.folder / "uv-calls.fail"
    blocker.touch()
    code, _, said = set_up(ready)
    assert code == 1
    assert "run this command again" in said
    assert not (ready.project / ".venv" / "guidance-setup.stamp").exists()
    blocker.unlink()
    code, calls, said = set_up(ready)
    assert code == 0, said
    assert "--reinstall" in calls[0]
    assert set_up(ready) == (0, [], "")


def test_a_broken_environment_is_made_anew(ready: Machine) -> None:
    set_up(ready)
    (ready.project / ".venv" / "bin" / "python").unlink()
    code, calls, said = set_up(ready)
    assert code == 0, said
    assert calls[0].startswith("uv venv")


def test_a_moved_project_gets_a_new_environment(ready: Machine) -> None:
    set_up(ready)
    moved = ready.folder / "moved here"
    ready.project.rename(moved)
    ready.project = moved
    code, calls, said = set_up(ready)
    assert code == 0, said
    assert calls[0].startswith("uv venv")
    assert set_up(ready) == (0, [], "")


def test_torch_can_come_from_another_index(ready: Machine) -> None:
    code, calls, said = set_up(ready, GUIDANCE_TORCH_INDEX="file:///wheels")
    assert code == 0, said
    assert "requirements.without-torch.lock" in calls[1]
    assert calls[2].endswith("--index-url file:///wheels torch==2.13.0")


def test_no_python_at_all_names_the_setting_and_exits_with_3(ready: Machine) -> None:
    ready.stub("python3.12", "exit 1")
    code, calls, said = set_up(ready)
    assert code == 3
    assert "GUIDANCE_PYTHON" in said
    assert calls == []


def test_a_python_without_venv_names_the_package_when_uv_is_missing_too(ready: Machine) -> None:
    (ready.bin / "uv").unlink()
    ready.stub("apt-get")
    ready.stub("python3.12", f'[ "$2" != "import venv, ensurepip" ] && exec {os.path.realpath(sys.executable)} "$@"')
    code, _, said = set_up(ready)
    assert code == 3
    assert "sudo apt-get install -y python3-venv" in said


def test_missing_tools_stop_run_and_test_before_anything_is_installed(machine: Machine) -> None:
    for script in ("run.sh", "test.sh"):
        done = machine.run(str(machine.project / script))
        assert done.returncode == 3, done.stderr
        assert "bubblewrap" in done.stderr
    assert not (machine.project / ".venv").exists()


@pytest.mark.parametrize("script", ["run.sh", "test.sh", "scripts/setup.sh"])
def test_help_needs_nothing(machine: Machine, script: str) -> None:
    done = machine.run(str(machine.project / script), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage:")


def test_an_unknown_option_of_run_is_a_usage_error(machine: Machine) -> None:
    done = machine.run(str(machine.project / "run.sh"), "--steps=3")
    assert done.returncode == 2
    assert "unknown option: --steps=3" in done.stderr
