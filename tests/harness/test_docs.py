"""The docs name files and settings; each of them has to exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_test_file_that_a_page_names_exists() -> None:
    named = set(re.findall(r"`((?:harness|e2e|judges|front|tttd|tasks|executors)/test_\w+\.py)`", text(PAGES)))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()] == []


def test_every_page_that_a_page_links_to_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def text(paths: list[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
