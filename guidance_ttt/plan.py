"""From settings to command lines: which services a run needs, how each is started, and the model they serve.

The only place that knows both the settings and the other wings' command lines.  Nothing here starts a service.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from guidance_ttt import ports
from guidance_ttt.model import MARKER_FILE, MODEL_NAME, ModelUnavailable, ensure_policy_model
from guidance_ttt.services import ServiceSpec
from guidance_ttt.wings import PROJECT_ROOT, executor_argv, judge_argv
from harness.config import TASKS, RunConfig
from harness.errors import ConfigError, GuidanceError
from harness.redaction import strip_url

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
JUDGE_READY_S = 120.0
EXECUTOR_READY_S = 60.0
REEF_READY_S = 300.0
REEF_READY_GPU_S = 3600.0
REEF_GRACE_S = 45.0
"""Reef gives its own children 30 s; its guard must not be quicker."""

GPU_DEVICE = Path("/dev/nvidiactl")
GPU_MODULES = ("ray", "sglang", "slime.backends", "megatron.core", "megatron.bridge")
"""What Reef's Slime backend imports; the submodules tell the right packages from others of the same name."""

_CREDENTIAL_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
_REEF_CREDENTIALS = ("GUIDANCE_REEF_TOKEN", "WANDB_API_KEY", "HF_TOKEN")


class MachineLacks(GuidanceError):
    """This machine lacks something that the task cannot do without."""


@dataclass(frozen=True)
class LaunchPlan:
    """What the launcher starts: the services together, then the run.  `notes` are lines for the user."""

    services: tuple[ServiceSpec, ...]
    run_argv: tuple[str, ...]
    run_env: Mapping[str, str]
    cwd: Path
    notes: tuple[str, ...] = ()


def plan_from_config(config: RunConfig, environ: Mapping[str, str]) -> LaunchPlan:
    """The services and the run for these settings."""
    base = base_environment(config, environ)
    services: list[ServiceSpec] = []
    notes: list[str] = []
    if is_local(config.judge_url):
        services.append(judge_service(config, base, split_options(environ, "GUIDANCE_JUDGE_ARGS")))
    else:
        notes.append(f"judge: using {strip_url(config.judge_url)}")
    if config.executor == "offline":
        if not is_local(config.backend.base_url):
            raise ConfigError(
                f"GUIDANCE_EXECUTOR=offline starts a server on this machine, but GUIDANCE_EXECUTOR_URL names "
                f"{strip_url(config.backend.base_url)}; use GUIDANCE_EXECUTOR=openai for a remote server"
            )
        services.append(executor_service(config, base))
    else:
        notes.append(f"executor: using {config.backend.model} at {strip_url(config.backend.base_url)}")
    services.append(reef_service(config, base))
    return LaunchPlan(
        services=tuple(services),
        run_argv=(sys.executable, str(PROJECT_ROOT / "run.py")),
        run_env=base,
        cwd=PROJECT_ROOT,
        notes=tuple(notes),
    )


