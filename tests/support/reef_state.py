"""What a Reef state directory says was committed, read from the files themselves while the service runs or is down."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True)
class ReefState:
    """One scenario's records in `root`: the commit log, the releases in git, and the backend's load ids."""

    root: Path

    def commits(self) -> list[dict[str, Any]]:
        """The records of the commit log, oldest first."""
        (path,) = (self.root / "agent-record").glob("*.commits.jsonl")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def commit_log(self) -> Path:
        (path,) = (self.root / "agent-record").glob("*.commits.jsonl")
        return path

    def consumed(self) -> list[str]:
        """Every record id that a commit consumed, with repetitions."""
        return [record for commit in self.commits() for record in consumed_by(commit)]

    def head(self) -> str:
        """The release that the scenario's branch names."""
        (line,) = self.git("for-each-ref", "--format=%(objectname)", "refs/reef/scenarios").splitlines()
        return line

    def adapters(self) -> list[str]:
        """The SHA-256 of the released adapter of each step, oldest first, from the history of the branch."""
        releases = self.git("rev-list", "--reverse", self.head()).splitlines()
        pointers = [self._pointer(release) for release in releases]
        return [pointer for pointer in pointers if pointer]

    def loads(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.root / "backend" / "loads.json").read_text(encoding="utf-8"))
        return value

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.root / "backend" / "checkpoints").iterdir())

    def leftovers(self) -> list[str]:
        """Lock files and unfinished files or folders, in everything that Reef and the backend keep."""
        folders = ("backend", "artifacts.git", "artifact-work", "artifact-cache")
        found = [path for folder in folders for path in (self.root / folder).rglob("*") if _is_leftover(path)]
        return sorted(str(path.relative_to(self.root)) for path in found)

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "--git-dir", str(self.root / "artifacts.git"), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def _pointer(self, release: str) -> str | None:
        names = self.git("ls-tree", "--name-only", release).splitlines()
        if ADAPTER not in names:
            return None
        pointer = self.git("show", f"{release}:{ADAPTER}")
        (oid,) = [line.partition("sha256:")[2] for line in pointer.splitlines() if line.startswith("oid ")]
        assert (self.root / "artifacts.git" / "lfs" / "objects" / oid[:2] / oid[2:4] / oid).exists()
        return oid


def consumed_by(commit: dict[str, Any]) -> list[str]:
    """The ids of the records that one commit consumed."""
    consumed: list[str] = commit["record_progress"]["consumed_ids"]
    return consumed


def _is_leftover(path: Path) -> bool:
    name = path.name
    return (
        (name.endswith(".lock") and name != ".lock" and path.is_file())
        or (name.startswith(".") and name.endswith(".tmp"))
        or name.startswith(("tmp_obj_", "tmp_objdir"))
        or (path.parent.name == "staged" and path.is_dir())
        or (path.parent.name == "artifact-cache" and name.startswith("."))
    )
