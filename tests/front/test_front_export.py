"""`guidance-ttt export`: what leaves a state directory is bit-exact, complete, and replaces nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from front_state import searched
from support.tiny_model import build_tiny_model

from guidance_ttt import export as export_module
from guidance_ttt.archive_view import ArchiveView
from guidance_ttt.export import ADAPTER_FILES, export, served_adapter
from harness.errors import ConfigError, StateCorrupt, StateError, StateWriteFailed
from harness.grid import Grid
from harness.state import LibraryEntry
from harness.storage import read_json_object, write_json

ODD_PROGRAM = 'int main() { puts("é\u2028\U0001f600\\r\\n"); }\r\n\t// \x1b[31m no line feed at the end'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    searched(folder, steps=2, grid=Grid(2, 3))
    path = folder / "guidance-run" / "committed-library.json"
    archive = read_json_object(path)
    archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]["solution"] = ODD_PROGRAM
    write_json(path, archive)
    return folder


@pytest.fixture
def state(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "state"))


def checkpoint(state: Path, name: str, content: bytes = b"weights") -> Path:
    """A checkpoint folder as the local engine leaves it, with stand-ins for the tensors."""
    folder = state / "backend" / "checkpoints" / name
    folder.mkdir(parents=True)
    for file in (*ADAPTER_FILES, "optimizer.safetensors", "tttd-checkpoint.json"):
        (folder / file).write_bytes(content + file.encode())
    return folder


def publish(state: Path, *checkpoints: str, published: int | None = -1) -> None:
    """The engine's record of its loads."""
    number = len(checkpoints) - 1 if published == -1 else published
    write_json(
        state / "backend" / "loads.json",
        {
            "format": 1,
            "identity": "tiny",
            "incarnation": "abc",
            "checkpoints": list(checkpoints),
            "published": None if number is None else f"abc:{number}",
        },
    )


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# --- program and archive ----------------------------------------------------------------------------------------------


def test_the_program_has_exactly_the_bytes_of_the_archives_best(state: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "best.cpp"
    (done,) = export(state, program=target)
    assert target.read_bytes() == ODD_PROGRAM.encode()
    assert done.sha256 == hashlib.sha256(ODD_PROGRAM.encode()).hexdigest()
    assert ArchiveView.load(state).best.id in done.detail


def test_another_candidates_program_is_exported_by_its_name(state: Path, tmp_path: Path) -> None:
    export(state, program=tmp_path / "seed.cpp", entry="seed")
    assert (tmp_path / "seed.cpp").read_text() == ArchiveView.load(state).find("seed").solution
    with pytest.raises(ConfigError, match="begins with 'zzz'"):
        export(state, program=tmp_path / "other.cpp", entry="zzz")
    assert not (tmp_path / "other.cpp").exists()


def test_the_archive_is_one_entry_a_line_and_comes_back_bit_for_bit(state: Path, tmp_path: Path) -> None:
    path = state / "guidance-run" / "committed-library.json"
    archive = read_json_object(path)
    some = next(iter(archive["entries"]))
    archive["entries"][some]["solution"] = "lone surrogate \ud800, \x7f and \u2028"
    write_json(path, archive)
    target = tmp_path / "archive.jsonl"
    (done,) = export(state, archive=target)
    assert done.sha256 == hashlib.sha256(target.read_bytes()).hexdigest()
    lines = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert len(lines) == len(archive["entries"])
    for line in lines:
        extra = {name: line.pop(name) for name in ("node_id", "visits", "best")}
        assert LibraryEntry.from_dict(line).to_dict() == archive["entries"][line["id"]]
        if extra["node_id"] is not None:
            assert archive["nodes"][extra["node_id"]]["entry_id"] == line["id"]
            assert extra["visits"] == archive["puct_n"].get(extra["node_id"], 0)
        assert extra["best"] == (extra["node_id"] == archive["best_node_id"])
    assert [line["timestep"] for line in lines] == sorted(line["timestep"] for line in lines)


def test_nothing_that_exists_is_replaced_and_nothing_else_is_written_then(state: Path, tmp_path: Path) -> None:
    publish(state, "base", "one")
    checkpoint(state, "one")
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").write_text("mine")
    fresh = tmp_path / "fresh.cpp"
    for targets in ({"archive": there / "file"}, {"adapter": there}, {"adapter": there / "file"}):
        with pytest.raises(ConfigError, match="exists and is not replaced; remove it or choose another name"):
            export(state, program=fresh, **targets)
    assert not fresh.exists()
    assert (there / "file").read_text() == "mine"
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="exists"):
        export(state, program=tmp_path / "dangling")


