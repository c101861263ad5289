"""What `training.backend: local-torch` names: Reef's own process holds the model, samples from it and trains it.

Importing this module is cheap.  torch and transformers are imported by the factory, when the service really starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reef.runtime.deployment import RuntimeFactory
from reef.runtime.interfaces import InferenceRuntime, TrainingRuntime
from reef.train.deployment import InProcessTrainingDeployment

from tttd.local.settings import LocalTorchSettings


class LocalTorchDeployment(InProcessTrainingDeployment):
    """The entry point `local-torch` of the group `reef.training_backends`."""

    runtime_type = "tttd.local.backend:LocalTorchRuntimeFactory"
    requires_local_model = True


class LocalTorchRuntimeFactory(RuntimeFactory):
    """Builds the pair of runtimes that share one policy and one state directory."""

    kind = LocalTorchDeployment.runtime_type

    def config_type(self) -> type:
        """The options that Reef parses and type-checks before anything starts."""
        return LocalTorchSettings

    def __call__(
        self,
        config: Mapping[str, Any],
        model_path: str,
        recipe_config: Mapping[str, Any],
        environ: Mapping[str, str],
    ) -> tuple[TrainingRuntime, InferenceRuntime]:
        """Load the model and open the state directory; raises `ValueError` when either is unusable."""
        settings = LocalTorchSettings(**{name: value for name, value in config.items() if name != "type"})
        # Read by the model libraries at import: a wrong path must fail at once instead of asking a model hub for it.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from tttd.local.assembly import build_runtimes

        return build_runtimes(settings, Path(model_path).expanduser().resolve())
