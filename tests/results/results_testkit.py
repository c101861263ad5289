"""What the tests of recorded results share: running the checker, and changing one number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "results"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the checker as a user does."""
    command = [sys.executable, str(RESULTS / "check_results.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def complaint_about(root: Path, name: str, old: str, new: str) -> str:
    """What the checker says once `old` is `new` in a file of `root`, with the hashes of the changed files."""
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert old in text, text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    done = check(str(root), "--write-hashes")
    assert done.returncode == 1, done.stdout
    return done.stderr
