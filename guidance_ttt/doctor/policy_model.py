"""The policy's model directory: there, complete, and what it says it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.model import MARKER_FILE, MODEL_NAME, SOURCE_SHA256, ModelUnavailable, find_source, verify_model
from harness.config import RunConfig

MODEL = "model"
REMAKE = "delete {path} and run ./run.sh again: it is converted anew"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_model(context: Context) -> Iterator[Finding]:
    """The converted model's marker and sizes (its hashes with --deep), or the files of the user's own directory."""
    config = context.settings
    path = config.model_path
    if (path / MARKER_FILE).is_file():
        yield from _converted(path, deep=context.deep)
    elif (path / "config.json").is_file():
        yield from own_directory_findings(path)
    else:
        yield from _absent(config, context.environ)


def _converted(path: Path, *, deep: bool) -> Iterator[Finding]:
    problem = marker_problem(path)
    if problem is not None:
        yield failure(MODEL, f"{path}: {problem}", REMAKE.format(path=path))
        return
    if deep:
        try:
            verify_model(path)
        except ModelUnavailable as error:
            yield failure(MODEL, str(error), REMAKE.format(path=path))
            return
    yield ok(MODEL, f"{path} is complete" + (", every file has its recorded hash" if deep else ""))


def marker_problem(path: Path) -> str | None:
    """What is wrong with a converted directory by its marker, without reading the weights; None when nothing is."""
    try:
        marker = json.loads((path / MARKER_FILE).read_text(encoding="utf-8"))
        source, files = marker["source_sha256"], dict(marker["files"])
        sizes = {name: int(entry["bytes"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MARKER_FILE} cannot be read: {error}"
    if source != SOURCE_SHA256:
        return f"it was converted from other weights (SHA-256 {str(source)[:12]}..., {SOURCE_SHA256[:12]}... expected)"
    for name, size in sizes.items():
        try:
            there = (path / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if there != size:
            return f"{name} has {there} bytes instead of {size}"
    return None


def own_directory_findings(path: Path) -> Iterator[Finding]:
    """A Hugging Face directory of the user's own: every weight file that the index names, and a tokenizer."""
    index = path / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(_object(index)["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            yield failure(MODEL, f"{index} cannot be read: {error}", "download the model again")
            return
    missing = [name for name in names if not (path / str(name)).is_file()]
    if missing:
        lacking = ", ".join(map(str, missing[:5]))
        yield failure(MODEL, f"{path} lacks {lacking}", "download the model again, or copy what is missing")
    elif not any((path / name).is_file() for name in TOKENIZER_FILES):
        yield failure(MODEL, f"{path} has none of {', '.join(TOKENIZER_FILES)}", "copy the model's tokenizer there")
    else:
        yield ok(MODEL, f"{path} is complete: {len(names)} weight file(s) and a tokenizer")


def _absent(config: RunConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    path, name = config.model_path, config.model_name
    if path.name == MODEL_NAME and name.rsplit("/", 1)[-1] == MODEL_NAME:
        try:
            find_source()
        except ModelUnavailable as error:
            yield failure(MODEL, str(error), "run ./run.sh --setup-only")
        else:
            yield ok(MODEL, f"{path} is not there yet; the first run converts it from the installed package (5-25 s)")
    elif config.profile == "gpu":
        token = "HF_TOKEN is set" if environ.get("HF_TOKEN", "").strip() else "HF_TOKEN is not set"
        yield warning(
            MODEL,
            f"{path} is not there yet; the first run downloads {name} ({token})",
            "download it beforehand (`hf download`), or name a directory with GUIDANCE_MODEL_PATH",
        )
    else:
        yield failure(
            MODEL,
            f"the model {name} is not at {path}",
            f"put a Hugging Face directory there, name one with GUIDANCE_MODEL_PATH, or unset GUIDANCE_MODEL for "
            f"{MODEL_NAME}",
        )


def _object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__} instead of an object")
    return value
