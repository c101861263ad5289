"""The two CSV files: every update and every rollout of a run, nothing left out.

Numbers are written as Python reads them back exactly.  Text loses secrets and active characters, and text that a
spreadsheet would take for a formula gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from guidance_ttt.archive_view import program_sha256
from guidance_ttt.report.facts import RunFacts
from guidance_ttt.report.series import Update, new_bests
from harness.state import VerdictStatus

UPDATE_COLUMNS = (
    "update", "evaluations", "valid", "rejected", "guidance_malformed", "no_program", "answer_unusable",
    "empty_answer", "quarantined", "service_retries", "reward_mean", "reward_max", "update_best_score", "best_score",
    "gain", "best_found_at", "well_formed_guidance", "kl", "entropy", "guidance_tokens_mean", "grad_norm",
    "importance_ratio", "rollout_s", "train_s", "tokens", "cost_usd", "no_learning_signal", "policy_frozen",
)  # fmt: skip
ROLLOUT_COLUMNS = (
    "evaluation", "update", "attempt", "group", "rollout", "status", "raw_score", "reward", "new_best", "entry_id",
    "parent_entry_id", "node_id", "visits", "best", "program_sha256", "program_chars", "receipt", "guidance",
    "summary", "message",
)  # fmt: skip
_COUNTED = (
    VerdictStatus.VALID,
    VerdictStatus.INVALID,
    VerdictStatus.GUIDANCE_FORMAT_ERROR,
    VerdictStatus.PARSE_ERROR,
    VerdictStatus.EXECUTION_ERROR,
    VerdictStatus.EMPTY_RESPONSE,
)
_FORMULA = ("=", "+", "-", "@", "\t")

Cell = str | int | float | bool | None


def updates_csv(facts: RunFacts, rows: Sequence[Update]) -> Iterator[bytes]:
    """One line for each update."""
    return _lines(UPDATE_COLUMNS, (_update_cells(row) for row in rows), facts.clean)


def rollouts_csv(facts: RunFacts) -> Iterator[bytes]:
    """One line for each rollout, its texts in full; programs are named by their hash (`export --archive` has them)."""
    return _lines(ROLLOUT_COLUMNS, _rollout_rows(facts), facts.clean)


def _update_cells(row: Update) -> list[Cell]:
    return [
        row.step,
        row.evaluations,
        *(row.statuses[status] for status in _COUNTED),
        row.quarantined,
        row.retries,
        row.reward_mean,
        row.reward_max,
        row.step_best,
        row.best,
        row.gain,
        row.found_at,
        row.well_formed,
        row.kl,
        row.entropy,
        row.guidance_tokens,
        row.grad_norm,
        row.importance_ratio,
        row.rollout_s,
        row.train_s,
        row.tokens,
        row.cost_usd,
        row.zero_signal,
        row.frozen,
    ]


def _rollout_rows(facts: RunFacts) -> Iterator[list[Cell]]:
    improved = {best.number for best in new_bests(facts)}
    for candidate in facts.candidates:
        entry, place = candidate.entry, candidate.place
        node = facts.view.node_of(entry.id)
        receipt = entry.metadata.get("agent_record_id")
        parent = entry.metadata.get("selected_parent_entry_id")
        yield [
            candidate.number,
            place.step,
            place.attempt,
            place.group,
            place.rollout,
            entry.verifier_status,
            entry.verifier_raw_score,
            entry.verifier_reward,
            candidate.number in improved,
            entry.id,
            parent if isinstance(parent, str) else None,
            None if node is None else node.id,
            None if node is None else facts.view.visits(node.id),
            entry.id == facts.best.id,
            program_sha256(entry.solution) if entry.has_program else None,
            len(entry.solution),
            receipt if isinstance(receipt, str) else None,
            entry.guidance,
            entry.summary,
            entry.verifier_message,
        ]




def _lines(header: Sequence[str], rows: Iterable[Sequence[Cell]], clean: Callable[[str], str]) -> Iterator[bytes]:
    yield _line(header, str)
    for row in rows:
        yield _line(row, clean)


def _line(cells: Sequence[Cell], clean: Callable[[str], str]) -> bytes:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow([_cell(cell, clean) for cell in cells])
    return stream.getvalue().encode("utf-8")


def _cell(value: Cell, clean: Callable[[str], str]) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return repr(value)
