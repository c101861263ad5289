"""The GPU profile on a machine without one: Reef accepts `serve.yaml`, and what it would start is what is meant."""

from __future__ import annotations

import argparse
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from guidance_ttt import ports
from guidance_ttt.plan import GPU_MODULES, has_module, plan_from_config, require_profile
from guidance_ttt.wings import PROJECT_ROOT
from harness.assembly import training_bridge
from harness.config import RunConfig
from harness.errors import ConfigError, GuidanceError
from harness.ray_bridge import RayTrainingBridge
from harness.training_bridge import ServiceTrainingBridge

FILE = PROJECT_ROOT / "serve.yaml"
QWEN3 = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
QWEN3_8B = SimpleNamespace(
    num_hidden_layers=36, hidden_size=4096, intermediate_size=12288, num_attention_heads=32, **QWEN3
)
QWEN3_14B = SimpleNamespace(
    num_hidden_layers=40, hidden_size=5120, intermediate_size=17408, num_attention_heads=40, **QWEN3
)


def config_of(tmp_path: Path, **settings: str) -> RunConfig:
    environ = {"GUIDANCE_PROFILE": "gpu", "GUIDANCE_STATE_DIR": str(tmp_path / "state"), **settings}
    return RunConfig.load(environ)


def resolve(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, document: dict[str, Any] | None = None, **settings: str
) -> dict[str, Any]:
    """What Reef makes of the file, or of a changed copy, with the variables that a run of this profile sets."""
    from reef.service.deploy.config_utils import load_config
    from reef.service.deploy.orchestrator import resolve_deployment_config

    for name, value in config_of(tmp_path, **settings).service_environ.items():
        monkeypatch.setenv(name, value)
    path = FILE
    if document is not None:
        path = tmp_path / "serve.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    resolved, _ = resolve_deployment_config(load_config(path, interpolate_env=False), {}, path)
    config: dict[str, Any] = resolved
    return config


def start_service(resolved: dict[str, Any]) -> None:
    """The checks that Reef's HTTP service adds when it starts."""
    from reef.service.deploy.service_config import service_config_from_mapping
    from reef.service.deploy.training import training_deployment_for

    settings = {**vars(service_config_from_mapping(resolved)), "ray_address": "127.0.0.1:6379"}
    training_deployment_for("slime").runtime_config(settings, max_staleness=0)


def slime_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **settings: str) -> list[str]:
    """The command line that Reef's driver hands to Slime."""
    from reef.train.slime_backend.launch import driver_arguments

    arguments: list[str] = driver_arguments(resolve(monkeypatch, tmp_path, **settings), loss_family="tttd")
    return arguments


