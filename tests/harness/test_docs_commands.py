"""Every command on a page can be typed as it stands: its options exist, its settings load; who runs it is on record."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from guidance_ttt.cli import app
from guidance_ttt.config_view import view_config
from harness.config import RunConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "results/README.md"]
VERBS: dict[str, typer.core.TyperCommand] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

RUN_BY = {
    r"^\./run\.sh$": ".ci/run",
    r"^GUIDANCE_EXECUTOR_URL=\S+ \./run\.sh$": ".ci/run",
    r"^\./test\.sh$": ".ci/run",
    r"guidance-ttt doctor": "tests/front/test_front_doctor.py",
    r"guidance-ttt status --watch": "tests/front/test_front_status.py",
    r"guidance-ttt inspect --lineage": "tests/front/test_front_inspect.py",
    r"guidance-ttt report": "tests/front/test_front_report.py",
    r"guidance-ttt export": "tests/front/test_front_export.py",
    r"^(mkdir|cp|cd|sed) ": "tests/tasks/test_tasks_add_a_task.py",
    r"harbor/length/judge\.py|^\.venv/bin/python (smoke|evaluate_solution)\.py length": (
        "tests/tasks/test_tasks_add_a_task.py"
    ),
}
"""Fenced commands that a test or a script runs, and which."""

BY_A_PERSON = {
    r"^docker ": "Docker, and GPUs for the image's content",
    r"sglang\.launch_server": "a GPU that holds gpt-oss-120b",
    r"guidance-ttt run( |$)": "the GPUs of docs/gpu.md",
    r"^export \w+=\.\.\.$": "a key",
    r"GUIDANCE_EXECUTOR=openrouter|GUIDANCE_EXECUTOR_KEY_ENV=": "a key with credit",
    r"GUIDANCE_EXECUTOR=(openai|local) (?!.*KEY_ENV)": "a language model's server",
    r"^uv pip install ": "the package index",
    r"^GUIDANCE_WANDB=1 ": "a W&B account",
}
"""Fenced commands that need what no test has, and what that is; here they are only parsed."""


@dataclass(frozen=True)
class Command:
    """One command of a page: the variables before it, and its words."""

    page: str
    environ: dict[str, str]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.environ.items()), *self.words])


def command(page: Path, line: str) -> Command | None:
    """A line as a shell would take it apart; None for one without any word."""
    words = shlex.split(line, comments=True)
    environ: dict[str, str] = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        environ[name] = value
    return Command(page.name, environ, tuple(words)) if words else None


def fenced(page: Path) -> list[Command]:
    """The commands of its `bash` blocks."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        found += [item for line in lines if (item := command(page, line)) is not None]
    return found


def inline(page: Path) -> list[Command]:
    """What stands between single back-ticks and begins like a command of this project."""
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = []
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text):
        line = " ".join(span.split())
        verb = line.split(" ", 1)[0]
        if verb in VERBS and " --" in line:
            line = f"guidance-ttt {line}"
        starts = re.match(r"([A-Z_]+=\S+ )*(\./(run|test)\.sh|(\.venv/bin/)?guidance-ttt|(\.venv/bin/)?python) ?", line)
        if starts and "..." not in line and line != "python" and (item := command(page, line)) is not None:
            found.append(item)
    return found


FENCED = [item for page in PAGES for item in fenced(page)]
INLINE = [item for page in PAGES for item in inline(page)]


@functools.cache
def help_text(*words: str) -> str:
    """What a script of this project says about its options."""
    argv = [sys.executable, *words, "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def check_options(options: list[str], text: str) -> None:
    for word in options:
        if word.startswith("-"):
            assert re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", text), f"{word} is no option"


def check_verb(words: list[str]) -> None:
    """Parse as typer does, without running anything; names in capitals stand for a value."""
    if not words:
        return
    verb, *rest = ["1" if re.fullmatch(r"[A-Z]+", word) else word for word in words]
    context = VERBS[verb].make_context(verb, list(rest))
    module = {"judge": "judges", "executor": "executors"}.get(verb)
    if module is not None:
        check_options(context.args, help_text("-m", module))


def check(item: Command) -> None:
    """Fail for a command whose script, verb or option does not exist."""
    first, *rest = item.words
    match Path(first).name:
        case "run.sh" | "test.sh" as script:
            argv = ["bash", script, *rest, "--help"]
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
        case "guidance-ttt":
            check_verb(rest)
        case "python":
            script = rest[:2] if rest[0] == "-m" else rest[:1]
            assert rest[0] == "-m" or (ROOT / rest[0]).is_file(), rest[0]
            options = [word for word in rest[len(script) :] if word.startswith("-")]
            if options:
                check_options(options, help_text(*script))
        case _:
            pytest.fail(f"{item.page}: nobody knows how to check `{item}`")


def ours(item: Command) -> bool:
    """Whether it can be parsed here; the files of the page on adding a task exist only while that page is followed."""
    known = ("run.sh", "test.sh", "guidance-ttt", "python")
    return Path(item.words[0]).name in known and "harbor/length" not in str(item)


@pytest.mark.parametrize("item", sorted({str(item): item for item in [*FENCED, *INLINE] if ours(item)}.items()))
def test_a_command_of_this_project_parses_as_it_stands(item: tuple[str, Command]) -> None:
    check(item[1])


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("./run.sh --fast", "AssertionError"),
        ("GUIDANCE_STEPS=1 ./test.sh", None),
        ("guidance-ttt inspect --tree", "NoSuchOption"),
        ("guidance-ttt judge", "MissingParameter"),
        ("guidance-ttt judge TASK --no-such-option", "AssertionError"),
        ("guidance-ttt judge TASK --port 99999", "BadParameter"),
        ("guidance-ttt watch", "KeyError"),
        ("python smoke.py TASK --judge", "AssertionError"),
        ("python no_such.py", "AssertionError"),
        ("make all", "Failed"),
    ],
)
def test_a_wrong_command_is_noticed(line: str, fault: str | None) -> None:
    item = command(PAGES[0], line)
    assert item is not None
    found = None
    try:
        check(item)
    except (Exception, pytest.fail.Exception) as error:
        found = type(error).__name__
    assert found == fault


def test_every_setting_before_a_command_loads_and_has_an_effect(tmp_path: Path) -> None:
    checked = 0
    for item in [*FENCED, *INLINE]:
        if not item.environ or not ours(item) or item.environ.get("GUIDANCE_TASK") == "length":
            continue
        keys = dict.fromkeys(("OPENROUTER_API_KEY", "OPENAI_API_KEY"), "a-key")
        environ = {**keys, **item.environ, "GUIDANCE_STATE_DIR": str(tmp_path), "GUIDANCE_REEF_TOKEN": "t"}
        RunConfig.load(environ)
        assert view_config(environ).unused == (), str(item)
        checked += 1
    assert checked > 10


def test_every_fenced_command_is_run_by_a_test_or_a_script_or_needs_a_person() -> None:
    unused = {*RUN_BY, *BY_A_PERSON}
    for item in FENCED:
        text = str(item)
        matching = [pattern for pattern in (*RUN_BY, *BY_A_PERSON) if re.search(pattern, text)]
        assert matching, f"{item.page}: no test runs `{text}`, and nothing says what it needs"
        unused -= set(matching)
    assert unused == set()
    assert [name for name in RUN_BY.values() if not (ROOT / name).is_file()] == []
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "./run.sh" in script
    assert "./test.sh" in script
    assert "GUIDANCE_EXECUTOR_URL=" in script
