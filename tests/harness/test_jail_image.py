"""The tree that plays the container, and the parts of a Dockerfile that shape it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harness.jail.command import Bind, Jail, JailCommand, bwrap_options, launch_argv, options_file
from harness.jail.image import ImageRecipe, apply_dockerfile, build_skeleton, require_untouched
from harness.jail.process import CappedText
from harness.jail.python import JailPython, choose_python
from harness.jail.tools import JailTools

LOG = logging.getLogger(__name__)
TOOLS = JailTools("/usr/bin/bwrap", "/usr/bin/setpriv", "/usr/bin/taskset", "/usr/bin/unshare", 65534)


def _apply(tmp_path: Path, text: str) -> tuple[Path, ImageRecipe]:
    root, task = tmp_path / "root", tmp_path / "task"
    for place in (root, task / "sub"):
        place.mkdir(parents=True)
    (task / "a.txt").write_text("a")
    (task / "b.txt").write_text("b")
    (task / "sub" / "c.txt").write_text("c")
    (tmp_path / "outside.txt").write_text("no")
    (task / "Dockerfile").write_text(text)
    return root, apply_dockerfile(task, root, LOG)


@pytest.mark.parametrize("source", ["../outside.txt", "/../outside.txt", "missing.txt"])
def test_copying_from_outside_the_task_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ValueError, match="which is not in that directory"):
        _apply(tmp_path, f"COPY {source} /app/\n")


def test_copying_to_a_place_outside_stays_inside(tmp_path: Path) -> None:
    root, _ = _apply(tmp_path, "COPY a.txt /app/../../../x.txt\n")
    assert (root / "x.txt").read_text() == "a"


def test_lines_that_need_an_image_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _apply(tmp_path, "RUN apt-get install -y x \\\n  y\nCOPY --from=build /x /y\nCOPY a.txt /usr/local/bin/a\n")
    messages = [record.getMessage() for record in caplog.records]
    assert [message.rpartition("effect: ")[2].split()[0] for message in messages] == ["RUN", "COPY", "COPY"]


def test_a_dockerfile_sets_directory_environment_user_and_files(tmp_path: Path) -> None:
    text = (
        "# comment\nFROM debian AS base\nWORKDIR /app\nWORKDIR sub\nENV A=1 B='two words'\nENV OLD style value\n"
        'USER agent:agent\nCOPY a.txt .\ncopy ["b.txt", "/data/new.txt"]\nADD *.txt /all/\nCOPY sub /tree\n'
    )
    root, recipe = _apply(tmp_path, text)
    assert vars(recipe) == {
        "env": {"A": "1", "B": "two words", "OLD": "style value"},
        "workdir": "/app/sub",
        "user": "agent",
    }
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.txt"))
    assert files == ["all/a.txt", "all/b.txt", "app/sub/a.txt", "data/new.txt", "tree/c.txt"]


def test_a_user_that_only_an_image_would_have_becomes_agent(tmp_path: Path) -> None:
    _, recipe = _apply(tmp_path, "RUN useradd coder\nUSER coder\n")
    assert recipe.user == "agent"


def test_a_task_without_a_dockerfile_starts_at_the_top(tmp_path: Path) -> None:
    assert apply_dockerfile(tmp_path, tmp_path, LOG).workdir == "/"


def test_the_skeleton_holds_no_private_keys_and_only_its_own_accounts(tmp_path: Path) -> None:
    build_skeleton(tmp_path, JailPython("/usr/bin/python3"))
    assert not (tmp_path / "etc/ssl/private").exists()
    assert not (tmp_path / "etc/shadow").exists()
    assert [line.split(":")[0] for line in (tmp_path / "etc/passwd").read_text().splitlines()] == [
        "root",
        "agent",
        "nobody",
    ]


def test_a_link_in_a_mount_points_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").symlink_to("/tmp")
    with pytest.raises(RuntimeError, match="jailed code replaced /logs/verifier"):
        require_untouched(tmp_path, ["/logs/verifier"])


def test_an_unknown_python_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="may be 'auto', 'system' or 'bundled'"):
        choose_python("newest")  # type: ignore[arg-type]


def test_options_with_a_zero_byte_are_refused() -> None:
    with pytest.raises(ValueError, match="NUL byte"), options_file(["--setenv", "A", "x\0--bind\0/\0/"]):
        pass


def test_values_never_stand_on_the_command_line_and_hidden_sources_are_staged(tmp_path: Path) -> None:
    hidden, point = tmp_path / "hidden", tmp_path / "point"
    jail = Jail(TOOLS, tmp_path, binds=(Bind(hidden, "/data"),), staged={hidden: point}, cpus=(1,))
    command = JailCommand(("/bin/true",), env={"KEY": "secret"})
    argv = launch_argv(jail, command, options_fd=7, status_fd=9)
    options = bwrap_options(jail, command)
    assert "secret" not in argv
    assert argv[0] == "/usr/bin/unshare"
    assert argv[argv.index("stage") : argv.index("stage") + 3] == ["stage", str(hidden), str(point)]
    assert argv.index("/usr/bin/setpriv") < argv.index("/usr/bin/bwrap")
    assert options[options.index("/data") - 1] == str(point)
    assert {"--unshare-net", "--unshare-pid", "--clearenv", "--die-with-parent"} <= set(options)
    assert options[options.index("--cap-drop") + 1] == "ALL"


async def test_characters_cut_by_a_chunk_border_arrive_whole_at_the_listener() -> None:
    heard: list[str] = []

    async def listen(text: str) -> None:
        heard.append(text)

    sink = CappedText(100, listen)
    for byte in "né".encode():
        await sink.write(bytes([byte]))
    assert heard == ["n", "é"]
    assert sink.text() == "né"
