"""Files in and out of the jail, as tar streams that a tar *inside* the jail writes or reads.

A link that jailed code planted therefore resolves in the jail, never on the host.  What comes out is not trusted: only
plain files and directories are recreated, and none of them outside the target.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO


def pack(source: Path, name: str) -> IO[bytes]:
    """A rewound temporary file with a tar of one host file under `name`; of a directory's contents when that is "."."""
    spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    entries = [(source, name)] if name != "." else [(entry, entry.name) for entry in sorted(source.iterdir())]
    try:
        with tarfile.open(fileobj=spool, mode="w") as tar:
            for path, stored_as in entries:
                tar.add(path, arcname=stored_as)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool


def unpack_command(target_dir: str) -> list[str]:
    """The jail command that reads such a tar from its standard input into `target_dir`."""
    script = 'mkdir -p -- "$1" && exec /usr/bin/tar -x --no-same-owner -f - -C "$1"'
    return ["/bin/bash", "-c", script, "bash", target_dir]


def pack_command(
    directory: str, names: Sequence[str], *, follow: bool = False, exclude: Sequence[str] = ()
) -> list[str]:
    """The jail command that writes a tar of `names` below `directory` to its standard output.

    `follow` replaces links by what they lead to (in the jail).
    """
    options = ["--create", "--file=-", "--format=pax", "--hard-dereference", *(["--dereference"] if follow else [])]
    options += [f"--exclude={pattern}" for pattern in exclude]
    return ["/usr/bin/tar", *options, f"--directory={directory}", "--", *names]


def unpack_tree(spool: IO[bytes], target: Path) -> list[str]:
    """Recreate plain files and directories below `target`; returns the names that were left out (links, devices).

    Raises:
        RuntimeError: the stream is not a tar, or a name in it leads outside `target`.
    """
    left_out: list[str] = []
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=spool, mode="r:") as tar:
            for member in tar:
                place = target.joinpath(*_safe_parts(member.name))
                if member.isdir():
                    _clear_way(place, keep_directory=True)
                    place.mkdir(parents=True, exist_ok=True)
                elif member.isreg() and not member.issparse():
                    _write_member(tar, member, place)
                else:
                    left_out.append(member.name)
    except tarfile.TarError as error:
        raise RuntimeError(f"the jail sent an unreadable archive: {error}") from error
    return left_out


def unpack_file(spool: IO[bytes], name: str, target: Path) -> None:
    """Store the one file of a tar at `target`.

    Raises:
        RuntimeError: the tar holds no plain file of that name.
    """
    try:
        with tarfile.open(fileobj=spool, mode="r:") as tar:
            member = tar.next()
            if member is None or not member.isreg() or member.issparse() or member.name != name:
                raise RuntimeError(f"{name} is not a plain file in the jail")
            _write_member(tar, member, target)
    except tarfile.TarError as error:
        raise RuntimeError(f"the jail sent an unreadable archive: {error}") from error


def _safe_parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise RuntimeError(f"the jail sent an archive with the name {name!r}, which leads outside its directory")
    return path.parts


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    _clear_way(place, keep_directory=False)
    source = tar.extractfile(member)
    if source is None:
        raise RuntimeError(f"{member.name} has no content in the jail's archive")
    # A new file each time (O_EXCL): never writes through whatever lay there before.
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with source, os.fdopen(descriptor, "wb") as sink:
        shutil.copyfileobj(source, sink)
        os.fchmod(descriptor, 0o600 | (member.mode & 0o755))


def _clear_way(place: Path, *, keep_directory: bool) -> None:
    """Remove what an earlier transfer left at this name when it is of the other kind (downloads overwrite)."""
    if place.is_dir() and not place.is_symlink():
        if not keep_directory:
            raise RuntimeError(f"{place} is a directory, the jail now has a file of that name")
    else:
        place.unlink(missing_ok=True)