# --- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reef_accepts_the_file_with_the_variables_that_a_run_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in config_of(tmp_path).service_environ.items():
        monkeypatch.setenv(name, value)
    serve = [sys.executable, "-c", "from reef.cli import main; raise SystemExit(main())", "serve"]
    done = subprocess.run(
        [*serve, "-c", str(FILE), "--print-config"], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "training.backend = slime  (file)" in done.stdout
    assert "training.colocate = true  (file)" in done.stdout
    assert "recipe.implementation = tttd.recipe:TTTDRecipe  (file)" in done.stdout
    assert f"inference.model-path = {PROJECT_ROOT / 'work/models/Qwen3-8B'}  (file)" in done.stdout


@pytest.mark.parametrize(
    ("section", "key", "value", "reason"),
    [
        ("training.options", "colocate", True, "training.options.colocate places the model"),
        ("training.options", "hf-checkpoint", "/elsewhere", "hf-checkpoint must match inference.model-path"),
        ("training.options", "sglang-mem-fraction-static", 0.5, "sglang-mem-fraction-static configures inference"),
        ("training.options", "bad option", 1, "option names must be native flag names"),
        ("training", "colocation", True, "unknown config fields: training.colocation"),
        ("inference", "backend-factory", "a.b", "unknown config fields: inference.backend-factory"),
        ("inference", "handler-factory", "reef.no_such.Handler", "handler-factory"),
        ("inference.options", "tp-size", 2, "tp-size is managed by Reef"),
        ("recipe.config", "groups", 2, "unknown recipe.config field: groups"),
        ("recipe.config", "rollouts-per-group", 1, "rollouts_per_group must be at least 2"),
        ("execution", "training", "uni", "execution.training.backend: ray"),
        ("", "schema-version", 2, "unknown config sections: schema-version"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, key: str, value: object, reason: str
) -> None:
    from reef.core.errors import DeployConfigError

    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    place = document
    for part in filter(None, section.split(".")):
        place = place[part]
    place[key] = value
    with pytest.raises((DeployConfigError, ValueError), match=reason):
        start_service(resolve(monkeypatch, tmp_path, document))


def test_the_service_accepts_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_service(resolve(monkeypatch, tmp_path))


def test_a_missing_variable_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reef.core.errors import DeployConfigError
    from reef.service.deploy.config_utils import load_config

    for name in config_of(tmp_path).service_environ:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DeployConfigError) as caught:
        load_config(FILE)
    assert [name for name in config_of(tmp_path).service_environ if name not in str(caught.value)] == []


def test_the_search_reads_the_same_file_and_takes_nothing_but_a_matching_batch(tmp_path: Path) -> None:
    config = config_of(tmp_path, GUIDANCE_GROUPS="8", GUIDANCE_ROLLOUTS="16", GUIDANCE_STEPS="30")
    assert (config.groups, config.rollouts, config.steps) == (8, 16, 30)
    assert (config.max_tokens, config.sequence_length, config.lora_rank) == (8192, 12288, 32)
    assert (config.learning_rate, config.kl_coef, config.tensor_parallel_size) == (4e-5, 0.1, 2)
    assert (config.prompt_style, config.executor, config.limits.policy) == ("zero-shot", "local", 128)
    fixed = tmp_path / "fixed.yaml"
    fixed.write_text(FILE.read_text(encoding="utf-8").replace("${GUIDANCE_GLOBAL_BATCH:?}", "8"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"global-batch-size=8 must equal .* 4 x 4 = 16"):
        config_of(tmp_path, GUIDANCE_CONFIG=str(fixed), GUIDANCE_GROUPS="4", GUIDANCE_ROLLOUTS="4")


# --- what the driver would start ------------------------------------------------------------------------------------


def test_the_engines_command_line_follows_the_grid_the_sizes_and_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = slime_arguments(
        monkeypatch, tmp_path, GUIDANCE_GROUPS="8", GUIDANCE_ROLLOUTS="16", GUIDANCE_LEARNING_RATE="1e-5"
    )
    state = tmp_path / "state"
    model = PROJECT_ROOT / "work/models/Qwen3-8B"
    expected = {
        *("--rollout-batch-size=8", "--n-samples-per-prompt=16", "--global-batch-size=128", "--lr=1e-05", "--seed=1"),
        *(f"--{name}={model}" for name in ("hf-checkpoint", "ref-load")),
        *(f"--{name}={state}/checkpoints/megatron" for name in ("load", "save")),
        f"--save-hf={state}/checkpoints/hf/{{rollout_id}}",
        *("--seq-length=12288", "--max-tokens-per-gpu=12288", "--rollout-max-context-len=12288"),
        *("--rollout-max-response-len=8192", "--sglang-context-length=12288", "--sglang-router-port=30000"),
        *("--rollout-num-gpus=2", "--rollout-num-gpus-per-engine=1", "--actor-num-gpus-per-node=2"),
        *("--tensor-model-parallel-size=2", "--context-parallel-size=1", "--megatron-lora-rank=32"),
        '--train-env-vars={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}',
        *("--colocate", "--offload-rollout", "--offload-train", "--check-lora-weight-equal", "--swiglu"),
    }
    assert expected - set(arguments) == set()
    assert not [argument for argument in arguments if "${" in argument]


def test_a_frozen_policy_is_trained_at_rate_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--lr=0" in slime_arguments(monkeypatch, tmp_path, GUIDANCE_FREEZE_POLICY="1")
    assert config_of(tmp_path, GUIDANCE_FREEZE_POLICY="1").policy_frozen


def test_reefs_own_checks_and_the_loss_familys_accept_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reef.train.slime_backend.reef_adapters.megatron.lora import validate_megatron_lora_args
    from reef.train.slime_backend.reef_adapters.slime_arguments import add_reef_slime_arguments

    from tttd.slime import TttdAlgorithm

    parser = add_reef_slime_arguments(argparse.ArgumentParser(allow_abbrev=False))
    # The few of Slime's own that the checks read; Slime itself is not on the package index.
    for name, kind in (("loss-type", str), ("kl-coef", float), ("context-parallel-size", int)):
        parser.add_argument(f"--{name}", type=kind)
    for name in ("use-rollout-logprobs", "colocate", "normalize-advantages", "calculate-per-token-loss"):
        parser.add_argument(f"--{name}", action="store_true")
    advantages = "compute_advantages_and_returns"
    parser.add_argument("--disable-compute-advantages-and-returns", action="store_false", dest=advantages)
    parser.add_argument("--rollout-num-gpus-per-engine", type=int)
    args, _ = parser.parse_known_args(slime_arguments(monkeypatch, tmp_path))
    args = Namespace(**vars(args), only_train_params_name_list=None, freeze_params_name_list=None)
    validate_megatron_lora_args(args)
    TttdAlgorithm().validate_backend_args(args, recipe="tttd.recipe:TTTDRecipe")
    assert args.megatron_lora_target_modules == ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    assert (args.megatron_lora_alpha, args.verify_lora_base_weights) == (32, True)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (QWEN3_8B, ["--num-layers=36", "--hidden-size=4096", "--ffn-hidden-size=12288", "--num-attention-heads=32"]),
        (QWEN3_14B, ["--num-layers=40", "--hidden-size=5120", "--ffn-hidden-size=17408", "--num-attention-heads=40"]),
    ],
)
def test_the_models_size_comes_from_its_checkpoint_and_nothing_in_the_file_contradicts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: SimpleNamespace, sizes: list[str]
) -> None:
    from reef.train.slime_backend.reef_adapters.megatron.hf_arguments import hf_architecture_arguments

    arguments = slime_arguments(monkeypatch, tmp_path)
    complete = hf_architecture_arguments(arguments, model)
    added = complete[len(arguments) :]
    assert set(sizes) <= set(added)
    assert {"--num-query-groups=8", "--kv-channels=128", "--untie-embeddings-and-output-weights"} <= set(added)
    # What the file does say about the architecture is true of both sizes.
    assert "--rotary-base=1000000" in arguments
    assert f"--padded-vocab-size={model.vocab_size}" in arguments
    assert {"--attention-dropout=0", "--hidden-dropout=0", "--group-query-attention"} <= set(arguments)
    heads, tensor_parallel = model.num_attention_heads, 2
    assert heads % tensor_parallel == model.num_key_value_heads % tensor_parallel == 0


