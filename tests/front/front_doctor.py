"""Settings and contexts for the tests of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from guidance_ttt.doctor.model import Context, Finding
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.peek import peek_config

SETTINGS = """
reef: {port: "${GUIDANCE_REEF_PORT:?}", token: "${GUIDANCE_REEF_TOKEN:?}"}
recipe: {config: {groups-per-step: 2, rollouts-per-group: 4}}
training:
  config: {steps: 3, max_tokens: 64, seq_length: 1024, lora_rank: 32}
  options: {learning-rate: "2e-4", kl-coef: "0.1"}
"""


def environ_of(folder: Path, **more: str) -> dict[str, str]:
    (folder / "settings.yaml").write_text(SETTINGS)
    names = {"CONFIG": "settings.yaml", "STATE_DIR": "state", "MODEL_PATH": "model"}
    return {**{f"GUIDANCE_{name}": str(folder / value) for name, value in names.items()}, **more}


def context_of(folder: Path, probes: Probes | None = None, **more: str) -> Context:
    environ = environ_of(folder, **more)
    config = peek_config(environ)
    return Context(environ=environ, config=config, profile=config.profile, probes=probes or Probes())


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level.value for finding in findings]
