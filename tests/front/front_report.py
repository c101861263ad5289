"""Helpers of the report's tests: a page as a browser would parse it, and states with everything a report can show."""

from __future__ import annotations

import csv
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from front_state import searched
from support.fake_services import FakeExecutor, FakeJudge, FakeReef
from support.search_fixture import World

from guidance_ttt.report.writing import Written, write_report
from harness.grid import Grid
from harness.state import VerdictStatus, VerificationResult
from harness.storage import read_json_object, write_json

VOID = {"meta"}
HOSTILE = (
    '</pre></script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
    "<svg onload=alert(1)>{{ 7*7 }}{% raw %}&lt;b&gt;\x1b[2J\u202egnp\x00\ud800<!-- <style>*{display:none}"
)


@dataclass
class Page(HTMLParser):
    """The elements and the text of a page, in order."""

    source: str
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert self._open == [], f"elements that were never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        (self.styles if self._open and self._open[-1] == "style" else self.texts).append(data)

    @property
    def text(self) -> str:
        """All text that is shown."""
        return "".join(self.texts)

    @property
    def flat(self) -> str:
        """The same on one line, with a space between elements."""
        return " ".join(" ".join(self.texts).split())


@dataclass(frozen=True)
class Report:
    """A written report, read back."""

    written: Written
    page: Page
    updates: list[dict[str, str]]
    rollouts: list[dict[str, str]]


def report_on(state_dir: Path, output: Path, **environ: str) -> Report:
    """Write a report and read all three files."""
    written = write_report(state_dir, output, environ=environ)
    return Report(
        written, Page(written.page.read_text(encoding="utf-8")), rows_of(written.updates), rows_of(written.rollouts)
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    """A CSV file with a header."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def archive_of(state_dir: Path) -> dict[str, Any]:
    """The committed archive as JSON."""
    return read_json_object(state_dir / "guidance-run" / "committed-library.json")


def summaries_of(state_dir: Path) -> list[dict[str, Any]]:
    """The summaries of the committed steps."""
    found: list[dict[str, Any]] = read_json_object(state_dir / "guidance-run" / "resume-state.json")["step_summaries"]
    return found


def change(path: Path, **values: Any) -> None:
    """Set some keys of a JSON file."""
    write_json(path, {**read_json_object(path), **values})


def measured(state_dir: Path, *, steps: int = 3, grid: Grid | None = None) -> Path:
    """A finished search with mixed verdicts and with the metrics that the local trainer records."""
    world = World(state_dir / "guidance-run", grid or Grid(2, 4))
    world.reef = FakeReef(
        world.grid, lambda seed: f"guidance {seed}" if seed % 5 == 0 else f"<guidance>Add {seed % 89}.</guidance>"
    )
    world.judge = FakeJudge(judge_by_length)
    searched(state_dir, steps=steps, world=world)
    path = state_dir / "guidance-run" / "resume-state.json"
    summaries = [
        {**item, "train_metrics": {**item["train_metrics"], "train/kl": 0.001 * number, "train/entropy": 2.0 - number}}
        for number, item in enumerate(summaries_of(state_dir), start=1)
    ]
    change(path, step_summaries=summaries)
    return state_dir


def judge_by_length(code: str) -> VerificationResult:
    """Most programs are accepted; every seventh is rejected."""
    score = float(sum(map(ord, code)) % 1000)
    if int(score) % 7 == 0:
        return VerificationResult(0.0, None, False, VerdictStatus.INVALID, "wrong answer")
    return VerificationResult(score / 10, score, True, VerdictStatus.VALID, "accepted")


def hostile(state_dir: Path) -> Path:
    """A search in which every model, the task's label and the directory's name attack the page."""
    folder = state_dir / "<img src=x onerror=alert(1)>&'\""
    world = World(folder / "guidance-run", Grid(1, 3))
    safe = HOSTILE.replace("\ud800", "").replace("\x00", "")
    world.reef = FakeReef(world.grid, lambda seed: f"<guidance>{safe} {seed}</guidance>")
    text = "<solution>\n```cpp\nint main() {{}} // {1} {0}\n```\n</solution>\n<summary>{0} {1}</summary>"
    world.executor = FakeExecutor(
        lambda guidance, number: text.format(safe.replace("{", "(").replace("}", ")"), number)
    )
    searched(folder, steps=2, world=world)
    run_dir = folder / "guidance-run"
    change(run_dir / "task-identity.json", task=HOSTILE[:60], judge_suite=safe, model=safe)
    write_json(run_dir / "result.json", {"score_label": safe, "rewards": {"reward": 1.5}})
    archive = archive_of(folder)
    best = archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]
    best["solution"] += HOSTILE
    other = next(entry for entry in archive["entries"].values() if entry["timestep"] and entry is not best)
    other |= {"verifier_status": safe, "verifier_message": HOSTILE}
    write_json(run_dir / "committed-library.json", archive)
    return folder


def copy_of(state: Path, tmp_path: Path) -> Path:
    """A copy of a state that a test may change."""
    return Path(shutil.copytree(state, tmp_path / "copy"))