def base_environment(config: RunConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of every child: the user's own, no model hub, and no proxy for local addresses."""
    env = {**environ, "PYTHONUNBUFFERED": "1"}
    env.setdefault("HF_HUB_OFFLINE", "1")  # the model is a local directory; a wrong path must fail at once
    hosts = [*LOOPBACK_HOSTS]
    if config.trains_over_ray:
        # The engines' router binds the machine's own address, not loopback.
        own = env.get("REEF_INFERENCE_HOST") or ports.own_address()
        if own:
            env["REEF_INFERENCE_HOST"] = own
            hosts.append(own)
    for name in ("NO_PROXY", "no_proxy"):
        present = [part.strip() for part in env.get(name, "").split(",") if part.strip()]
        env[name] = ",".join([*present, *(host for host in hosts if host not in present)])
    return env


def without_credentials(env: Mapping[str, str], keep: tuple[str, ...] = ()) -> dict[str, str]:
    """The environment less every key, token and password: the judge runs strangers' programs."""
    return {name: value for name, value in env.items() if name in keep or not name.endswith(_CREDENTIAL_ENDINGS)}


def split_options(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Command line options given by one environment variable, quoted as in a shell."""
    try:
        return tuple(shlex.split(environ.get(name, "")))
    except ValueError as error:
        raise ConfigError(f"{name}={environ[name]!r} cannot be split into options: {error}") from error


def judge_service(config: RunConfig, base: Mapping[str, str], options: tuple[str, ...] = ()) -> ServiceSpec:
    """The embedded judge of the task; `options` are further ones from the user."""
    return ServiceSpec(
        name="judge",
        argv=judge_argv(config.task, host=host_of(config.judge_url), port=config.judge_port, state_dir=config.state_dir)
        + options,
        env=without_credentials(base),
        cwd=PROJECT_ROOT,
        log_path=log_path(config, "judge"),
        health_url=f"{config.judge_url}/health",
        ready_timeout_s=JUDGE_READY_S,
        port_setting=f"GUIDANCE_JUDGE_URL=http://127.0.0.1:{config.judge_port + 1000}",
        cure="Options for the judge go into GUIDANCE_JUDGE_ARGS; "
        f".venv/bin/guidance-ttt judge {config.task} --port {config.judge_port} runs it alone.",
        reuse_url=f"{config.judge_url}/problems",
        identity='"problems"',
    )


def executor_service(config: RunConfig, base: Mapping[str, str]) -> ServiceSpec:
    """The offline executor, which needs no model and no key."""
    url = config.backend.base_url
    parts = urlsplit(url)
    port = parts.port or 80
    return ServiceSpec(
        name="executor",
        argv=executor_argv(config.task, host=host_of(url), port=port, task_dir=config.task_dir),
        env=without_credentials(base),
        cwd=PROJECT_ROOT,
        log_path=log_path(config, "executor"),
        health_url=f"http://{parts.netloc}/health",
        ready_timeout_s=EXECUTOR_READY_S,
        port_setting=f"GUIDANCE_EXECUTOR_URL=http://127.0.0.1:{port + 1000}/v1",
        cure=f"Try it alone with .venv/bin/guidance-ttt executor {config.task}, "
        "or choose another with GUIDANCE_EXECUTOR.",
        reuse_url=f"{url}/models",
        identity="offline-catalogue",
    )


def reef_service(config: RunConfig, base: Mapping[str, str]) -> ServiceSpec:
    """Reef with this project's recipe: serves the policy and trains it."""
    env = without_credentials(base, keep=_REEF_CREDENTIALS) | dict(config.service_environ)
    # Threads that spin while they wait lose a core to whatever else runs here (the judge's programs, a second service):
    # measured on two busy cores, sampling was ten times slower with them.
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if config.trains_over_ray:
        env.setdefault("CUDA_VISIBLE_DEVICES", "0,1")
    return ServiceSpec(
        name="reef",
        argv=(sys.executable, "-m", "reef", "serve", "-c", str(config.config_path)),
        env=env,
        cwd=PROJECT_ROOT,
        log_path=log_path(config, "reef"),
        health_url=f"{config.service_url}/healthz",
        ready_timeout_s=REEF_READY_GPU_S if config.trains_over_ray else REEF_READY_S,
        port_setting=f"GUIDANCE_REEF_PORT={config.reef_port + 1000}",
        cure=f"Check the config alone: .venv/bin/reef serve -c {config.config_path} --print-config "
        "(the first lines of the log show the command and its settings)",
        grace_s=REEF_GRACE_S,
    )


def log_path(config: RunConfig, name: str) -> Path:
    """Where a service's output goes."""
    return config.state_dir / "stack" / "logs" / f"{name}.log"


def host_of(url: str) -> str:
    """The address to bind for a local URL."""
    host = urlsplit(url).hostname or ""
    return "127.0.0.1" if host == "localhost" else host


def is_local(url: str) -> bool:
    """Whether the URL names this machine's loopback address."""
    return urlsplit(url).hostname in LOOPBACK_HOSTS


def require_profile(config: RunConfig) -> None:
    """Refuse a trainer on GPUs early, naming what is missing, instead of failing inside Reef an hour later."""
    if not config.trains_over_ray:
        return
    programs = {"nvidia-smi": "an NVIDIA driver (nvidia-smi)", "git-lfs": "git-lfs"}
    missing = [what for program, what in programs.items() if shutil.which(program) is None]
    missing += [name for name in GPU_MODULES if not has_module(name)]
    if missing:
        raise GuidanceError(
            f"{config.config_path.name} trains with Reef's Slime runtime; not found here: {', '.join(missing)}. "
            "Run inside the GPU image (docs/gpu.md), or use GUIDANCE_PROFILE=local."
        )


def has_module(name: str) -> bool:
    """Whether a module can be found; only the packages above it are imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def require_task(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Refuse a task that cannot run with these settings on this machine, before anything is started."""
    lacking: list[str] = []
    starts_judge = is_local(config.judge_url) and environ.get("GUIDANCE_REUSE_SERVICES", "").strip() != "1"
    timed = "--correctness-only" not in split_options(environ, "GUIDANCE_JUDGE_ARGS")
    no_gpu = TASKS[config.task].needs_gpu and starts_judge and timed and not GPU_DEVICE.exists()
    if no_gpu:
        lacking.append(
            "a CUDA GPU, which is not here, for its judge: name a judge on a machine that has one with "
            "GUIDANCE_JUDGE_URL, or give up timing with GUIDANCE_JUDGE_ARGS=--correctness-only"
        )
    if config.executor == "offline" and not (config.task_dir / "offline").is_dir():
        lacking.append(
            "a language model as executor, because it has no offline catalogue: set GUIDANCE_EXECUTOR=openai with "
            "GUIDANCE_EXECUTOR_URL and GUIDANCE_EXECUTOR_MODEL, or GUIDANCE_EXECUTOR=openrouter"
        )
    if lacking:
        message = "\n  - ".join([f"task {config.task} needs", *lacking])
        raise MachineLacks(message) if no_gpu else ConfigError(message)


def prepare_model(config: RunConfig, environ: Mapping[str, str], *, say: Callable[[str], None]) -> None:
    """Make sure that the model directory exists: convert the packaged model, or download on the GPU profile."""
    path = config.model_path
    has_config = (path / "config.json").is_file()
    if has_config and not (path / MARKER_FILE).is_file():
        return  # the user's own directory
    if path.name == MODEL_NAME and config.model_name.rsplit("/", 1)[-1] == MODEL_NAME:
        ensure_policy_model(path.parent, say=say)
        return
    if has_config:
        return
    if config.profile != "gpu":
        raise ConfigError(
            f"the guidance model {config.model_name} is not at {path} (no config.json there); put a Hugging Face "
            f"directory there, name one with GUIDANCE_MODEL_PATH, or unset GUIDANCE_MODEL for {MODEL_NAME}"
        )
    say(f"downloading {config.model_name} to {path}")
    download = str(Path(sys.executable).with_name("hf"))
    result = subprocess.run(
        [download, "download", config.model_name, "--local-dir", str(path)], env=dict(environ), check=False
    )
    if result.returncode != 0:
        raise ModelUnavailable(
            f"downloading {config.model_name} ended with exit code {result.returncode}. Check the network and "
            "HF_TOKEN, or download it yourself and set GUIDANCE_MODEL_PATH."
        )
