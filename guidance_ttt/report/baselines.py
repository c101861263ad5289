"""Published numbers, and whether they may stand beside this run's at all.

They may only where the judge that this state directory is bound to scored the very cases they were published for, as
the hash of its case set says.  Everywhere else the report gives the reason instead of the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.terminal import one_line
from guidance_ttt.wings import PROJECT_ROOT
from harness.config import TASKS

RESULTS_DIR = PROJECT_ROOT / "results"
_PUBLISHED_NAMES = {"polyomino_packing": "polyomino"}


@dataclass(frozen=True)
class Baseline:
    """One published number, in the unit of this run's scores; one that is drawn as a line has a short name, `mark`."""

    label: str
    value: float
    source: str
    mark: str = ""


@dataclass(frozen=True)
class Baselines:
    """The rows to show, those to draw as lines, and some sentences: what they are, or why there are none."""

    rows: tuple[Baseline, ...]
    lines: tuple[Baseline, ...]
    remark: str


@dataclass(frozen=True)
class _OfficialSuite:
    """The cases that a published number belongs to; published values are divided by `divisor` to get our unit."""

    label: str
    sha256: str
    problem: str
    divisor: float = 1.0


def find_baselines(task: str, identity: Mapping[str, Any], folder: Path = RESULTS_DIR) -> Baselines:
    """The published numbers that this run may be compared with, going by the identity of its state directory."""
    if (reason := _not_comparable(task, identity)) is not None:
        return Baselines((), (), reason)
    official = _official_suite(task)
    assert official is not None
    try:
        rows = tuple(_rows(task, official, folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Baselines((), (), f"The published numbers could not be read from {folder.name}/: {error}.")
    if identity.get("search_problem") != official.problem:
        problem, full = identity.get("search_problem"), official.problem
        remark = (
            f"Published for the same official cases, all of problem {full}. This search scored on {problem}, a part of "
            "them, so no line is drawn into the charts; only the verifier's result is on the same cases."
        )
        return Baselines(rows, (), remark)
    lines = tuple(row for row in rows if row.mark)
    remark = (
        "Published for the same official cases and measured by others, each under a protocol of its own. They are not "
        "measurements of this run, and none of its statements rests on them."
    )
    return Baselines(rows, lines, remark)


def _not_comparable(task: str, identity: Mapping[str, Any]) -> str | None:
    """Why published numbers do not belong beside this run."""
    suite, digest = identity.get("judge_suite"), identity.get("judge_suite_sha256")
    official = _official_suite(task)
    known = TASKS.get(task)
    if known is not None and known.timed:
        return "None shown: this task scores running times, and the published ones were measured on other machines."
    if official is None:
        return "None shown: no result for this task has been published that this project has a record of."
    if suite is None:
        return "None shown: the state directory does not say on which cases its judge scored."
    if suite != official.label:
        return (
            f"None shown: this run was scored on the case set {one_line(str(suite))!r}, not on the official one, so "
            "published numbers would not be comparable."
        )
    if digest != official.sha256:
        return "None shown: the judge's cases are called official, but their hash is not that of the published set."
    return None


def _official_suite(task: str) -> _OfficialSuite | None:
    if task == "polyomino_packing":
        from judges.polyomino.suite import FULL_PROBLEM, OFFICIAL_LABEL, OFFICIAL_SHA256

        return _OfficialSuite(OFFICIAL_LABEL, OFFICIAL_SHA256, FULL_PROBLEM)
    if task == "ahc058":
        from judges.ahc058.generator import PINNED_SHA256
        from judges.ahc058.suite import FULL_PROBLEM, LABEL

        return _OfficialSuite(LABEL, PINNED_SHA256, FULL_PROBLEM, divisor=150.0)
    return None


def _rows(task: str, official: _OfficialSuite, folder: Path) -> Iterator[Baseline]:
    name = _PUBLISHED_NAMES.get(task, task)
    paper = json.loads((folder / "paper" / "results.json").read_text(encoding="utf-8"))
    for result in paper["results"]:
        if result["task"] == name:
            unit = "" if official.divisor == 1 else f", {result['unit']} divided by {official.divisor:g}"
            source = f"the method's paper, commit {paper['paper_commit']}{unit}"
            budget = f"{result['updates']} updates of {result['groups_per_step']} x {result['rollouts_per_group']}"
            label = f"this method, {result['guidance_model']} with {result['executor']}, {budget}"
            yield Baseline(label, result["result"] / official.divisor, source, mark="paper")
            best = (max if result["direction"] == "max" else min)(value for _, value in result["baselines"])
            for other, value in result["baselines"]:
                mark = str(other).partition(" (")[0] if value == best else ""
                yield Baseline(str(other), value / official.divisor, source, mark)
    runs = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    for run in runs["runs"]:
        if run["task_id"] == task:
            models = run["models"]
            label = f"this method, published {run['framework']} run, {models['guidance']} with {models['executor']}"
            source = f"published run record, {runs['generated_at']}"
            yield Baseline(label, run["search"]["best_score"] / official.divisor, source, mark="published run")
