"""Puts the local backend together: policy, state directory, sampler, and the two runtimes that Reef drives."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from tttd.local.checkpoint import read_adapter
from tttd.local.inference_runtime import LocalInferenceRuntime
from tttd.local.leftovers import remove_leftovers
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler
from tttd.local.settings import LocalTorchSettings
from tttd.local.state import StateDirectory
from tttd.local.training_runtime import LocalTrainingRuntime

logger = logging.getLogger(__name__)


def build_runtimes(
    settings: LocalTorchSettings, model_path: Path
) -> tuple[LocalTrainingRuntime, LocalInferenceRuntime]:
    """Raises `ValueError` when the model cannot be loaded or the state directory belongs to another model or
    process."""
    started = time.monotonic()
    policy = PolicyModel(
        model_path,
        rank=settings.lora_rank,
        alpha=settings.lora_alpha,
        seed=settings.seed,
        device=settings.device,
        context_length=settings.context_length,
    )
    repositories = [Path(folder).expanduser() for folder in settings.git_dirs]
    state = StateDirectory(Path(settings.state_dir), identity=policy.identity, repositories=repositories)
    try:
        remove_leftovers(repositories)
        sampler = BatchedSampler(
            policy,
            lambda checkpoint_id: None if (folder := state.checkpoint(checkpoint_id)) is None else read_adapter(folder),
            max_rows=settings.max_batch_size,
            max_cache_tokens=settings.max_cache_tokens,
        )
        training = LocalTrainingRuntime(policy, state, settings)
        inference = LocalInferenceRuntime(policy, state, sampler, timeout_s=settings.inference_timeout_s)
    except BaseException:
        state.close()
        raise
    logger.info(
        "%s on %s in %s: loaded in %.1f s", policy.identity, policy.device, policy.dtype, time.monotonic() - started
    )
    return training, inference
