"""`guidance-ttt report`: one HTML file and two CSV files that say what a run found, how, and what that is worth."""

from __future__ import annotations

from pathlib import Path


def default_output(state_dir: Path) -> Path:
    """Where a report goes unless another place is named."""
    return state_dir / "guidance-run" / "report" / "report.html"