def test_asking_for_nothing_names_the_choices(state: Path) -> None:
    with pytest.raises(ConfigError, match="give --program FILE, --adapter DIR or --archive"):
        export(state)


def test_a_program_that_utf8_cannot_hold_is_refused_rather_than_altered(state: Path, tmp_path: Path) -> None:
    path = state / "guidance-run" / "committed-library.json"
    archive = read_json_object(path)
    archive["entries"][archive["nodes"][archive["best_node_id"]]["entry_id"]]["solution"] = "\ud800"
    write_json(path, archive)
    with pytest.raises(StateWriteFailed, match="not valid Unicode"):
        export(state, program=tmp_path / "best.cpp")
    assert not (tmp_path / "best.cpp").exists()


def test_a_target_that_cannot_be_written_is_one_clear_error(state: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateWriteFailed, match=r"cannot write .*best\.cpp"):
        export(state, program=tmp_path / "file" / "best.cpp")
    publish(state, "base", "one")
    checkpoint(state, "one")
    with pytest.raises(StateWriteFailed, match=r"cannot write .*adapter"):
        export(state, adapter=tmp_path / "file" / "adapter")


# --- the adapter ------------------------------------------------------------------------------------------------------


def test_the_served_adapter_is_copied_bit_for_bit_without_the_optimizer(state: Path, tmp_path: Path) -> None:
    checkpoint(state, "old", b"old")
    source = checkpoint(state, "served", b"new")
    checkpoint(state, "candidate", b"not served yet")
    publish(state, "base", "old", "served", "candidate", published=2)
    target = tmp_path / "deep" / "adapter"
    (done,) = export(state, adapter=target)
    assert sorted(path.name for path in target.iterdir()) == sorted([*ADAPTER_FILES, "tttd-checkpoint.json"])
    for path in target.iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()
    assert done.sha256 == hashlib.sha256((source / ADAPTER_FILES[1]).read_bytes()).hexdigest()
    assert "served" in done.detail
    assert left_over(target.parent) == []


