"""W&B: numbers only, one run for one state directory, and whatever goes wrong costs one line and no time."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.config import RunConfig
from harness.contract import load_task
from harness.progress import RunProgress
from harness.wandb_log import METRICS, WandbLog, open_wandb, step_metrics, stored_run_id

ROOT = Path(__file__).resolve().parents[2]
SUMMARY: dict[str, Any] = {
    "step": 0,
    "best_raw_score": 45.5,
    "best_gain": 17.7,
    "best_found_at": "g0 r2",
    "best_entry_id": "an-id",
    "reward_mean": 30.0,
    "cost_usd": None,
    "zero_signal": False,
    "statuses": {"valid": 7, "int main() { return 0; }": 1},
    "train_metrics": {"train/kl": 0.25, "train/nan": float("nan"), "tttd/step": 3, "train/note": "text"},
}
FAKE = '''
import json, os, time
class Settings:
    model_fields = {"console": None, "silent": None}
    def __init__(self, **given): self.given = given
class Run:
    def __init__(self, start): self.starting_step = start
    def log(self, metrics, step): put({"step": step, **metrics})
    def finish(self): FINISH
def put(value):
    with open(os.environ["WANDB_FAKE_OUT"], "a") as out: out.write(json.dumps(value) + "\\n")
def init(**given):
    given["settings"] = given["settings"].given
    put({"init": given, "environ": sorted(os.environ)})
    INIT
    return Run(START)
'''


class Told(list[str]):
    """Collects warnings."""

    def __call__(self, text: str) -> None:
        self.append(text)


def fake_package(folder: Path, *, init: str = "pass", finish: str = "put({'finished': True})", start: int = 0) -> None:
    text = FAKE.replace("FINISH", finish).replace("INIT", init).replace("START", str(start))
    (folder / "wandb.py").write_text(text, encoding="utf-8")


def opened(folder: Path, told: Told, **environ: str) -> WandbLog:
    env = {**os.environ, "PYTHONPATH": str(folder), "WANDB_FAKE_OUT": str(folder / "out"), **environ}
    log = open_wandb(
        project="p",
        name="n",
        run_dir=folder / "run",
        identity={"task": "toy"},
        environ=env,
        warn=told,
        close_s=20.0,
    )
    assert log is not None
    return log


def written(folder: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def test_only_finite_numbers_with_plain_names_are_sent() -> None:
    assert step_metrics(SUMMARY) == {
        "search/best_score": 45.5,
        "search/best_gain": 17.7,
        "reward/mean": 30.0,
        "status/valid": 7.0,
        "train/kl": 0.25,
    }


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    page = (ROOT / "docs/wandb.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in row.replace("`", " ").replace(",", " ").split() if "/" in name}
    assert names == {*METRICS, "status/<status>", "train/..."}


def test_rows_reach_one_run_without_any_credential(tmp_path: Path) -> None:
    fake_package(tmp_path)
    told = Told()
    secrets = {"OPENROUTER_API_KEY": "sk-sentinel", "GUIDANCE_REEF_TOKEN": "tok-sentinel", "WANDB_API_KEY": "wanted"}
    log = opened(tmp_path, told, **secrets)
    log.step_committed(SUMMARY)
    log.step_committed({**SUMMARY, "step": 1})
    log.close()
    opening, *rows = written(tmp_path)
    assert told == []
    assert [row.get("step") for row in rows] == [1, 2, None]
    assert opening["init"]["resume"] == "allow"
    assert opening["init"]["config"] == {"task": "toy"}
    assert opening["init"]["settings"] == {"console": "off", "silent": True}
    assert {name for name in secrets if name in opening["environ"]} == {"WANDB_API_KEY"}
    assert "sentinel" not in (tmp_path / "out").read_text()


def test_the_same_state_directory_resumes_the_same_run_and_sends_only_what_is_new(tmp_path: Path) -> None:
    fake_package(tmp_path)
    first = opened(tmp_path, Told())
    first.step_committed(SUMMARY)
    first.close()
    fake_package(tmp_path, start=2)
    second = opened(tmp_path, Told())
    for step in range(3):
        second.step_committed({**SUMMARY, "step": step})
    second.close()
    lines = written(tmp_path)
    ids = {line["init"]["id"] for line in lines if "init" in line}
    assert ids == {stored_run_id(tmp_path / "run/wandb.json")}
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 3]


@pytest.mark.parametrize(
    ("init", "finish", "words"),
    [
        ("raise ImportError('no wandb')", "pass", "ImportError: no wandb"),
        ("raise RuntimeError('refused: ' + os.environ['WANDB_API_KEY'])", "pass", r"RuntimeError: refused: [redacted]"),
        ("os._exit(3)", "pass", "its process ended"),
        ("pass", "raise SystemExit(7)", "exit code 7"),
    ],
)
def test_whatever_the_package_does_costs_one_line(tmp_path: Path, init: str, finish: str, words: str) -> None:
    fake_package(tmp_path, init=init, finish=finish)
    told = Told()
    log = opened(tmp_path, told, WANDB_API_KEY="a-secret-key")
    for step in range(3):
        log.step_committed({**SUMMARY, "step": step})
    log.close()
    assert len(told) == 1
    assert told[0].startswith("W&B logging is off: ")
    assert words in told[0]


def test_a_missing_package_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("raise ImportError('gone')", encoding="utf-8")
    told = Told()
    log = opened(tmp_path, told)
    log.close()
    assert len(told) == 1
    assert "the package wandb is not installed; try: " in told[0]


def test_a_service_that_hangs_holds_the_end_up_for_a_bounded_time_only(tmp_path: Path) -> None:
    fake_package(tmp_path, finish="time.sleep(600)")
    told = Told()
    log = opened(tmp_path, told)
    log.step_committed(SUMMARY)
    while not log._opened:
        time.sleep(0.01)
    log._close_s = 0.5
    log.close()
    assert log._child.returncode is not None
    assert len(told) == 1
    assert "`wandb sync` sends what is in" in told[0]


def test_a_service_that_hangs_while_it_opens_does_not_hold_a_step_up(tmp_path: Path) -> None:
    fake_package(tmp_path, init="time.sleep(600)")
    told = Told()
    log = opened(tmp_path, told)
    log._close_s = 0.5
    for step in range(2000):  # more than a pipe holds
        log.step_committed({**SUMMARY, "step": step})
    log.close()
    assert len(told) == 1
    assert told[0].endswith("it did not open the run")


def test_a_damaged_id_file_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "wandb.json").write_text("{", encoding="utf-8")
    told = Told()
    found = open_wandb(project="p", name="n", run_dir=tmp_path, identity={}, environ={}, warn=told)
    assert found is None
    assert len(told) == 1
    assert "wandb.json" in told[0]


def test_the_disabled_mode_of_wandb_itself_is_obeyed(tmp_path: Path) -> None:
    environ = {"WANDB_MODE": "disabled"}
    assert open_wandb(project="p", name="n", run_dir=tmp_path, identity={}, environ=environ, warn=Told()) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", ["0", "1"])
def test_a_run_follows_in_w_and_b_only_when_asked_and_tells_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    from harness import harbor_agent

    given: list[dict[str, Any]] = []
    monkeypatch.setattr(harbor_agent, "open_wandb", lambda **settings: given.append(settings))
    config = RunConfig.load({"GUIDANCE_STATE_DIR": str(tmp_path / "mine"), "GUIDANCE_WANDB": asked})
    harbor_agent.follow_in_wandb(config, load_task(config.task_dir), RunProgress(None, io.StringIO()))
    assert len(given) == int(asked)
    for settings in given:
        assert (settings["project"], settings["name"]) == ("guidance-ttt", "mine")
        sent = json.dumps(settings["identity"])
        assert '"polyomino_packing"' in sent
        assert str(tmp_path) not in sent
        assert str(ROOT) not in sent


@pytest.mark.slow
def test_the_real_package_writes_an_offline_run_without_network(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("WANDB_")},
        "WANDB_MODE": "offline",
        "HOME": str(tmp_path / "home"),
        "OPENROUTER_API_KEY": "sk-sentinel-key",
    }
    (tmp_path / "home").mkdir()
    told = Told()
    for last_step in (1, 2):
        log = open_wandb(
            project="p", name="n", run_dir=tmp_path / "run", identity={"task": "toy"}, environ=environ, warn=told,
            close_s=60.0,
        )  # fmt: skip
        assert log is not None
        for step in range(last_step):
            log.step_committed({**SUMMARY, "step": step})
        log.close()
    assert told == []
    runs = sorted((tmp_path / "run/wandb").glob("offline-run-*"))
    run_id = stored_run_id(tmp_path / "run/wandb.json")
    assert {run.name.rpartition("-")[2] for run in runs} == {run_id}
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"search/best_score" in kept
    assert b"sentinel" not in kept
    assert b"return 0" not in kept
