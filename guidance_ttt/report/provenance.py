"""Where a result comes from: settings with their sources, the identity of the state, hashes, and commands to repeat it.

Nothing here shows a secret: settings are shown as `inspect --config` shows them, and every text is cleaned later.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.archive_view import program_sha256
from guidance_ttt.config_view import ROWS, view_config
from guidance_ttt.export import ADAPTER_FILES, served_adapter
from guidance_ttt.model import file_sha256
from guidance_ttt.report.facts import RunFacts
from guidance_ttt.terminal import one_line
from guidance_ttt.wings import PROJECT_ROOT
from harness.config import PROFILES
from harness.errors import GuidanceError
from harness.run_state import IDENTITY_FILE, RESUME_FILE

BOUND = "state directory"
TOOL = ".venv/bin/guidance-ttt"
_VARIABLES = {
    "GUIDANCE_MODEL": "model",
    "GUIDANCE_LEARNING_RATE": "learning_rate",
    "GUIDANCE_PROMPT_STYLE": "prompt_style",
    "GUIDANCE_SEARCH_PROBLEM": "search_problem",
}
"""Settings beyond the usual ones that the identity holds and that the environment can give."""


@dataclass(frozen=True)
class SettingRow:
    """One setting, its value and where that comes from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class Configuration:
    """The settings that the run would go on with; `remarks` says what is doubtful about them."""

    rows: tuple[SettingRow, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Hash:
    """The SHA-256 of one thing."""

    what: str
    sha256: str


def configuration(facts: RunFacts, environ: Mapping[str, str]) -> Configuration:
    """The settings a continuation would have, going by the environment and by what the state is bound to."""
    bound = {**bound_settings(facts), "GUIDANCE_STATE_DIR": str(facts.state_dir.absolute())}
    if not environ.get("GUIDANCE_STEPS", "").strip():
        bound["GUIDANCE_STEPS"] = str(max(1, facts.status.steps_done, facts.status.total_steps or 0))
    added = {name: value for name, value in bound.items() if environ.get(name, "").strip() != value}
    try:
        view = view_config({**environ, **bound})
    except GuidanceError as error:
        return Configuration((), (f"The settings cannot be read here: {error}",))
    sources = {f"environment ({name})": BOUND for name in added}
    sources |= {f"environment ({name}, named by the file)": BOUND for name in added}
    rows = tuple(
        SettingRow(item.name, "-" if item.value is None else str(item.value), sources.get(item.source, item.source))
        for item in view.settings
    )
    remarks = [f"Differs from what the state is bound to: {text}" for text in view.differences]
    return Configuration(rows, tuple(remarks))


def bound_settings(facts: RunFacts) -> dict[str, str]:
    """Environment variables that repeat what the identity fixes, so far as they can."""
    found = {"GUIDANCE_TASK": facts.task} if facts.status.task else {}
    identity = facts.identity
    profile = next((name for name, item in PROFILES.items() if item.model_name == identity.get("model")), None)
    if profile not in (None, "local"):
        found["GUIDANCE_PROFILE"] = str(profile)
    if facts.status.policy_frozen:
        found["GUIDANCE_FREEZE_POLICY"] = "1"
    found |= facts.status.settings
    for name, key in _VARIABLES.items():
        value = identity.get(key)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", 0, 0.0):
            found[name] = str(value)
    return {name: value for name, value in found.items() if any(name in row.variables for row in ROWS)}


def identity_rows(facts: RunFacts) -> list[tuple[str, str]]:
    """What the state directory is bound to, as its file says."""
    return [(key, "-" if value is None else one_line(str(value), 300)) for key, value in sorted(facts.identity.items())]


# --- hashes -----------------------------------------------------------------------------------------------------------


def hashes(facts: RunFacts) -> list[Hash]:
    """SHA-256 of the programs, and of the state's files while no run can change them."""
    found = [
        Hash("best program", program_sha256(facts.best.solution)),
        Hash("seed program", program_sha256(facts.seed.solution)),
    ]
    entry_id = facts.submission.get("entry_id")
    if isinstance(entry_id, str) and entry_id != facts.best.id and entry_id in facts.view.entry_ids:
        found.append(Hash("submitted program", program_sha256(facts.view.entry(entry_id).solution)))
    if facts.status.live:
        return found
    for path in (facts.view.path, facts.run_dir / RESUME_FILE, facts.run_dir / IDENTITY_FILE):
        if path.is_file():
            found.append(Hash(path.name, file_sha256(path)))
    try:
        weights = served_adapter(facts.state_dir) / ADAPTER_FILES[1]
        found.append(Hash(f"adapter ({ADAPTER_FILES[1]})", file_sha256(weights)))
    except (GuidanceError, OSError):
        pass  # nothing was trained, or another engine keeps the weights elsewhere
    return found


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """Commands with what they are for."""

    purpose: str
    commands: str


def recipes(facts: RunFacts) -> list[Recipe]:
    """How to look closer, check the winner, go on, and repeat the run from the start."""
    place = shlex.quote(shown_path(facts.state_dir))
    suffix = ".py" if facts.contract is not None and facts.contract.language.key == "python" else ".cpp"
    settings = {**bound_settings(facts), "GUIDANCE_STATE_DIR": "work/again", "GUIDANCE_STEPS": _steps(facts)}
    again = " \\\n".join([*(f"{name}={shlex.quote(value)}" for name, value in settings.items()), "./run.sh"])
    task = shlex.quote(facts.task)
    return [
        Recipe("See how the winner came about", f"{TOOL} inspect --lineage --state-dir {place}"),
        Recipe(
            "Take the winner out and score it on all cases of the task",
            f"{TOOL} export --program best{suffix} --state-dir {place}\n"
            f"{TOOL} judge {task} --port 8081 --state-dir work/check    # in a second terminal\n"
            f".venv/bin/python evaluate_solution.py {task} --solution best{suffix} --judge-url http://127.0.0.1:8081",
        ),
        Recipe("Write this report again", f"{TOOL} report --state-dir {place}"),
        Recipe("Repeat the run from the start, in a new directory", again),
    ]


def _steps(facts: RunFacts) -> str:
    return str(max(1, facts.status.steps_done))


def shown_path(path: Path) -> str:
    """A path relative to the project where it lies inside: a report that is sent around says less of a machine."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(PROJECT_ROOT)) if absolute.is_relative_to(PROJECT_ROOT) else str(path)


def run_dates(facts: RunFacts) -> str | None:
    """From when to when events were recorded."""
    first, last = facts.history.first, facts.history.last
    return None if first is None or last is None else f"{_minute(first)} to {_minute(last)} UTC"


def _minute(stamp: str) -> str:
    return stamp[:16].replace("T", " ")


def named(values: Mapping[str, Any], key: str) -> str | None:
    """A text under a key, if there is one."""
    value = values.get(key)
    return value if isinstance(value, str) and value.strip() else None