def test_an_empty_folder_may_be_the_target(state: Path, tmp_path: Path) -> None:
    publish(state, "base", "one")
    checkpoint(state, "one")
    (tmp_path / "adapter").mkdir()
    export(state, adapter=tmp_path / "adapter")
    assert (tmp_path / "adapter" / ADAPTER_FILES[0]).is_file()


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ({"checkpoints": ["base"], "published": "abc:0"}, StateError, "serves the untrained policy"),
        ({"checkpoints": ["base"], "published": None}, StateError, "serves the untrained policy"),
        ({"checkpoints": ["base"], "published": "abc:7"}, StateCorrupt, "names the load 'abc:7'"),
        ({"checkpoints": ["base"], "published": "zzz:0"}, StateCorrupt, "names the load 'zzz:0'"),
        ({"checkpoints": ["../x"], "published": "abc:0"}, StateCorrupt, "no checkpoint id"),
        ({"checkpoints": ["gone"], "published": "abc:0"}, StateCorrupt, "holds no adapter_config.json"),
    ],
)
def test_an_adapter_that_is_not_there_is_said_so(
    state: Path, tmp_path: Path, record: dict[str, Any], error: type[Exception], message: str
) -> None:
    write_json(state / "backend" / "loads.json", {"format": 1, "incarnation": "abc", **record})
    with pytest.raises(error, match=message):
        export(state, adapter=tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_without_any_engine_state_there_is_no_adapter(state: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="holds no trained adapter"):
        export(state, adapter=tmp_path / "adapter")


def test_a_checkpoint_that_a_live_run_removes_meanwhile_gives_way_to_the_newer_one(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = checkpoint(state, "old", b"old")
    checkpoint(state, "new", b"new")
    publish(state, "base", "old")
    copy = export_module.copy_file

    def copy_while_training_goes_on(source: Path, target: Path) -> None:
        if old.exists():
            shutil.rmtree(old)
            publish(state, "base", "old", "new")
        copy(source, target)

    monkeypatch.setattr(export_module, "copy_file", copy_while_training_goes_on)
    export(state, adapter=tmp_path / "adapter")
    assert (tmp_path / "adapter" / ADAPTER_FILES[1]).read_bytes().startswith(b"new")
    assert left_over(tmp_path) == []


def test_a_copy_that_fails_in_the_middle_leaves_nothing(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(state, "base", "one")
    checkpoint(state, "one")
    copy = export_module.copy_file

    def fail_at_the_weights(source: Path, target: Path) -> None:
        if source.name == ADAPTER_FILES[1]:
            raise StateWriteFailed("cannot write: disk full")
        copy(source, target)

    monkeypatch.setattr(export_module, "copy_file", fail_at_the_weights)
    with pytest.raises(StateWriteFailed, match="disk full"):
        export(state, adapter=tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
    assert left_over(tmp_path) == []


def test_the_gpu_engines_adapter_is_that_of_the_last_committed_update(state: Path) -> None:
    for number in (0, 1, 2):
        folder = state / "checkpoints" / "hf" / str(number)
        folder.mkdir(parents=True)
        for name in ADAPTER_FILES:
            (folder / name).write_text(str(number))
    assert served_adapter(state).name == "1"  # two steps are committed
    shutil.rmtree(state / "checkpoints" / "hf" / "1")
    with pytest.raises(StateCorrupt, match="the adapter of the last committed update is missing"):
        served_adapter(state)


@pytest.mark.slow
def test_an_exported_adapter_loads_in_peft_and_changes_the_model(state: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from peft.utils import get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    from tttd.local.checkpoint import AdamState, Manifest, write_checkpoint
    from tttd.local.state import LoadTable

    base = build_tiny_model(tmp_path / "model")
    config = LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trained = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)
    tensors = get_peft_model_state_dict(trained)
    adapter_config = {key: value for key, value in config.to_dict().items() if not isinstance(value, set)}
    adapter_config["target_modules"] = sorted(config.target_modules or ())
    folder = state / "backend" / "checkpoints" / "c0ffee"
    (state / "backend").mkdir()
    write_checkpoint(folder, Manifest("c0ffee", "base", "tiny", 1), tensors, adapter_config, AdamState(1, {}, {}))
    loads = LoadTable(state / "backend" / "loads.json", "tiny")
    loads.mint("base")
    loads.publish(loads.mint("c0ffee"))

    export(state, adapter=tmp_path / "adapter")
    assert (tmp_path / "adapter" / ADAPTER_FILES[1]).read_bytes() == (folder / ADAPTER_FILES[1]).read_bytes()
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    tokens = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        ours, theirs = trained(tokens).logits, loaded(tokens).logits
        plain = AutoModelForCausalLM.from_pretrained(base)(tokens).logits
    assert torch.equal(ours, theirs)
    assert not torch.allclose(plain, theirs)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_ends_with_one_line_otherwise(state: Path, tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GUIDANCE_")}
    target = tmp_path / "best.cpp"
    command = [sys.executable, "-c", "from guidance_ttt.cli import main; main()", "export", "--json"]
    command += ["--state-dir", str(state), "--program", str(target)]
    done = [
        subprocess.run(command, env=plain, capture_output=True, text=True, timeout=60, check=False) for _ in range(2)
    ]
    assert done[0].returncode == 0, done[0].stderr
    assert [item["path"] for item in json.loads(done[0].stdout)] == [str(target)]
    assert done[1].returncode == 2
    assert done[1].stderr == f"error: {target} exists and is not replaced; remove it or choose another name\n"
