"""The docs name files and settings; each of them has to exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
READ_BY_SCRIPTS = {"GUIDANCE_PYTHON", "GUIDANCE_TORCH_INDEX"}


def test_every_test_file_that_a_page_names_exists() -> None:
    named = set(re.findall(r"`((?:harness|e2e|judges|front|tttd|tasks|executors)/test_\w+\.py)`", text(PAGES)))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()] == []


def test_every_page_that_a_page_links_to_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_setting_of_the_configuration_page_is_read_somewhere() -> None:
    rows = re.findall(r"^\| (`GUIDANCE_[^|]*) \|", (ROOT / "docs/configuration.md").read_text(encoding="utf-8"), re.M)
    named = {name for row in rows for name in re.findall(r"`(GUIDANCE_\w+)`", row)}
    assert len(named) > 20
    sources = text([*(ROOT / "harness").glob("*.py"), *(ROOT / "guidance_ttt").glob("*.py")])
    kinds = {f"GUIDANCE_{kind}_CONCURRENCY" for kind in ("POLICY", "EXECUTOR", "JUDGE")}
    assert {name for name in named - READ_BY_SCRIPTS - kinds if f'"{name}"' not in sources} == set()
    scripts = text([ROOT / "scripts/setup.sh", ROOT / "scripts/lib.sh"])
    assert {name for name in READ_BY_SCRIPTS if name not in scripts} == set()


def text(paths: list[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
