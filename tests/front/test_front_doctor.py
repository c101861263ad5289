"""`guidance-ttt doctor`: each thing that can be wrong is found, named and cured; nothing ends in a traceback."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from front_doctor import context_of, environ_of, levels

from guidance_ttt.doctor import machine, packages, policy_model, tools
from guidance_ttt.doctor.command import Notes, render_finding, run_doctor
from guidance_ttt.doctor.model import Check, Context, Finding, Level, failure, ok, warning
from guidance_ttt.doctor.probes import Probes, Ran, run_command
from guidance_ttt.doctor.registry import CHECKS
from guidance_ttt.doctor.runner import run_checks
from guidance_ttt.model import MARKER_FILE, SOURCE_SHA256
from harness.errors import ConfigError, GuidanceError
from harness.storage import write_json

GB = 1_000_000_000


# --- running and showing ----------------------------------------------------------------------------------------------


def crashing(context: Context) -> Iterator[Finding]:
    yield ok("crashing", "before")
    raise KeyError("key-sentinel")


def refusing(context: Context) -> Iterator[Finding]:
    raise GuidanceError("no weights")
    yield


def misconfigured(context: Context) -> Iterator[Finding]:
    raise ConfigError("GUIDANCE_X=1 is wrong")
    yield


def hanging(context: Context) -> Iterator[Finding]:
    yield ok("hanging", "before")
    time.sleep(30)


def test_a_check_that_crashes_is_a_failure_line_and_keeps_what_it_found_before() -> None:
    report = run_checks(Context({}), [Check("crashing", crashing, needs_settings=False)])
    assert levels(report.findings) == ["ok", "failure"]
    assert report.findings[1].fact == "the check itself failed: KeyError: 'key-sentinel'"
    assert report.exit_code == 1


def test_an_area_that_cannot_be_imported_is_a_failure_line_too() -> None:
    report = run_checks(Context({}), [Check("x", "no_such_module:check", needs_settings=False)])
    assert report.findings[0].level is Level.FAILURE
    assert "ModuleNotFoundError" in report.findings[0].fact


def test_a_check_that_hangs_is_left_behind_in_time() -> None:
    check = Check("hanging", hanging, limit_s=lambda context: 0.1, needs_settings=False)
    after = Check("after", lambda context: [ok("after", "fine")], needs_settings=False)
    report = run_checks(Context({}), [check, after])
    assert [(item.check, item.level.value) for item in report.findings] == [
        ("hanging", "ok"),
        ("hanging", "failure"),
        ("after", "ok"),
    ]
    assert report.findings[1].fact == "not finished after 0.1 s"


def test_the_exit_code_is_0_without_failures_1_with_them_and_2_for_a_wrong_setting() -> None:
    def code(*targets: Any) -> int:
        return run_checks(Context({}), [Check("x", target, needs_settings=False) for target in targets]).exit_code

    assert code() == 0
    assert code(lambda context: [warning("x", "a", "b"), ok("x", "c")]) == 0
    assert code(lambda context: [failure("x", "a", "b")]) == 1
    assert code(refusing) == 1
    assert code(misconfigured, refusing) == 2


def test_a_wrong_setting_is_told_and_what_needs_no_settings_is_checked_all_the_same(tmp_path: Path) -> None:
    out = io.StringIO()
    checks = [Check("needs", refusing), Check("free", lambda context: [ok("free", "checked")], needs_settings=False)]
    environ = environ_of(tmp_path, GUIDANCE_TASK="nope")
    assert run_doctor(environ, checks=checks, out=out) == 2
    assert "failure  settings        GUIDANCE_TASK='nope' is unknown; choose one of" in out.getvalue()
    assert "cure: correct the setting" in out.getvalue()
    assert "ok       free            checked" in out.getvalue()
    assert "no weights" not in out.getvalue()


def test_secrets_and_hostile_text_never_reach_the_output(tmp_path: Path) -> None:
    def leaks(context: Context) -> list[Finding]:
        return [failure("leaks", "process 7 (x --key sk-sentinel) \x1b[2J\nsecond line", "unset sk-sentinel")]

    environ = environ_of(tmp_path, OPENROUTER_API_KEY="sk-sentinel")
    for as_json in (True, False):
        out = io.StringIO()
        checks = [Check("leaks", leaks)]
        assert run_doctor(environ, checks=checks, out=out, as_json=as_json) == 1
        assert "sentinel" not in out.getvalue()
        assert "[redacted]" in out.getvalue()
        assert "\x1b" not in out.getvalue()
    line = render_finding(leaks(Context({}))[0], lambda text: text)
    assert line.splitlines()[0] == "failure  leaks           process 7 (x --key sk-sentinel) \\x1b[2J second line"


def test_json_is_one_object_with_every_finding(tmp_path: Path) -> None:
    out = io.StringIO()
    checks = [Check("x", lambda context: [ok("x", "a"), warning("x", "b", "c")])]
    assert run_doctor(environ_of(tmp_path), checks=checks, out=out, as_json=True) == 0
    value = json.loads(out.getvalue())
    assert (value["ok"], value["exit_code"]) == (True, 0)
    assert value["counts"] == {"ok": 1, "warning": 1, "failure": 0}
    assert value["findings"][1] == {"check": "x", "level": "warning", "fact": "b", "cure": "c"}


def test_the_gpu_runtime_is_checked_where_it_trains_and_only_there(tmp_path: Path) -> None:
    here, there = context_of(tmp_path), context_of(tmp_path, GUIDANCE_PROFILE="gpu")
    assert {check.name for check in CHECKS if not check.applies(here)} == {"gpu"}
    assert all(check.applies(there) for check in CHECKS)
    assert run_checks(here, [Check("gpu", refusing, applies=lambda context: context.on_gpus)]).findings == ()


def test_waiting_is_drawn_in_place_on_a_terminal_and_told_now_and_then_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    live, plain = Notes(Terminal()), Notes(io.StringIO())
    for notes in (live, plain):
        notes.tell("waiting 3 s")
        notes.tell("waiting 2 s")
        notes.clear()
    assert live.out.getvalue() == "\rwaiting 3 s\rwaiting 2 s\r" + " " * 11 + "\r"  # type: ignore[attr-defined]
    assert plain.out.getvalue() == "waiting 3 s\n"  # type: ignore[attr-defined]


def test_the_whole_doctor_runs_here_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GUIDANCE_")}
    environ = {**plain, **environ_of(tmp_path), "GUIDANCE_STATE_DIR": str(tmp_path / "no" / "state")}
    command = [sys.executable, "-c", "from guidance_ttt.cli import main; main()", "doctor", "--json", "--offline"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr  # there is no model
    found = {item["check"] for item in json.loads(done.stdout)["findings"]}
    assert {"python", "packages", "tools", "sandbox", "task", "disk", "model", "ports", "judge", "trial"} <= found
    assert "the check itself failed" not in done.stdout
    assert not (tmp_path / "no").exists()


# --- Python, packages, tools ------------------------------------------------------------------------------------------

LOCK = """
# a comment
alpha==1.2 \\
    --hash=sha256:00
    # via x
