"""The troubleshooting page quotes messages; each of them must exist in the sources as it is quoted."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
WINGS = ("guidance_ttt", "harness", "judges", "executors", "tttd")
GAP = "\0"


def quoted_messages() -> list[str]:
    """The first column of every table: one message in back-ticks."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@cache
def templates() -> tuple[str, ...]:
    """Every string of the sources, with a mark where a value is filled in; scripts as they are."""
    found = []
    for wing in WINGS:
        for path in sorted((ROOT / wing).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [text for node in ast.walk(tree) if (text := template(node)) is not None]
    scripts = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / "run.sh"]
    found += [line for path in scripts for line in path.read_text(encoding="utf-8").splitlines()]
    return tuple(found)


def template(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None or right is None else left + right
    return None


def exists(message: str) -> bool:
    """Whether the fixed parts of a message stand in this order in one string of the sources."""
    parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in templates())


def test_the_page_quotes_many_messages_and_explains_each() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(quoted_messages()) == len(rows) > 40
    assert all(len([cell for cell in row.strip("|").split(" | ") if cell.strip()]) == 3 for row in rows)


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_is_one_of_the_programs_own(message: str) -> None:
    assert max(len(part.strip()) for part in message.split("...")) >= 10, "too little to recognise it by"
    assert exists(message), f"no source says: {message}"


def test_an_invented_message_would_be_found() -> None:
    assert not exists("port ..., which nobody needs, is held by ...")
    assert not exists("is held by ... port ..., which ... needs")
