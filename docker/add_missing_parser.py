"""Add the one function that megatron-bridge 0.4.2 imports and an older Megatron-LM does not have.

Run once while the image is built, with Megatron-LM's source tree on `PYTHONPATH`.  The function describes the layers of
hybrid (state-space) models.  The models trained here have none, so what is added refuses to be called.
"""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

NAME = "parse_hybrid_pattern"
ADDED = f'''

def {NAME}(pattern, *arguments, **named):
    raise NotImplementedError(f"this Megatron-LM does not know hybrid layer patterns such as {{pattern!r}}")
'''


def importing_modules(package: Path) -> set[str]:
    """The modules from which the package's files import the function."""
    found = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == NAME for alias in node.names):
                found.add(node.module)
    return {name for name in found if not name.startswith("megatron.bridge")}


def add_where_missing(module: str) -> bool:
    """Append the function to a module's file unless it is defined there; True when it was added."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"megatron-bridge imports {NAME} from {module}, which is not installed")
    path = Path(spec.origin)
    source = path.read_text(encoding="utf-8")
    names = {getattr(node, "name", None) for node in ast.walk(ast.parse(source))}  # functions and imported names
    if NAME in names:
        return False
    path.write_text(source + ADDED, encoding="utf-8")
    return True


def main() -> int:
    """Look at the installed megatron-bridge and say what was done."""
    spec = find_spec("megatron.bridge")
    if spec is None or spec.origin is None:
        raise SystemExit("megatron.bridge is not installed")
    for module in sorted(importing_modules(Path(spec.origin).parent)):
        print(f"{module}: {'added' if add_where_missing(module) else 'has'} {NAME}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
