"""`guidance-ttt report` as a command, and the report that ends a run: three files, or one line that says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from front_report import copy_of, measured
from typer.testing import CliRunner, Result

from guidance_ttt import launch as launch_module
from guidance_ttt.cli import app
from guidance_ttt.plan import LaunchPlan
from guidance_ttt.report import default_output
from guidance_ttt.report.closing import closing_report, earlier_report
from guidance_ttt.report.writing import write_report


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("state"))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command_writes_the_three_files_and_names_them(state: Path, tmp_path: Path) -> None:
    code = "from guidance_ttt.cli import main; main()"
    argv = [sys.executable, "-c", code, "report", "--state-dir", str(state), "--output", str(tmp_path / "a" / "b.html")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"report   {tmp_path}/a/b.html",
        f"updates  {tmp_path}/a/b-updates.csv",
        f"rollouts {tmp_path}/a/b-rollouts.csv",
    ]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b-rollouts.csv", "b-updates.csv", "b.html"]
    again = invoke("--state-dir", str(state), "--output", str(tmp_path / "a" / "b.html"), "--json")
    assert json.loads(again.stdout)["page"] == f"{tmp_path}/a/b.html"


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("r.txt", "must end in .html"),
        ("folder.html", "is no file"),
        ("mine.html", "is no earlier report and is not replaced"),
    ],
)
def test_a_place_that_cannot_take_a_report_is_refused(state: Path, tmp_path: Path, target: str, complaint: str) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "mine.html").write_text("<p>my own page", encoding="utf-8")
    done = invoke("--state-dir", str(state), "--output", str(tmp_path / target))
    assert (done.exit_code, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.html", "mine.html"]
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == "<p>my own page"


def test_a_state_that_gives_no_report_ends_in_one_line(tmp_path: Path) -> None:
    done = invoke("--state-dir", str(tmp_path / "none"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "holds no run" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_report_goes_beside_the_run_and_leaves_everything_else_as_it_was(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    before = snapshot(copied)
    written = write_report(copied, environ={})
    assert written.page == default_output(copied) == copied / "guidance-run" / "report" / "report.html"
    assert {path: data for path, data in snapshot(copied).items() if path.parent.name != "report"} == before


def test_a_run_ends_with_the_reports_path_or_with_one_warning(state: Path, tmp_path: Path) -> None:
    copied = copy_of(state, tmp_path)
    said: list[str] = []
    shown: list[str] = []
    earlier_report(copied, show=shown.append)
    assert shown == []
    closing_report(copied, {}, say=said.append, show=shown.append)
    assert (said, shown) == ([], [f"report         {default_output(copied)}"])
    earlier_report(copied, show=shown.append)
    assert shown.pop() == shown[0]
    closing_report(tmp_path / "nothing", {}, say=said.append, show=shown.append)
    assert len(said) == len(shown) == 1
    assert said[0].startswith("warning: no report was written: StateError: ")
    closing_report(copied, {}, say=said.append, show=shown.append, limit_s=0.0)
    assert "no report was written within 0 s" in said[1]


@pytest.mark.parametrize(("run", "code", "reports"), [("pass", 0, 1), ("raise SystemExit(5)", 5, 0)])
def test_the_launcher_ends_a_good_run_with_its_report_and_keeps_the_exit_code(
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: str,
    code: int,
    reports: int,
) -> None:
    copied = copy_of(state, tmp_path)
    settings = SimpleNamespace(state_dir=copied, token="token", quiet=False)
    plan = LaunchPlan((), (sys.executable, "-I", "-S", "-c", run), {"PATH": os.environ["PATH"]}, tmp_path)
    monkeypatch.setattr(launch_module, "RunConfig", SimpleNamespace(load=lambda environ: settings))
    for name, value in (("recall", False), ("plan_from_config", plan)):
        monkeypatch.setattr(launch_module, name, lambda *_, value=value: value)
    for name in ("require_task", "require_profile", "prepare_model"):
        monkeypatch.setattr(launch_module, name, lambda *_, **__: None)
    said: list[str] = []
    assert launch_module.launch({}, say=said.append) == code
    assert not [line for line in said if "report" in line]
    assert capsys.readouterr().out.count(f"report         {default_output(copied)}\n") == reports
    assert default_output(copied).exists() is (reports == 1)


def test_the_wheel_carries_the_template(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).resolve().parents[2]
    names = {file.distribution_path for file in WheelBuilder(str(root)).recurse_included_files()}
    for name in ("report.html.jinja", "parts.html.jinja", "report.css"):
        assert f"guidance_ttt/report/templates/{name}" in names
