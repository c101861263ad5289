"""The file tree that plays the container: a skeleton, and what a Dockerfile says that needs no image.

Who owns what matters.  `/` is sticky and its system entries belong to the harness's account, so jailed code may add
top-level directories (`/tests`, `/workspace`, ...) but cannot replace `/lib64`, `/etc` or a mount point: an earlier
command plants no loader or preload file for a later one.  All else belongs to the account that jails run as.  (Where
the harness is an ordinary user both are the same account, and jailed code can spoil its own tree, not the host.)
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from harness.jail.python import JailPython

#: Accounts inside the jail: name -> (uid, home).
USERS = {"root": (0, "/root"), "agent": (1000, "/home/agent"), "nobody": (65534, "/")}

_PROGRAM_DIRECTORIES = ("usr", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM_DIRECTORIES = (*_PROGRAM_DIRECTORIES, "etc", "proc", "dev", "jail")
_OPEN_DIRECTORIES = ("tmp", "run", "var/tmp")
_ETC = (
    *("alternatives", "ssl", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf"),
    *("mime.types", "resolv.conf", "os-release", "debian_version", "java", "fonts"),
)


@dataclass
class ImageRecipe:
    """What a Dockerfile says about the running container: its environment, directory and user."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None


def build_skeleton(root: Path, python: JailPython) -> None:
    """Lay out the system part of the tree in the empty directory `root`."""
    for name in ("etc", "proc", "dev", "jail/bin", "jail/python", "var", "root", "home/agent", *_OPEN_DIRECTORIES):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in _OPEN_DIRECTORIES:
        (root / name).chmod(0o1777)
    for name in _PROGRAM_DIRECTORIES:
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(f"usr/{name}")
        else:
            (root / name).mkdir()
    for name in _ETC:
        _copy_etc(Path("/etc") / name, root / "etc" / name)
    (root / "etc/hosts").touch()  # a mount point: its content depends on the network of each command
    passwd = [f"{name}:x:{uid}:{uid}:{name}:{home}:/bin/bash" for name, (uid, home) in USERS.items()]
    group = [f"{name}:x:{uid}:" for name, (uid, _) in USERS.items()]
    (root / "etc/passwd").write_text("\n".join(passwd) + "\n")
    (root / "etc/group").write_text("\n".join(group) + "\n")
    if python.launcher is not None:
        launcher = root / "jail/bin/python3"
        launcher.write_text(python.launcher)
        launcher.chmod(0o755)


def hand_over(root: Path, uid: int | None) -> None:
    """Give all but the system part of the tree to the account that jails run as (None: they run as this one)."""
    if uid is None:
        return
    for entry in root.iterdir():
        if entry.is_symlink() or entry.name in _SYSTEM_DIRECTORIES:
            continue
        os.chown(entry, uid, uid)
        for base, directories, files in os.walk(entry):
            for name in (*directories, *files):
                os.chown(os.path.join(base, name), uid, uid, follow_symlinks=False)


def add_mount_points(root: Path, binds: Iterable[tuple[Path, str]]) -> None:
    """Create the places for (source, target) binds, except below directories that come from the host anyway."""
    for source, target in binds:
        place = place_in(root, target)
        if place.relative_to(root).parts[0] in _PROGRAM_DIRECTORIES:
            continue
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()


def require_untouched(root: Path, targets: Iterable[str]) -> None:
    """Refuse to mount over something that jailed code put in a mount point's place.

    Bubblewrap would follow a planted link while it still sees the host, and create an empty file or directory there.

    Raises:
        RuntimeError: a part of a mount point's path is a symbolic link.
    """
    for target in targets:
        place = root
        for part in PurePosixPath(target).parts[1:]:
            place = place / part
            if place.is_symlink():
                raise RuntimeError(f"jailed code replaced {target}, so no further command is run in this environment")


def apply_dockerfile(directory: Path, root: Path, logger: logging.Logger) -> ImageRecipe:
    """Carry out WORKDIR, ENV, USER, COPY and ADD of `directory/Dockerfile`; the rest cannot be done and is logged.

    Raises:
        ValueError: a COPY names something outside `directory`, or something that is not there.
    """
    recipe = ImageRecipe()
    dockerfile = directory / "Dockerfile"
    if not dockerfile.is_file():
        return recipe
    for word, rest in _instructions(dockerfile.read_text(encoding="utf-8")):
        match word:
            case "WORKDIR":
                recipe.workdir = _absolute(recipe.workdir, rest)
                place_in(root, recipe.workdir).mkdir(parents=True, exist_ok=True)
            case "ENV":
                recipe.env.update(_env_items(rest))
            case "USER":
                recipe.user = _known_user(rest.partition(":")[0], logger)
            case "COPY" | "ADD":
                _copy(directory, root, recipe.workdir, rest, logger)
            case "RUN":
                logger.warning("no image is built here, so this Dockerfile line has no effect: RUN %.80s", rest)
            case _:
                pass
    return recipe


def place_in(root: Path, path: str) -> Path:
    """Host location of a jail path.  Only meaningful before any jailed code ran: it knows nothing about links."""
    return root / os.path.normpath(path).lstrip("/")


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word and not word.startswith("#"):
            yield word.upper(), rest.strip()


def _absolute(workdir: str, path: str) -> str:
    return os.path.normpath(PurePosixPath(workdir) / path.strip("\"'"))


def _known_user(name: str, logger: logging.Logger) -> str:
    """An account that a RUN line would have made does not exist here."""
    if name in USERS or name.isdigit():
        return name
    logger.warning("no image is built here, so the Dockerfile's user %.80s does not exist; commands run as agent", name)
    return "agent"


def _env_items(text: str) -> dict[str, str]:
    """Both forms of ENV: `A=1 B=2` and the old `A 1`."""
    first = text.split(" ", 1)[0]
    if "=" not in first:
        name, _, value = text.partition(" ")
        return {name: value.strip()}
    return dict(item.partition("=")[::2] for item in shlex.split(text))


def _copy(directory: Path, root: Path, workdir: str, text: str, logger: logging.Logger) -> None:
    words: list[str] = json.loads(text) if text.startswith("[") else shlex.split(text)
    if any(word.startswith("--from") for word in words):
        logger.warning("no image is built here, so this Dockerfile line has no effect: COPY %.80s", text)
        return
    *patterns, target = [word for word in words if not word.startswith("--")]
    destination = _absolute(workdir, target)
    if destination.split("/")[1] in _SYSTEM_DIRECTORIES:
        logger.warning("the host's files are shown there, so this Dockerfile line has no effect: COPY %.80s", text)
        return
    for pattern in patterns:
        sources = sorted(directory.glob(os.path.normpath(pattern).lstrip("/"))) if pattern != "." else [directory]
        if not sources or any(not source.resolve().is_relative_to(directory.resolve()) for source in sources):
            raise ValueError(f"{directory}/Dockerfile copies {pattern!r}, which is not in that directory")
        for source in sources:
            _copy_one(source, place_in(root, destination), into=target.endswith("/") or len(sources) > 1)


def _copy_one(source: Path, destination: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, destination, symlinks=True, dirs_exist_ok=True)
        return
    if into or destination.is_dir():
        destination = destination / source.name
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, destination)


def _copy_etc(source: Path, target: Path) -> None:
    """Copy what exists and may be read; certificates yes, private keys no."""
    if source.is_dir():
        hide = shutil.ignore_patterns("private")
        shutil.copytree(source, target, symlinks=True, ignore=hide, ignore_dangling_symlinks=True)
    elif source.is_file():
        shutil.copy2(source, target)