# --- the launch -----------------------------------------------------------------------------------------------------


def test_a_machine_without_the_runtime_is_told_all_that_is_missing_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GuidanceError) as caught:
        require_profile(config_of(tmp_path))
    missing = [name for name in GPU_MODULES if not has_module(name)]
    for part in ("nvidia-smi", "git-lfs", *missing, "docs/gpu.md", "GUIDANCE_PROFILE=local"):
        assert part in str(caught.value)


def test_what_trains_decides_and_not_the_profiles_name(tmp_path: Path) -> None:
    mixed = config_of(tmp_path, GUIDANCE_CONFIG="serve.local.yaml", GUIDANCE_EXECUTOR="offline")
    assert not mixed.trains_over_ray
    require_profile(mixed)
    other_way = config_of(
        tmp_path, GUIDANCE_PROFILE="local", GUIDANCE_CONFIG="serve.yaml", GUIDANCE_MODEL_PATH=str(tmp_path / "model")
    )
    assert other_way.trains_over_ray
    with pytest.raises(GuidanceError, match=r"serve\.yaml trains with Reef's Slime runtime"):
        require_profile(other_way)


def test_a_seed_that_the_trainer_would_refuse_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GUIDANCE_RUN_SEED=0"):
        config_of(tmp_path, GUIDANCE_RUN_SEED="0")


