"""Disk and memory: what there is, and what a run takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.model import MODEL_NAME, NEEDED_BYTES
from harness.config import RunConfig

DISK = "disk"
MEMORY = "memory"
GB = 1_000_000_000
RESERVE_BYTES = 500_000_000
"""For what does not grow with the steps: logs, the judge's cases, the trial."""

COPIES_A_STEP = 2
"""Reef keeps each update twice: in the release store and in its cache."""

COPIES_ALWAYS = 4
"""The newest updates are also kept by the engine (three) and as Reef's working copy (one)."""

PACKAGED_SHAPE: Mapping[str, int] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
"""SmolLM2-135M-Instruct's, for before it is converted."""

TRAINING_BYTES = 4 * GB
"""Of one training pass on the CPU with the default token budget, measured with SmolLM2-135M."""

_MEMORY_LINE = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class DiskNeed:
    """What the remaining steps of a run write, in bytes; `measured` says that an update of this run was looked at."""

    step_bytes: int
    steps_left: int
    model_bytes: int = 0
    measured: bool = False

    @property
    def total_bytes(self) -> int:
        """Everything that still has to fit."""
        always = COPIES_ALWAYS * self.step_bytes // COPIES_A_STEP
        return self.model_bytes + RESERVE_BYTES + always + self.steps_left * self.step_bytes


def check_disk(context: Context) -> Iterator[Finding]:
    """Space and permission where the state directory is."""
    config, probes = context.settings, context.probes
    if not probes.is_writable(config.state_dir):
        yield failure(
            DISK, f"{config.state_dir} cannot be written", "fix its permissions, or set GUIDANCE_STATE_DIR to another"
        )
        return
    yield from disk_findings(config.state_dir, probes.free_bytes(config.state_dir), disk_need(config, probes))


def disk_need(config: RunConfig, probes: Probes) -> DiskNeed:
    """Measured where the run has made updates already, else computed from the model's shape."""
    measured = newest_checkpoint_bytes(config.state_dir)
    shape: Mapping[str, Any] = _object(probes.read_text(config.model_path / "config.json"))
    if not shape and config.model_path.name == MODEL_NAME:
        shape = PACKAGED_SHAPE  # not converted yet
    update = measured or update_bytes(shape, config.lora_rank)
    missing_model = config.profile == "local" and not config.model_path.is_dir()
    return DiskNeed(
        step_bytes=COPIES_A_STEP * update,
        steps_left=max(0, config.steps - steps_done(probes, config)),
        model_bytes=NEEDED_BYTES if missing_model else 0,
        measured=measured > 0,
    )


def disk_findings(folder: Path, free: int, need: DiskNeed) -> Iterator[Finding]:
    """Whether the steps that are left will fit."""
    how = "measured" if need.measured else "estimated"
    a_step = f"about {need.step_bytes / GB:.3f} GB ({how})" if need.step_bytes else "what the model's shape decides"
    fact = f"{free / GB:.1f} GB free for {folder}; a step writes {a_step}"
    fact += f", the rest of this run needs {need.total_bytes / GB:.1f} GB"
    cure = "make room, or set GUIDANCE_STATE_DIR to a larger file system"
    if free < need.model_bytes + RESERVE_BYTES + 2 * need.step_bytes:
        yield failure(DISK, fact, cure)
    elif free < need.total_bytes:
        yield warning(DISK, fact, f"{cure}; a run that fills the disk stops, and continues once there is room")
    else:
        yield ok(DISK, fact)


def steps_done(probes: Probes, config: RunConfig) -> int:
    """Steps that the state directory has committed; 0 when that cannot be read."""
    value = _object(probes.read_text(config.run_dir / "resume-state.json")).get("next_step")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def newest_checkpoint_bytes(state_dir: Path) -> int:
    """The size of the engine's newest update, or 0."""
    folders = [path for path in (state_dir / "backend" / "checkpoints").glob("[!.]*") if path.is_dir()]
    try:
        newest = max(folders, key=lambda path: path.stat().st_mtime, default=None)
        return 0 if newest is None else sum(path.stat().st_size for path in newest.iterdir())
    except OSError:
        return 0  # a live run has just removed it


def update_bytes(config: Mapping[str, Any], lora_rank: int) -> int:
    """One update in fp32: the adapter on all projections of a Llama-like model, and Adam's two moments of it.

    `config` is the model's own `config.json`; without one the answer is 0.
    """
    hidden, inner, layers = (_count(config, key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    heads = _count(config, "num_attention_heads") or 1
    head_dim = _count(config, "head_dim") or hidden // heads
    queries, values = heads * head_dim, (_count(config, "num_key_value_heads") or heads) * head_dim
    attention = 2 * (hidden + queries) + 2 * (hidden + values)
    mlp = 3 * (hidden + inner)
    return 3 * 4 * lora_rank * layers * (attention + mlp)


# --- memory -----------------------------------------------------------------------------------------------------------


def check_memory(context: Context) -> Iterator[Finding]:
    """Memory that is available against what the policy's service takes on the CPU."""
    config, probes = context.settings, context.probes
    available = available_bytes(probes.read_text(Path("/proc/meminfo")))
    weights = 0 if context.on_gpus else weight_bytes(config.model_path)
    yield from memory_findings(available, weights, probes.cores(), on_gpu=context.on_gpus)


def available_bytes(meminfo: str | None) -> int | None:
    """The kernel's estimate of what new programs can have; None where it does not say."""
    found = {name: int(value) * 1024 for name, value in _MEMORY_LINE.findall(meminfo or "")}
    return found.get("MemAvailable", found.get("MemTotal"))


def weight_bytes(model_path: Path) -> int:
    """The size of a model's weight files."""
    return sum(path.stat().st_size for path in model_path.glob("*.safetensors"))


def memory_findings(available: int | None, weights: int, cores: int, *, on_gpu: bool) -> Iterator[Finding]:
    """A run needs the weights and one training pass; less may work, slowly, by swapping."""
    if available is None:
        yield warning(MEMORY, "this system does not say how much memory is available", "see for yourself: 6 GB suffice")
        return
    fact = f"{available / GB:.1f} GB available, {cores} cores"
    if on_gpu:
        yield ok(MEMORY, fact)
        return
    need = 2 * weights + TRAINING_BYTES
    fact += f"; sampling and training take up to about {need / GB:.1f} GB (estimated)"
    cure = "close other programs, or lower training.options.train-token-budget in the config file"
    if available < weights + GB:
        yield failure(MEMORY, fact, cure)
    elif available < need:
        yield warning(MEMORY, fact, cure)
    else:
        yield ok(MEMORY, fact)


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
