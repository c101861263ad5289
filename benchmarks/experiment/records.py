"""The records of an experiment: one row per update of each run, and which mechanisms its guidance named.

Everything is read from the run's own state directory, so that a record can be made anew at any time.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from executors.catalogue import Catalogue
from executors.matching import Matcher
from harness.grid import archive_timestep
from harness.storage import read_json_object

TRAIN_METRICS = ("kl", "entropy", "grad_norm", "importance_ratio", "response_length")


@dataclass(frozen=True)
class UpdateRow:
    """One update of one run; `update` counts from 1, scores are the search problem's, times are in seconds.

    The training columns are None for a run whose policy is no model.
    """

    seed: int
    arm: str
    update: int
    evaluations: int
    reward_mean: float
    reward_max: float
    best_score: float
    valid: int
    well_formed: int
    named: int
    zero_signal: int
    kl: float | None
    entropy: float | None
    grad_norm: float | None
    importance_ratio: float | None
    response_length: float | None
    rollout_s: float
    train_s: float


@dataclass(frozen=True)
class MechanismRow:
    """How often one mechanism was named first or second in an update's guidance."""

    seed: int
    arm: str
    update: int
    mechanism: str
    count: int


def update_rows(
    seed: int, arm: str, summaries: Sequence[Mapping[str, Any]], named: Sequence[Counter[str]]
) -> list[UpdateRow]:
    """Rows of a run from its step summaries (the shape of `resume-state.json`)."""
    rows: list[UpdateRow] = []
    evaluations = 0
    for summary, mechanisms in zip(summaries, named, strict=True):
        evaluations += int(summary["sampled_rollouts"])
        metrics = summary.get("train_metrics", {})
        training = {name: metrics.get(f"train/{name}") for name in TRAIN_METRICS}
        rows.append(
            UpdateRow(
                seed=seed,
                arm=arm,
                update=int(summary["step"]) + 1,
                evaluations=evaluations,
                reward_mean=float(summary["reward_mean"]),
                reward_max=float(summary["reward_max"]),
                best_score=float(summary["best_raw_score"]),
                valid=int(summary["valid_rollouts"]),
                well_formed=int(summary["well_formed_guidance"]),
                named=mechanisms["guidance"],
                zero_signal=int(summary["zero_signal"]),
                rollout_s=float(summary["rollout_s"]),
                train_s=float(summary.get("train_s", 0.0)),
                **training,
            )
        )
    return rows


def named_mechanisms(run_dir: Path, catalogue: Catalogue, updates: int) -> list[Counter[str]]:
    """Per update: how often each mechanism was named, and under `guidance` how many texts named any."""
    matcher = Matcher(catalogue)
    entries = read_json_object(run_dir / "committed-library.json")["entries"].values()
    counts = [Counter[str]() for _ in range(updates)]
    for entry in entries:
        step = next((n for n in range(updates) if archive_timestep(n) == entry["timestep"]), None)
        if step is None:
            continue
        applied = matcher.match(entry["guidance"]).applied
        counts[step].update(mechanism.id for mechanism in applied)
        counts[step]["guidance"] += bool(applied)
    return counts


def mechanism_rows(seed: int, arm: str, named: Sequence[Counter[str]]) -> list[MechanismRow]:
    """The counts as rows, most frequent first."""
    return [
        MechanismRow(seed, arm, number, mechanism, count)
        for number, counts in enumerate(named, start=1)
        for mechanism, count in counts.most_common()
        if mechanism != "guidance" and count
    ]


def write_rows(path: Path, rows: Iterable[UpdateRow] | Iterable[MechanismRow], kind: type) -> None:
    """A CSV file with one column per field; None is an empty cell."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in asdict(row).items()})


def read_updates(path: Path) -> list[UpdateRow]:
    """The rows that `write_rows` wrote."""
    kinds = {"seed": int, "update": int, "evaluations": int, "valid": int, "well_formed": int, "named": int}
    kinds |= {"zero_signal": int, "arm": str}
    with path.open(encoding="utf-8", newline="") as file:
        return [
            UpdateRow(**{name: None if text == "" else kinds.get(name, float)(text) for name, text in row.items()})
            for row in csv.DictReader(file)
        ]


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
