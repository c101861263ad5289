"""Fetching a published bootstrap: exactly the pinned bytes or a clear refusal, and nothing of it is run."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from guidance_ttt.prepare import PINS, PinnedBootstrap, main
from harness.bootstrap import load_seed
from harness.contract import load_task

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import os\nos.makedirs('/tmp/guidance-bootstrap-was-run')\n\ndef custom_kernel(data):\n    return data\n"
PATH = "results/kernels/best.py"


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository whose pinned commit is not its last one."""
    folder = tmp_path / "published"
    (folder / PATH).parent.mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    for name in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
        git(folder, "config", name, "true")
    (folder / PATH).write_text(PROGRAM)
    (folder / "large.bin").write_bytes(b"x" * 100_000)
    (folder / "results/link.py").symlink_to("/etc/passwd")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "published")
    git(folder, "tag", "pin")
    (folder / PATH).write_text("raise SystemExit('a later version')\n")
    git(folder, "commit", "-q", "-a", "-m", "later")
    return folder


@pytest.fixture
def pin(source: Path) -> PinnedBootstrap:
    return PinnedBootstrap(
        repository=f"file://{source}",
        commit=git(source, "rev-parse", "pin"),
        checkout="published",
        path=PATH,
        licence="MIT",
        sha256=hashlib.sha256(PROGRAM.encode()).hexdigest(),
        note="as it was",
    )


def prepare(tmp_path: Path, pin: PinnedBootstrap, *words: str) -> int:
    state = tmp_path / "state"
    return main(["trimul", "--pinned", *words], {"GUIDANCE_STATE_DIR": str(state)}, pins={"trimul": pin}, root=ROOT)


def test_without_a_fetch_the_bundled_seed_is_named_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    assert main(["trimul", "--state-dir", str(state)], {}) == 0
    said = capsys.readouterr().out
    assert str(ROOT / "harbor/trimul/solution/seed.py") in said
    assert "prepare.py trimul --pinned" in said
    assert not state.exists()


def test_the_pinned_version_is_fetched_checked_and_ready_to_start_from(
    tmp_path: Path, pin: PinnedBootstrap, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(tmp_path, pin) == 0
    target = tmp_path / "state/bootstrap.py"
    assert target.read_text() == PROGRAM
    said = capsys.readouterr().out
    assert f"GUIDANCE_SEED={target}" in said
    assert f"SHA-256 {pin.sha256} as published" in said
    assert "note: as it was" in said
    checkout = tmp_path / "state/published"
    assert git(checkout, "rev-parse", "HEAD") == pin.commit
    assert git(checkout, "rev-list", "--count", "HEAD") == "1"
    assert not (checkout / "large.bin").exists()
    assert not Path("/tmp/guidance-bootstrap-was-run").exists()
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["bootstrap.md", "bootstrap.py", "published"]
    seed = load_seed(ROOT / "harbor/trimul", load_task(ROOT / "harbor/trimul"), target)
    assert seed.code == PROGRAM
    assert seed.summary.startswith("Triton kernels around one library call")
    # Once it is there, no network is needed any more.
    shutil.rmtree(source)
    assert prepare(tmp_path, pin) == 0


def test_a_local_clone_can_take_the_place_of_the_network(tmp_path: Path, pin: PinnedBootstrap, source: Path) -> None:
    elsewhere = replace(pin, repository="https://host.invalid/published.git")
    assert prepare(tmp_path, elsewhere, "--source", str(source)) == 0
    assert (tmp_path / "state/bootstrap.py").read_text() == PROGRAM


def test_one_checkout_serves_two_tasks(tmp_path: Path, pin: PinnedBootstrap) -> None:
    assert prepare(tmp_path, pin) == 0
    (tmp_path / "state/bootstrap.py").unlink()
    other = replace(pin, path="large.bin", sha256=None)
    assert prepare(tmp_path, other) == 0
    assert (tmp_path / "state/bootstrap.py").read_bytes() == b"x" * 100_000


def test_other_bytes_than_the_published_ones_are_not_used(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(tmp_path, replace(pin, sha256="0" * 64)) == 1
    assert f"has SHA-256 {pin.sha256}, published was 000" in capsys.readouterr().err
    assert not (tmp_path / "state/bootstrap.py").exists()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("changed file", "has changed files (M results/kernels/best.py, ...)"),
        ("other commit", "is at commit"),
        ("no checkout", "is no git checkout of its own|is no usable git checkout"),
    ],
)
def test_a_checkout_that_is_not_exactly_the_pin_is_refused(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str], what: str, reason: str
) -> None:
    checkout = tmp_path / "state/published"
    if what == "no checkout":
        (checkout / "mine").mkdir(parents=True)
    else:
        assert prepare(tmp_path, pin) == 0
        (checkout / PATH).write_text("changed\n")
        if what == "other commit":
            git(checkout, "commit", "-q", "-a", "-m", "mine")
    assert prepare(tmp_path, pin) == 1
    said = capsys.readouterr().err
    assert any(part in said for part in reason.split("|")), said
    assert "move it away" in said


@pytest.mark.parametrize("name", ["bootstrap.py", "bootstrap.md"])
def test_a_different_file_is_never_replaced(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    mine = tmp_path / "state" / name
    mine.parent.mkdir()
    mine.write_text("mine\n")
    assert prepare(tmp_path, pin) == 1
    assert f"{mine} exists and is different" in capsys.readouterr().err
    assert mine.read_text() == "mine\n"


def test_a_link_in_the_repository_is_not_followed(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(tmp_path, replace(pin, path="results/link.py", sha256=None)) == 1
    assert "is no ordinary file" in capsys.readouterr().err


def test_an_unreachable_host_is_named_with_the_cure(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert prepare(tmp_path, pin, "--source", f"http://127.0.0.1:{port}/published.git") == 1
    said = capsys.readouterr().err
    assert "could not be fetched from 127.0.0.1" in said
    assert "--source DIR" in said
    assert "leave --pinned out" in said
    assert list((tmp_path / "state").iterdir()) == []


def test_a_host_that_never_answers_is_given_up(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/published.git"
        assert prepare(tmp_path, pin, "--source", url, "--timeout-seconds", "0.5") == 1
    assert "no answer within 0.5 s" in capsys.readouterr().err
    assert list((tmp_path / "state").iterdir()) == []


def test_a_commit_that_the_source_does_not_have_is_named(
    tmp_path: Path, pin: PinnedBootstrap, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(tmp_path, replace(pin, commit="0123456789" * 4)) == 1
    assert "commit 012345678901 could not be fetched" in capsys.readouterr().err


def test_a_task_without_a_published_checkout_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["polyomino_packing", "--pinned"], {}) == 2
    assert "has no pinned checkout; its seed is bundled in" in capsys.readouterr().err
    assert main(["trimul", "--source", "x"], {}) == 2
    assert "needs --pinned" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["chess"], ["../trimul"], [], ["trimul", "--timeout-seconds", "-1"]])
def test_wrong_arguments_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words, {})
    assert ended.value.code == 2


@pytest.mark.parametrize("task", list(PINS))
def test_every_pin_is_complete_and_has_a_summary_without_code(task: str) -> None:
    pin = PINS[task]
    assert re.fullmatch(r"https://[\w./-]+\.git", pin.repository)
    assert re.fullmatch(r"[0-9a-f]{40}", pin.commit)
    assert pin.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", pin.sha256)
    summary = (ROOT / "harbor" / task / "bootstrap-summary.md").read_text(encoding="utf-8")
    assert len(summary) > 200
    assert not re.search(r"[`;{}=#]", summary)