beta==3 ; sys_platform == 'linux' \\
    --hash=sha256:00
gamma==4 ; sys_platform == 'win32'
nvidia-cublas==1
torch==2.13.0
"""
PYPROJECT = '[project]\nname = "x"\ndependencies = ["alpha==1.2", "torch==2.13.0"]\n'


def package_probes(**installed: str) -> Probes:
    names = {name.replace("_", "-"): version for name, version in installed.items()}
    files = {"pyproject.toml": PYPROJECT, "requirements.lock": LOCK}
    return Probes(
        installed=names.get,
        read_text=lambda path: files.get(path.name),
        entry_points=lambda group: frozenset({"local-torch"}),
    )


GOOD = {"alpha": "1.2", "beta": "3", "torch": "2.13.0", "nvidia_cublas": "1"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [("ok", "4 packages as locked")]),
        ({"alpha": "1.3"}, [("failure", "alpha 1.3 is installed; ==1.2 is needed")]),
        ({"alpha": None}, [("failure", "alpha is not installed; ==1.2 is needed")]),
        ({"beta": "4"}, [("warning", "1 packages differ from requirements.lock: beta 4 (locked 3)")]),
        ({"beta": None}, [("failure", "1 locked packages are not installed: beta")]),
        ({"nvidia_cublas": None}, [("failure", "1 locked packages are not installed: nvidia-cublas")]),
        ({"nvidia_cublas": None, "torch": "2.13.0+cpu"}, [("ok", "4 packages as locked")]),
    ],
)
def test_installed_packages_are_compared_with_the_pins(
    change: Mapping[str, str | None], expected: list[tuple[str, str]]
) -> None:
    installed = {name: version for name, version in {**GOOD, **change}.items() if version is not None}
    found = list(packages.check_packages(Context({}, probes=package_probes(**installed)), Path("/r")))
    assert [(item.level.value, item.fact) for item in found] == expected


def test_a_project_that_is_not_installed_cannot_offer_its_backend() -> None:
    probes = replace(package_probes(**GOOD), entry_points=lambda group: frozenset())
    found = list(packages.check_packages(Context({}, probes=probes), Path("/r")))
    assert "Reef does not find the training backend local-torch" in found[0].fact


def test_the_gpu_profile_leaves_the_images_own_packages_to_the_gpu_check() -> None:
    probes = package_probes(alpha="1.2", torch="2.11.0")
    assert levels(packages.check_packages(Context({}, profile="gpu", probes=probes), Path("/r"))) == ["ok"]


@pytest.mark.parametrize(("version", "level"), [((3, 11, 9), "failure"), ((3, 12, 1), "ok"), ((3, 14, 0), "failure")])
def test_only_supported_pythons_pass(version: tuple[int, int, int], level: str) -> None:
    assert levels(packages.check_python(Context({}, probes=Probes(python_version=version)))) == [level]


def test_a_missing_tool_comes_with_the_command_that_installs_it(tmp_path: Path) -> None:
    def run(argv: tuple[str, ...], **options: Any) -> Ran | None:
        if argv[:2] == ("git", "lfs"):
            return Ran(1, "git: 'lfs' is not a git command.")
        return run_command(argv, **options) if argv[0] == "bash" else Ran(0, f"{argv[0]} 1.0\nmore")

    found = list(tools.check_tools(Context({"GUIDANCE_TASK": "ahc058"}, probes=Probes(run=run))))
    assert levels(found) == ["ok", "failure", "ok", "ok"]
    assert "git-lfs is missing or does not start" in found[1].fact
    assert found[1].cure.startswith("install it: ")
    assert "git-lfs" in found[1].cure
    lasso = list(tools.check_tools(Context({"GUIDANCE_TASK": "lasso_path"}, probes=Probes(run=run))))
    assert len(lasso) == 5
    silent = tools.check_tools(Context({}, probes=Probes(run=lambda argv, **options: None)))
    assert [item.cure for item in silent][1] == "install it: apt-get install -y git-lfs"


# --- disk, memory, model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "steps", "level"), [(100 * GB, 30, "ok"), (5 * GB, 30, "warning"), (GB // 2, 1, "failure")]
)
def test_disk_space_is_compared_with_what_the_steps_write(free: int, steps: int, level: str) -> None:
    (found,) = machine.disk_findings(Path("/s"), free, machine.DiskNeed(step_bytes=240_000_000, steps_left=steps))
    assert found.level.value == level
    assert "a step writes about 0.240 GB (estimated)" in found.fact


def test_a_steps_size_is_computed_from_the_model_and_measured_once_there_is_an_update(tmp_path: Path) -> None:
    assert machine.update_bytes(machine.PACKAGED_SHAPE, 32) == 117_227_520  # the measured files have 117.3 MB
    context = context_of(tmp_path)
    assert machine.disk_need(context.settings, Probes()).step_bytes == 0
    folder = tmp_path / "state" / "backend" / "checkpoints" / "abc"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"x" * 1000)
    need = machine.disk_need(context.settings, Probes())
    assert (need.step_bytes, need.measured, need.steps_left) == (2000, True, 3)


def test_a_state_directory_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (found,) = machine.check_disk(context_of(tmp_path, Probes(is_writable=lambda path: False)))
    assert found.level is Level.FAILURE
    assert "cannot be written" in found.fact


@pytest.mark.parametrize(
    ("available", "level"), [(8 * GB, "ok"), (3 * GB, "warning"), (GB, "failure"), (None, "warning")]
)
def test_memory_is_compared_with_what_training_takes(available: int | None, level: str) -> None:
    (found,) = machine.memory_findings(available, 538_000_000, 2, on_gpu=False)
    assert found.level.value == level


def test_the_kernels_own_estimate_of_free_memory_is_used() -> None:
    assert machine.available_bytes("MemTotal: 24000000 kB\nMemAvailable:   1000 kB\n") == 1_024_000
    assert machine.available_bytes(None) is None


def converted(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    marker = {"format": 1, "source_sha256": SOURCE_SHA256, "files": {"config.json": {"bytes": 2, "sha256": "00"}}}
    (folder / MARKER_FILE).write_text(json.dumps(marker))
    return folder


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        ("", "is complete"),
        ("missing", "config.json is missing"),
        ("short", "config.json has 1 bytes instead of 2"),
        ("other", "it was converted from other weights"),
        ("broken", f"{MARKER_FILE} cannot be read"),
    ],
)
def test_the_converted_model_is_checked_by_its_marker(tmp_path: Path, damage: str, fact: str) -> None:
    folder = converted(tmp_path / "model")
    if damage == "missing":
        (folder / "config.json").unlink()
    elif damage == "short":
        (folder / "config.json").write_text("{")
    elif damage == "other":
        (folder / MARKER_FILE).write_text((folder / MARKER_FILE).read_text().replace(SOURCE_SHA256, "f" * 64))
    elif damage == "broken":
        (folder / MARKER_FILE).write_text("{")
    (found,) = policy_model._converted(folder, deep=False)
    assert fact in found.fact
    assert found.level is (Level.FAILURE if damage else Level.OK)


def test_a_deep_look_compares_every_files_hash(tmp_path: Path) -> None:
    folder = converted(tmp_path / "model")
    (found,) = policy_model._converted(folder, deep=True)
    assert (found.level, "differs from the converted file" in found.fact) == (Level.FAILURE, True)


def test_the_users_own_model_needs_all_its_shards_and_a_tokenizer(tmp_path: Path) -> None:
    def fact(*files: str) -> str:
        folder = tmp_path / "own"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        write_json(folder / "model.safetensors.index.json", {"weight_map": shards})
        for name in files:
            (folder / name).write_text("x")
        return next(iter(policy_model.own_directory_findings(folder))).fact

    assert "lacks model-2.safetensors" in fact("model-1.safetensors", "tokenizer.json")
    assert "has none of tokenizer.json" in fact("model-1.safetensors", "model-2.safetensors")
    assert "2 weight file(s) and a tokenizer" in fact("model-1.safetensors", "model-2.safetensors", "tokenizer.json")
