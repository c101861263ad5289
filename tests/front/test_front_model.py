"""The packaged weights become an ordinary model directory: once, safely, and exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from guidance_ttt import model as model_module
from guidance_ttt.model import MARKER_FILE, MODEL_NAME, ModelUnavailable, ensure_policy_model, find_source, verify_model
from harness.errors import ConfigError


def test_a_directory_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / MODEL_NAME
    theirs.mkdir()
    (theirs / "model.safetensors").write_text("precious")
    with pytest.raises(ModelUnavailable, match=r"was not written by this project.*GUIDANCE_MODEL_PATH"):
        ensure_policy_model(tmp_path)
    assert (theirs / "model.safetensors").read_text() == "precious"


def test_a_complete_directory_is_returned_without_reading_its_weights(tmp_path: Path) -> None:
    target = written_by_us(tmp_path)
    assert ensure_policy_model(tmp_path) == target
    with pytest.raises(ModelUnavailable, match="differs from the converted file"):
        verify_model(target)  # the size is right, the content is not


def test_the_marker_of_another_format_is_not_trusted(tmp_path: Path) -> None:
    target = written_by_us(tmp_path)
    (target / MARKER_FILE).write_text("{}")
    with pytest.raises(ModelUnavailable, match="no readable"):
        verify_model(target)


def test_unknown_tensors_and_architectures_are_refused_by_name() -> None:
    with pytest.raises(ModelUnavailable, match=r"blk\.0\.surprise\.weight"):
        model_module._weight_name("blk.0.surprise.weight")
    with pytest.raises(ConfigError, match="mamba"):
        model_module._llama_config({"general.architecture": "mamba"})


def test_undoing_the_rotary_permutation_inverts_the_formats_interleaving() -> None:
    heads, rows = 3, 24
    weight = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
    interleaved = weight.reshape(heads, 2, rows // heads // 2, 5).swapaxes(1, 2).reshape(rows, 5)
    assert not np.array_equal(interleaved, weight)
    assert np.array_equal(model_module._undo_rope_permutation(interleaved, heads), weight)


def test_the_packages_file_is_found_without_importing_the_package() -> None:
    assert find_source().stat().st_size > 80_000_000
    assert model_module.SOURCE_PACKAGE not in sys.modules


def written_by_us(models_dir: Path) -> Path:
    """A directory whose marker fits its (fake) files in name and size only."""
    target = models_dir / MODEL_NAME
    target.mkdir()
    (target / "config.json").write_text("{}")
    marker = {
        "format": model_module.MARKER_FORMAT,
        "source_sha256": model_module.SOURCE_SHA256,
        "files": {"config.json": {"bytes": 2, "sha256": "0" * 64}},
    }
    (target / MARKER_FILE).write_text(json.dumps(marker))
    return target


# --- the real conversion ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A models directory that two processes asked for at the same time, with rests of a killed conversion in it."""
    folder = tmp_path_factory.mktemp("models")
    (folder / f".{MODEL_NAME}.new-dead").mkdir()
    (folder / f".{MODEL_NAME}.new-dead" / "model.safetensors").write_text("half")
    command = [sys.executable, "-m", "guidance_ttt.model", "--models-dir", str(folder)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    worker = threading.Thread(target=lambda: ensure_policy_model(folder, say=said.append))
    worker.start()
    output, errors = other.communicate(timeout=300)
    worker.join(300)
    assert other.returncode == 0, errors
    assert str(folder / MODEL_NAME) in output
    everything = errors + "\n".join(said)
    assert (everything.count(f"converting {model_module.SOURCE_FILE}"), everything.count("waiting for it")) == (1, 1)
    yield folder
    (folder / MODEL_NAME / "model.safetensors").unlink(missing_ok=True)  # half a gigabyte


@pytest.mark.slow
def test_two_conversions_at_once_make_one_complete_directory(models_dir: Path) -> None:
    assert sorted(path.name for path in models_dir.iterdir()) == [f".{MODEL_NAME}.lock", MODEL_NAME]
    verify_model(models_dir / MODEL_NAME)


@pytest.mark.slow
def test_the_converted_model_loads_by_path_and_answers_in_english(models_dir: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = models_dir / MODEL_NAME
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype == torch.float32
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.generation_config.eos_token_id == model.generation_config.pad_token_id == 2

    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    text = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    prompt = tokenizer(text, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_the_tokenizer_splits_digits_and_keeps_every_character(models_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models_dir / MODEL_NAME)
    assert tokenizer.convert_ids_to_tokens(tokenizer("x12345").input_ids) == ["x", "1", "2", "3", "4", "5"]
    assert tokenizer("<|im_start|>user\nhi<|im_end|>").input_ids == [1, 4093, 198, 6004, 2]
    for text in ("a  b\n\n\tx = 3.14;", "naïve café 日本語 🎉", "don't  we've"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
