"""Equal copies of a release become one file; nothing else is touched, and Reef still finds everything."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from reef.artifact.artifact import Artifact, ArtifactRef
from reef.artifact.git_lfs import GitLFSRepositoryBackend

from tttd.local import shared_files
from tttd.local.shared_files import SMALLEST_BYTES, SharedFiles

CHECKPOINT = "c" * 64
RELEASE = "e" * 40


def content(seed: int, size: int = SMALLEST_BYTES) -> bytes:
    return random.Random(seed).randbytes(size)


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def lfs_object(repository: Path, data: bytes) -> Path:
    name = hashlib.sha256(data).hexdigest()
    return put(repository / "lfs" / "objects" / name[:2] / name[2:4] / name, data)


def test_copies_of_an_object_become_links_to_it(tmp_path: Path) -> None:
    data = content(1)
    original = lfs_object(tmp_path / "artifacts.git", data)
    cached = put(tmp_path / "cache" / RELEASE / "adapter.safetensors", data)
    own = put(tmp_path / "checkpoints" / CHECKPOINT / "adapter.safetensors", data)
    files = SharedFiles([tmp_path / "artifacts.git", tmp_path / "cache", tmp_path / "checkpoints"])
    assert files.link_copies() == 2 * SMALLEST_BYTES
    assert original.stat().st_ino == cached.stat().st_ino == own.stat().st_ino
    assert cached.read_bytes() == data
    assert files.link_copies() == 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [RELEASE]
    shutil.rmtree(tmp_path / "checkpoints" / CHECKPOINT)
    assert cached.read_bytes() == data


def test_objects_of_a_work_clone_count_too(tmp_path: Path) -> None:
    data = content(1)
    original = lfs_object(tmp_path / "work" / "scenario" / "repository" / ".git", data)
    cached = put(tmp_path / "cache" / RELEASE / "adapter.safetensors", data)
    assert SharedFiles([tmp_path / "work", tmp_path / "cache"]).link_copies() == SMALLEST_BYTES
    assert cached.stat().st_ino == original.stat().st_ino


def test_other_content_small_files_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    data = content(1)
    lfs_object(tmp_path / "artifacts.git", data)
    lfs_object(tmp_path / "artifacts.git", b"small")
    untouched = [
        put(tmp_path / "cache" / RELEASE / "changed.safetensors", content(2)),
        put(tmp_path / "cache" / RELEASE / "small.safetensors", b"small"),
        put(tmp_path / "cache" / "something" / "adapter.safetensors", data),
    ]
    (tmp_path / "cache" / RELEASE / "link.safetensors").symlink_to(untouched[2])
    files = SharedFiles([tmp_path / "artifacts.git", tmp_path / "cache", tmp_path / "missing"])
    assert files.link_copies() == 0
    assert [path.stat().st_nlink for path in untouched] == [1, 1, 1]
    assert (tmp_path / "cache" / RELEASE / "link.safetensors").is_symlink()


def test_a_file_that_cannot_be_linked_stays_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = content(1)
    lfs_object(tmp_path / "artifacts.git", data)
    cached = put(tmp_path / "cache" / RELEASE / "adapter.safetensors", data)

    def refuse(_source: Path, _target: Path) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(shared_files.os, "link", refuse)
    files = SharedFiles([tmp_path / "artifacts.git", tmp_path / "cache"])
    assert files.link_copies() == 0
    assert cached.read_bytes() == data
    assert list((tmp_path / "cache").iterdir()) == [tmp_path / "cache" / RELEASE]


def allocated(*folders: Path) -> int:
    """Bytes on the disk, every file once however many names it has."""
    files = {path.stat().st_ino: path.stat() for folder in folders for path in folder.rglob("*") if path.is_file()}
    return sum(status.st_size for status in files.values())


@pytest.mark.slow
def test_reefs_own_repository_serves_linked_releases_and_fetches_them_anew(tmp_path: Path) -> None:
    repository, work, cache = tmp_path / "artifacts.git", tmp_path / "work" / "s", tmp_path / "cache"
    backend = GitLFSRepositoryBackend("s", repository, work_dir=work, cache_dir=cache)
    files = SharedFiles([repository, tmp_path / "work", cache, tmp_path / "checkpoints"])
    release, stored = backend.fork(), {}
    before = allocated(tmp_path)
    for step in range(3):
        data = content(step, 2 * SMALLEST_BYTES)
        own = put(tmp_path / "checkpoints" / f"{step:064x}" / "optimizer.safetensors", data)
        staged = put(tmp_path / "staged" / str(step) / "optimizer.safetensors", data).parent
        artifact = Artifact(ArtifactRef(f"c{step}", f"local:{step}", None), None, local_path=staged, metadata={})
        release = backend.publish(artifact, expected_parent=release)
        shutil.rmtree(staged)
        assert files.link_copies() == 2 * len(data)
        stored[release.release_id] = (release, data)
        assert own.stat().st_nlink == 4  # checkpoint, cache, work clone, repository
    # One file per step, and what git itself needs for its commits.
    assert allocated(tmp_path) - before < 3 * (2 * SMALLEST_BYTES + 100_000)
    subprocess.run(["git", "lfs", "fsck", "--objects"], cwd=work / "repository", check=True, capture_output=True)
    for ref, data in stored.values():
        tree = backend.materialize(ref).local_path
        assert tree is not None
        assert (tree / "optimizer.safetensors").read_bytes() == data
    first, data = next(iter(stored.values()))
    shutil.rmtree(cache / first.release_id)
    tree = backend.materialize(first).local_path
    assert tree is not None
    assert (tree / "optimizer.safetensors").read_bytes() == data
    assert files.link_copies() == len(data)
