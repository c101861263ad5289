"""What it costs to publish an update and to load it again: seconds, and what each folder grows by.

    python benchmarks/bench_publish.py [--steps 5]

Uses the real adapter's size, Reef's own artifact repository (git and git-lfs on this disk) and the backend's own
checkpoint, sampler and trainer weights; the numbers inside the adapter are random, so nothing compresses. A step is
written, staged, released and taken from Reef's cache as a running service does it; then equal files are linked, as the
backend does when Reef has committed a step. Prints one JSON object; seconds are medians over the steps.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_support import DEFAULT_MODEL, ROOT, machine_facts, model_directory, positive, print_result

sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from reef.artifact.artifact import ArtifactRef
    from reef.artifact.repository import Repository

    from tttd.local.checkpoint import AdamState
    from tttd.local.policy import PolicyModel

RANK, SEED = 32, 0
FOLDERS = ("backend/checkpoints", "artifacts.git", "artifact-work", "artifact-cache")


class Stopwatch:
    """Seconds by name, one value per step."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        """Time one call."""
        started = time.perf_counter()
        result = call()
        self.times.setdefault(name, []).append(time.perf_counter() - started)
        return result

    def medians(self) -> dict[str, float]:
        """The median of each."""
        return {name: statistics.median(values) for name, values in self.times.items()}


def disk_bytes(state: Path) -> dict[str, int]:
    """What each folder takes up; a file with several names counts once, for the first folder that has it."""
    seen: set[int] = set()
    sizes = {}
    for folder in FOLDERS:
        total = 0
        for path in (state / folder).rglob("*"):
            status = path.lstat()
            if path.is_file() and status.st_ino not in seen:
                seen.add(status.st_ino)
                total += status.st_blocks * 512
        sizes[folder] = total
    return sizes


def random_update(policy: PolicyModel, step: int) -> tuple[dict[str, Any], AdamState]:
    """An adapter and Adam moments of the right shapes."""
    import torch

    from tttd.local.checkpoint import AdamState
    from tttd.local.trainer import adapter_parameters

    generator = torch.Generator().manual_seed(step)
    adapter = {
        name: 0.01 * torch.randn(tensor.shape, generator=generator) for name, tensor in policy.initial_adapter.items()
    }
    first, second = (
        {name: torch.rand(p.shape, generator=generator) for name, p in adapter_parameters(policy).items()}
        for _ in range(2)
    )
    return adapter, AdamState(step + 1, first, second)


class Publisher:
    """A state directory laid out like a service's, and Reef's repository in it."""

    def __init__(self, policy: PolicyModel, state: Path) -> None:
        from reef.artifact.git_lfs import GitLFSRepositoryBackend
        from reef.artifact.repository import Repository

        from tttd.local.shared_files import SharedFiles
        from tttd.local.state import StateDirectory

        self.policy, self.state, self.watch = policy, state, Stopwatch()
        self.backend_state = StateDirectory(state / "backend", identity=policy.identity)
        storage = GitLFSRepositoryBackend(
            "bench",
            state / "artifacts.git",
            work_dir=state / "artifact-work" / "bench",
            cache_dir=state / "artifact-cache",
        )
        head = storage.fork()
        self.repository: Repository = Repository(
            storage, head, current_artifact=head, checkpoint_artifact=head, local_dir=state / "staged"
        )
        self.head: ArtifactRef = head
        self.files = SharedFiles([state / folder for folder in FOLDERS])
        self.growth: list[dict[str, int]] = []
        self.freed: list[int] = []

    def step(self, number: int) -> None:
        """Write, release, load and tidy up one update."""
        from reef.artifact.artifact import Artifact, ArtifactRef

        from tttd.local.checkpoint import Manifest, write_checkpoint

        before = disk_bytes(self.state)
        adapter, moments = random_update(self.policy, number)
        folder = self.backend_state.checkpoint_path(f"{number:064x}")
        manifest = Manifest(folder.name, "base", self.policy.identity, number + 1)
        config = self.policy.adapter_config()
        self.watch.run("write_checkpoint", lambda: write_checkpoint(folder, manifest, adapter, config, moments))
        made = Artifact(ArtifactRef(folder.name, f"local:{number}", None), None, local_path=folder, metadata={})
        staged = self.watch.run("reef_stage", lambda: self.repository.stage(number, made, parent=self.head))
        self.head = self.watch.run(
            "reef_git_lfs_release", lambda: self.repository.publish(staged, expected_parent=self.head)
        )
        tree = self.watch.run("reef_materialize", lambda: self.repository.materialize(self.head)).local_path
        self.load(tree)
        self.backend_state.loads.publish(self.backend_state.loads.mint(folder.name))
        self.freed.append(self.watch.run("link_copies", self.files.link_copies))
        self.backend_state.prune()
        after = disk_bytes(self.state)
        self.growth.append({name: after[name] - before[name] for name in FOLDERS})

    def load(self, tree: Path) -> None:
        """Put a released tree into the sampler's and the trainer's weights."""
        from tttd.local.adam import restored_adam
        from tttd.local.checkpoint import read_adapter, read_optimizer
        from tttd.local.trainer import adapter_parameters

        adapter = self.watch.run("read_adapter", lambda: read_adapter(tree))
        self.watch.run("load_into_sampler", lambda: self.policy.use_for_sampling(adapter))

        def into_trainer() -> None:
            self.policy.use_for_training(adapter)
            restored_adam(adapter_parameters(self.policy), read_optimizer(tree), 1e-4)

        self.watch.run("load_into_trainer_with_moments", into_trainer)


def released_anew(publisher: Publisher) -> float:
    """Seconds to fetch a release whose cache entry is gone, as a rollback after a clean-up would."""
    shutil.rmtree(publisher.state / "artifact-cache" / publisher.head.release_id)
    started = time.perf_counter()
    publisher.repository.materialize(publisher.head)
    return time.perf_counter() - started


def measure(options: argparse.Namespace, state: Path) -> dict[str, Any]:
    """All numbers."""
    from tttd.local.checkpoint import ADAPTER_FILE, OPTIMIZER_FILE
    from tttd.local.policy import PolicyModel

    publisher = Publisher(PolicyModel(options.model, rank=RANK, alpha=RANK, seed=SEED), state)
    for number in range(options.steps):
        publisher.step(number)
    folder = state / "backend" / "checkpoints" / f"{options.steps - 1:064x}"
    sizes = {name: (folder / name).stat().st_size for name in (ADAPTER_FILE, OPTIMIZER_FILE)}
    last = publisher.growth[-1]
    freed = statistics.median(publisher.freed)
    publication = ("write_checkpoint", "reef_stage", "reef_git_lfs_release", "load_into_sampler", "link_copies")
    seconds = publisher.watch.medians()
    total = {name: size / 1e6 for name, size in disk_bytes(state).items()}
    return {
        "checkpoint_mb": {name: size / 1e6 for name, size in sizes.items()} | {"total": sum(sizes.values()) / 1e6},
        "seconds": {**seconds, "whole_publication": sum(seconds[name] for name in publication)},
        "reef_fetch_without_cache_s": released_anew(publisher),
        "disk_mb_added_by_a_late_step": {name: size / 1e6 for name, size in last.items()},
        "disk_mb_added": sum(last.values()) / 1e6,
        "disk_mb_freed_by_links": freed / 1e6,
        "disk_mb_total": total,
    }


def targets(result: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the project's own limits hold."""
    allowed_mb = 1.05 * result["checkpoint_mb"]["total"]
    return {"disk of a step <= 1.05 x its checkpoint": result["disk_mb_added"] <= allowed_mb}


def main() -> None:
    """Measure in a temporary directory on the disk that a run would use."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="a Hugging Face model directory")
    parser.add_argument("--steps", type=positive, default=5, help="releases; 5 or more reach the steady state")
    options = parser.parse_args()
    model_directory(options.model)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    work = ROOT / "work"
    work.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work, prefix="bench-publish-") as folder:
        result = measure(options, Path(folder))
    print_result({**result, "steps": options.steps, "machine": machine_facts(), "targets": targets(result)})


if __name__ == "__main__":
    main()
