"""The system programs: git and git-lfs (Reef's releases), g++ and bubblewrap (the judge), Eigen (one judge)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guidance_ttt.doctor.model import Context, Finding, failure, ok
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.wings import PROJECT_ROOT

TOOLS = "tools"


@dataclass(frozen=True)
class Tool:
    """A program: how to ask for its version, its Debian package, what it is for, and for which tasks (none: all)."""

    name: str
    argv: tuple[str, ...]
    package: str
    purpose: str
    stdin: str = ""
    tasks: tuple[str, ...] = ()


TABLE = (
    Tool("git", ("git", "--version"), "git", "Reef keeps releases of the adapter in it"),
    Tool("git-lfs", ("git", "lfs", "version"), "git-lfs", "Reef keeps the adapter's files in it"),
    Tool("g++", ("g++", "--version"), "g++", "the judge compiles programs with it"),
    Tool("bwrap", ("bwrap", "--version"), "bubblewrap", "programs and trials are jailed with it"),
    Tool(
        "Eigen",
        ("g++", "-E", "-x", "c++", "-", "-o", "/dev/null"),
        "libeigen3-dev",
        "the lasso judge's programs include it",
        stdin="#include <eigen3/Eigen/Core>\n",
        tasks=("lasso_path",),
    ),
)


def check_tools(context: Context) -> Iterator[Finding]:
    """Each program that the task needs, by asking for its version."""
    task = context.environ.get("GUIDANCE_TASK", "").strip() if context.config is None else context.config.task
    for tool in TABLE:
        if tool.tasks and task not in tool.tasks:
            continue
        ran = context.probes.run(tool.argv, stdin=tool.stdin)
        if ran is None or ran.code != 0:
            cure = install_command(tool.package, context.probes)
            yield failure(TOOLS, f"{tool.name} is missing or does not start; {tool.purpose}", f"install it: {cure}")
        else:
            yield ok(TOOLS, f"{tool.name}: {ran.first_line or 'found'}")


def install_command(package: str, probes: Probes, root: Path = PROJECT_ROOT) -> str:
    """The one command that installs a Debian-named package on this system, as the set-up script would print it."""
    script = 'source "$1" && package_command "$2"'
    ran = probes.run(("bash", "-c", script, "bash", str(root / "scripts" / "lib.sh"), package))
    return ran.first_line if ran is not None and ran.code == 0 and ran.first_line else f"apt-get install -y {package}"