def test_the_engines_own_address_is_set_and_kept_from_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PATH": "/usr/bin", "REEF_INFERENCE_HOST": "10.1.2.3", "NO_PROXY": "example.org"}
    plan = plan_from_config(config_of(tmp_path), environ)
    reef = next(spec for spec in plan.services if spec.name == "reef")
    assert reef.env["REEF_INFERENCE_HOST"] == "10.1.2.3"
    assert reef.env["NO_PROXY"].split(",") == ["example.org", "127.0.0.1", "localhost", "::1", "10.1.2.3"]
    assert reef.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert reef.ready_timeout_s == 3600.0
    monkeypatch.setattr(ports, "own_address", lambda: "10.9.8.7")
    found = plan_from_config(config_of(tmp_path), {"PATH": "/usr/bin"})
    assert found.run_env["REEF_INFERENCE_HOST"] == found.run_env["no_proxy"].split(",")[-1] == "10.9.8.7"
    local = plan_from_config(config_of(tmp_path, GUIDANCE_CONFIG="serve.local.yaml"), {"PATH": "/usr/bin"})
    assert "REEF_INFERENCE_HOST" not in next(spec for spec in local.services if spec.name == "reef").env


def test_a_step_is_followed_where_it_is_trained(tmp_path: Path) -> None:
    client = SimpleNamespace(status=None)
    local = config_of(tmp_path, GUIDANCE_CONFIG="serve.local.yaml")
    assert type(training_bridge(local, client)) is ServiceTrainingBridge  # type: ignore[arg-type]
    config = config_of(tmp_path)
    with pytest.raises(ConfigError, match=r"slime-driver/runtime\.yaml"):
        training_bridge(config, client)  # type: ignore[arg-type]
    address = config.state_dir / "stack/slime-driver/runtime.yaml"
    address.parent.mkdir(parents=True)
    names = {"ray_address": "127.0.0.1:6379", "ray_namespace": "reef", "ray_actor_name": "reef-train-bridge"}
    address.write_text(yaml.safe_dump({"reef": names}), encoding="utf-8")
    assert isinstance(training_bridge(config, client), RayTrainingBridge)  # type: ignore[arg-type]


# --- the image ------------------------------------------------------------------------------------------------------


def test_the_parser_that_the_images_bridge_lacks_is_added_once_and_refuses_its_use(tmp_path: Path) -> None:
    layers = tmp_path / "megatron/core/layers.py"
    for folder in ("megatron/core", "megatron/bridge/models"):
        (tmp_path / folder).mkdir(parents=True)
    layers.write_text("def allocate():\n    return 1\n", encoding="utf-8")
    (tmp_path / "megatron/bridge/__init__.py").touch()
    user = "from megatron.core.layers import allocate, parse_hybrid_pattern\n"
    (tmp_path / "megatron/bridge/models/hybrid.py").write_text(user, encoding="utf-8")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        environ = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
        return subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, timeout=60)

    script = str(PROJECT_ROOT / "docker/add_missing_parser.py")
    assert run(script).stdout == "megatron.core.layers: added parse_hybrid_pattern\n"
    assert run(script).stdout == "megatron.core.layers: has parse_hybrid_pattern\n"
    assert run("-c", "import megatron.bridge.models.hybrid as h; assert h.allocate() == 1").returncode == 0
    used = run("-c", "from megatron.core.layers import parse_hybrid_pattern as p; p('M*')")
    assert "NotImplementedError: this Megatron-LM does not know hybrid layer patterns such as 'M*'" in used.stderr
