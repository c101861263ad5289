"""The seed: the program a search starts from, always measured by the live judge and never taken on trust."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from harness.contract import TaskContract
from harness.errors import SeedRejected, TaskInvalid
from harness.library_file import read_seed_entry
from harness.scorer import Scorer
from harness.state import LibraryEntry, VerificationResult, derived_id
from harness.summaries import NO_SUMMARY, canonical_summary

ROOT_TIMESTEP = 0


@dataclass(frozen=True)
class SeedProgram:
    """A program and the code-free summary that the policy will read of it."""

    path: Path
    code: str
    summary: str


def load_seed(task_dir: Path, contract: TaskContract, seed_path: Path | None = None) -> SeedProgram:
    """The user's seed (`GUIDANCE_SEED`) or the task's own `solution/seed.*`, with the same-named `.md` summary.

    A `.json` seed is an archive of another run (or of the Reef example); its first root is taken.  Raises `TaskInvalid`
    naming the file when either is missing or blank, and `StateCorrupt` for an archive that cannot be read.
    """
    suffix = Path(contract.source_file.name).suffix
    path = seed_path or task_dir / "solution" / f"seed{suffix}"
    if path.suffix == ".json":
        return _archived_seed(path)
    code = _read(path, "seed program")
    summary = canonical_summary(_read(path.with_suffix(".md"), "seed summary"), code)
    if not summary.text:
        raise TaskInvalid(
            f"the seed summary {path.with_suffix('.md')} holds nothing but code; describe the program in words"
        )
    return SeedProgram(path, code, summary.text)


async def score_seed(seed: SeedProgram, scorer: Scorer) -> VerificationResult:
    """Measure the seed; raises `SeedRejected` when the judge does not accept it and `JudgeUnavailable` when it cannot
    say."""
    verdict = await scorer.evaluate(seed.code)
    if not verdict.valid or verdict.raw_score is None:
        raise SeedRejected(
            f"the judge rejects the seed {seed.path} ({verdict.status}): {verdict.message[:500]}; "
            "a search needs a valid program to start from"
        )
    return verdict


def seed_entry(seed: SeedProgram, verdict: VerificationResult, *, problem_id: str, run_seed: int) -> LibraryEntry:
    """The archive entry of a measured seed."""
    return LibraryEntry(
        id=derived_id(run_seed, "seed-entry", hashlib.sha256(seed.code.encode()).hexdigest()),
        parent_id=None,
        problem_id=problem_id,
        timestep=ROOT_TIMESTEP,
        guidance="",
        execution_thinking="",
        solution=seed.code,
        verifier_reward=verdict.reward,
        verifier_raw_score=verdict.raw_score,
        verifier_status=verdict.status,
        verifier_message=verdict.message,
        summary=seed.summary,
        reusable_idea=None,
        failure_mode=None,
        metadata={"bootstrap": True, "raw_model_summary": seed.summary},
    )


def _archived_seed(path: Path) -> SeedProgram:
    entry = read_seed_entry(path)
    raw = entry.metadata.get("raw_model_summary")
    text = raw if isinstance(raw, str) and raw.strip() else entry.summary
    return SeedProgram(path, entry.solution, canonical_summary(text, entry.solution).text or NO_SUMMARY)


def _read(path: Path, what: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskInvalid(f"the {what} is missing: {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskInvalid(f"the {what} {path} cannot be read: {error}") from error
    if not text.strip():
        raise TaskInvalid(f"the {what} is empty: {path}")
    return text
