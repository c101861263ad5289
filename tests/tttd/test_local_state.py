"""The backend's files: what survives a restart, what is cleaned up, and what is refused."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tttd.local.checkpoint import (
    BASE_CHECKPOINT,
    AdamState,
    CheckpointError,
    Manifest,
    read_adapter,
    read_optimizer,
    tree_checkpoint_id,
    write_checkpoint,
)
from tttd.local.leftovers import remove_leftovers
from tttd.local.settings import LocalTorchSettings
from tttd.local.state import KEPT_LOADS, StateDirectory, sync_filesystems

IDENTITY = "TinyModel, LoRA rank 4"


def open_state(path: Path, identity: str = IDENTITY) -> StateDirectory:
    return StateDirectory(path, identity=identity)


def write(folder: Path, checkpoint_id: str, identity: str = IDENTITY, value: float = 1.0) -> Path:
    tensors = {"a.lora_A.weight": torch.full((2, 2), value), "a.lora_B.weight": torch.zeros(2, 2)}
    target = folder / checkpoint_id
    write_checkpoint(
        target,
        Manifest(checkpoint_id, BASE_CHECKPOINT, identity, 3, {"train/loss": 1.5}),
        tensors,
        {"r": 4},
        AdamState(3, {"a": torch.ones(2)}, {"a": torch.full((2,), 2.0)}),
    )
    return target


def test_a_checkpoint_reads_back_as_written(tmp_path: Path) -> None:
    folder = write(tmp_path, "abc")
    assert Manifest.read(folder).metrics == {"train/loss": 1.5}
    assert torch.equal(read_adapter(folder)["a.lora_A.weight"], torch.ones(2, 2))
    optimizer = read_optimizer(folder)
    assert optimizer.steps == 3
    assert torch.equal(optimizer.second["a"], torch.full((2,), 2.0))
    assert [path.name for path in tmp_path.iterdir()] == ["abc"]


def test_writing_a_checkpoint_again_replaces_it_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, "abc", value=1.0)
    (tmp_path / "abc" / "stray").touch()
    folder = write(tmp_path, "abc", value=2.0)
    assert torch.equal(read_adapter(folder)["a.lora_A.weight"], torch.full((2, 2), 2.0))
    assert not (folder / "stray").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"checkpoint_id": "a"}', '{"format": 9}'])
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    folder = write(tmp_path, "abc")
    (folder / "tttd-checkpoint.json").write_text(content)
    with pytest.raises(CheckpointError, match="manifest"):
        Manifest.read(folder)


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "abc") / "tttd-checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        Manifest.read(path.parent)


def test_an_empty_tree_is_the_initial_adapter_and_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".gitattributes").touch()
    (tmp_path / "reef-artifact.json").touch()
    assert tree_checkpoint_id(tmp_path) == BASE_CHECKPOINT
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        tree_checkpoint_id(tmp_path)


def test_load_ids_survive_a_restart(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    first, second = state.loads.mint(BASE_CHECKPOINT), state.loads.mint("abc")
    state.loads.publish(second)
    state.close()
    again = open_state(tmp_path)
    assert again.loads.published == second
    assert again.loads.checkpoint_of(first) == BASE_CHECKPOINT
    assert again.loads.latest("abc") == second
    assert again.loads.latest("unknown") is None
    assert again.loads.mint("abc") not in (first, second)


def test_an_unknown_load_id_is_refused(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    load = state.loads.mint(BASE_CHECKPOINT)
    for wrong in ("", "x:0", load + "1", load.replace(":0", ":-1")):
        with pytest.raises(KeyError):
            state.loads.checkpoint_of(wrong)


def test_one_service_owns_the_folder(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    with pytest.raises(ValueError, match="in use by another"):
        open_state(tmp_path)
    state.close()
    open_state(tmp_path).close()


def test_a_folder_of_another_model_is_refused_with_both_names(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    state.loads.mint(BASE_CHECKPOINT)
    state.close()
    with pytest.raises(ValueError, match=rf"made for {IDENTITY}.*runs Other"):
        open_state(tmp_path, "Other")


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 1, "identity": "TinyModel, LoRA rank 4"}'])
def test_damaged_load_ids_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "loads.json").write_text(content)
    with pytest.raises(ValueError, match="damaged"):
        open_state(tmp_path)


def test_what_a_killed_process_left_is_removed_at_start(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    folder = tmp_path / "checkpoints"
    write(folder, "served")
    state.loads.publish(state.loads.mint("served"))
    write(folder, "neverloaded")
    (folder / ".half.tmp").mkdir()
    (folder / "nomanifest").mkdir()
    (tmp_path / ".loads.json.x.tmp").touch()
    state.close()
    again = open_state(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["served"]
    assert not (tmp_path / ".loads.json.x.tmp").exists()
    assert again.loads.published is not None


def test_only_the_newest_checkpoints_and_the_published_one_are_kept(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    names = [f"c{number}" for number in range(KEPT_LOADS + 3)]
    for name in names:
        write(tmp_path / "checkpoints", name)
        load = state.loads.mint(name)
        if name == "c1":
            state.loads.publish(load)
    write(tmp_path / "checkpoints", "trainedbutnotloaded")
    state.prune()
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert kept == {"c1", *names[-KEPT_LOADS:], "trainedbutnotloaded"}
    with pytest.raises(CheckpointError, match="c0"):
        state.checkpoint("c0")
    assert state.checkpoint(BASE_CHECKPOINT) is None


def test_a_release_is_copied_back_without_git_files(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    tree = write(tmp_path, "abc")
    (tree / ".git").mkdir()
    (tree / ".gitattributes").touch()
    (tree / "reef-artifact.json").touch()
    assert state.import_tree(tree) == "abc"
    folder = state.checkpoint("abc")
    assert folder is not None
    assert torch.equal(read_adapter(folder)["a.lora_A.weight"], torch.ones(2, 2))
    assert {path.name for path in folder.iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "optimizer.safetensors",
        "tttd-checkpoint.json",
    }
    shutil.rmtree(tree)
    assert state.has_checkpoint("abc")


def test_a_release_is_on_the_disk_before_it_is_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("tttd.local.state.sync_filesystems", synced.extend)
    repository = tmp_path / "artifacts.git"
    state = StateDirectory(tmp_path / "state", identity=IDENTITY, repositories=[repository])
    for _ in range(2):
        synced.clear()
        state.import_tree(write(tmp_path, "abc"))
        assert synced == [state.root, repository]


def test_file_systems_are_synced_once_each_and_missing_folders_are_fine(tmp_path: Path) -> None:
    sync_filesystems([tmp_path, tmp_path / "missing", Path("/dev/shm")])


@contextmanager
def full_disk(left_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond `left_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_load_ids_that_cannot_be_written_are_not_used_and_the_file_stays_whole(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    first = state.loads.mint(BASE_CHECKPOINT)
    state.loads.publish(first)
    before = (tmp_path / "loads.json").read_bytes()
    with full_disk(16):
        with pytest.raises(OSError, match="File too large"):
            state.loads.mint("abc")
        assert state.loads.latest("abc") is None
    second = state.loads.mint("abc")
    assert second.endswith(":1")
    with full_disk(16), pytest.raises(OSError, match="File too large"):
        state.loads.publish(second)
    assert state.loads.published == first
    assert (tmp_path / "loads.json").read_bytes() != before
    state.loads.publish(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoints", "loads.json"]
    state.close()
    assert open_state(tmp_path).loads.published == second


@pytest.mark.parametrize("left_bytes", [16, 200])
def test_a_checkpoint_that_does_not_fit_on_the_disk_is_not_there_and_can_be_written_later(
    tmp_path: Path, left_bytes: int
) -> None:
    state = open_state(tmp_path)
    folder = tmp_path / "checkpoints"
    with full_disk(left_bytes), pytest.raises(Exception, match="File too large"):
        write(folder, "abc")
    assert not state.has_checkpoint("abc")
    write(folder, "abc")
    assert state.has_checkpoint("abc")
    assert [path.name for path in folder.iterdir()] == ["abc"]


def test_a_release_of_another_model_is_refused(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match="made for Other"):
        state.import_tree(write(tmp_path, "abc", identity="Other"))
    assert not state.has_checkpoint("abc")


@pytest.mark.parametrize("name", ["../x", ".", "", "a/b"])
def test_a_checkpoint_id_is_never_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError):
        open_state(tmp_path).checkpoint_path(name)


def test_what_a_killed_reef_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    release = "0123456789abcdef0123456789abcdef01234567"
    folders = [tmp_path / name for name in ("artifacts.git", "artifact-work", "artifact-cache", "missing")]
    left = [
        "artifacts.git/refs/reef/head.lock",
        "artifacts.git/objects/ab/tmp_obj_x1",
        "artifacts.git/objects/tmp_objdir-incoming-x2/pack/tmp_pack_x3",
        ".artifacts.git-x4/HEAD",
        "artifact-work/name/repository/.git/config",
        "artifact-cache/staged/x5/x6/adapter.bin",
        f"artifact-cache/.{release}-x7/artifact/adapter.bin",
    ]
    kept = [
        "artifacts.git/refs/reef/head",
        "artifacts.git/objects/ab/cdef",
        "artifact-work/other/repository/.git/HEAD",
        f"artifact-cache/{release}/adapter.bin",
        "artifact-cache/.gitattributes",
    ]
    for name in (*left, *kept):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "artifact-work/other/repository/.git/config").write_text('[remote "origin"]\n')
    assert remove_leftovers(folders)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(
        [*kept, "artifact-work/other/repository/.git/config"]
    )
    assert remove_leftovers(folders) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state_dir", " "),
        ("lora_rank", 0),
        ("lora_alpha", 0),
        ("learning_rate", -1e-9),
        ("learning_rate", float("nan")),
        ("kl_coef", 0.0),
        ("kl_coef", float("inf")),
        ("seed", -1),
        ("device", "tpu"),
        ("context_length", -1),
        ("max_batch_size", 0),
        ("max_cache_tokens", 0),
        ("train_token_budget", 0),
        ("inference_timeout_s", 0.0),
        ("max_staleness", 1),
    ],
)
def test_a_setting_out_of_range_is_named(field: str, value: object) -> None:
    values: dict[str, object] = {"state_dir": "x", field: value}
    with pytest.raises(ValueError, match=f"{field.replace('_', '-')}|{field.replace('_timeout', '.timeout')[:9]}"):
        LocalTorchSettings(**values)  # type: ignore[arg-type]


def test_a_learning_rate_of_zero_is_a_frozen_control_run() -> None:
    assert LocalTorchSettings("x", learning_rate=0.0).learning_rate == 0.0
