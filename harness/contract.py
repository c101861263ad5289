"""The task contract: what the harness must know of a task, read from its directory and checked once.

Owns `contract.json` and `instruction.md`.  It refuses to know any task by name: a new task is a new directory.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.errors import TaskInvalid

CONTRACT_FILE = "contract.json"
INSTRUCTION_FILE = "instruction.md"
SCORE_DIRECTIONS = ("max", "min")

_CPP_SPELLINGS = re.compile(r"(?:gnu\+\+|g\+\+|c\+\+|cpp|cxx|cc)(?:(?P<year>11|14|17|20|23|26))?")
_PYTHON_SPELLINGS = re.compile(r"(?:python|py)(?:3(?:\.\d+)?)?")
_DEFAULT_CPP_YEAR = "17"


@dataclass(frozen=True)
class Language:
    """One solution language under the three names it needs: for the judge, for a fence and for a reader."""

    key: str
    fence: str
    label: str
    file_name: str
    content_type: str

    @classmethod
    def parse(cls, spelling: str) -> Language:
        """Understand any usual spelling (`cpp`, `C++20`, `python3`); raises `TaskInvalid` for anything else."""
        text = spelling.strip().lower()
        match = _CPP_SPELLINGS.fullmatch(text)
        if match is not None:
            year = match.group("year") or _DEFAULT_CPP_YEAR
            return cls("cpp", "cpp", f"C++{year}", "solution.cpp", "text/x-c++src")
        if _PYTHON_SPELLINGS.fullmatch(text):
            return cls("python", "python", "Python", "solution.py", "text/x-python")
        raise TaskInvalid(f"solution_language {spelling!r} is not known; use cpp, cpp17, cpp20, cpp23 or python")


@dataclass(frozen=True)
class SourceFile:
    """How a program travels to the judge and to the task's workspace."""

    name: str
    content_type: str


@dataclass(frozen=True)
class TaskContract:
    """A task's problem statement, its rules for programs and guidance, and how its score reads."""

    problem_prompt: str
    solution_language: str
    solution_contract: str
    mechanism_constraint: str
    objective: str
    raw_score_label: str
    score_direction: str = "max"
    judge_problem_id: str = "0"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str):
                raise TaskInvalid(f"{field.name} is {value!r}, a string is needed")
            if not value.strip():
                raise TaskInvalid(f"{field.name} is blank; write its text")
        if self.score_direction not in SCORE_DIRECTIONS:
            raise TaskInvalid(f"score_direction is {self.score_direction!r}; use 'max' or 'min'")
        Language.parse(self.solution_language)

    @property
    def language(self) -> Language:
        """The solution language, resolved."""
        return Language.parse(self.solution_language)

    @property
    def language_label(self) -> str:
        """The language as a reader knows it: `C++17`, `C++20`, `Python`, ..."""
        return self.language.label

    @property
    def source_file(self) -> SourceFile:
        """File name and content type of a program of this task."""
        return SourceFile(self.language.file_name, self.language.content_type)

    def content_sha256(self) -> str:
        """Hash of everything the task says, so that a state directory notices an edited task."""
        text = json.dumps(asdict(self), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @classmethod
    def load(cls, path: Path | str, *, problem_prompt: str) -> TaskContract:
        """Read `contract.json`; `problem_prompt` is the task's instruction text.  Raises `TaskInvalid`."""
        values = _read_object(Path(path))
        names = {field.name for field in fields(cls)} - {"problem_prompt"}
        unknown = sorted(set(values) - names)
        if unknown:
            known = ", ".join(sorted(names))
            raise TaskInvalid(f"{path}: unknown key(s) {', '.join(unknown)}; the known keys are {known}")
        missing = sorted(names - {"score_direction", "judge_problem_id"} - set(values))
        if missing:
            raise TaskInvalid(f"{path}: missing key(s) {', '.join(missing)}; add each with a non-blank text")
        try:
            return cls(problem_prompt=problem_prompt, **values)
        except TaskInvalid as error:
            raise TaskInvalid(f"{path}: {error}") from None


def load_task(task_dir: Path | str) -> TaskContract:
    """Read a task directory's instruction and contract; raises `TaskInvalid` naming the file and the cure."""
    folder = Path(task_dir)
    if not folder.is_dir():
        cure = f"name a folder with {INSTRUCTION_FILE} and {CONTRACT_FILE}"
        raise TaskInvalid(f"task directory {folder} does not exist; {cure}")
    instruction = folder / INSTRUCTION_FILE
    prompt = _read_text(instruction)
    if not prompt.strip():
        raise TaskInvalid(f"{instruction} is blank; write the problem statement there")
    return TaskContract.load(folder / CONTRACT_FILE, problem_prompt=prompt)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskInvalid(f"{path} is missing; every task needs it") from None
    except UnicodeDecodeError as error:
        raise TaskInvalid(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise TaskInvalid(f"{path} cannot be read: {error.strerror or error}") from None


def _read_object(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise TaskInvalid(f"{path}: line {error.lineno} is not valid JSON ({error.msg})") from None
    except TaskInvalid as error:
        raise TaskInvalid(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise TaskInvalid(f"{path} holds a {type(value).__name__}; a JSON object with the contract's keys is needed")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise TaskInvalid(f"key {key!r} occurs twice; keep one")
        seen[key] = value
    return seen
