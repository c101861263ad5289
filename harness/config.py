"""All settings of one run, read once and checked before anything starts.

Order of precedence: environment (`GUIDANCE_*`), then the YAML file, then the profile's defaults below.  An empty
environment variable counts as unset.  This is the only module that knows the tasks' names.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import ConfigError
from harness.execution import (
    ExecutionBackend,
    Price,
    gpt_oss_120b_backend,
    offline_backend,
    openai_backend,
    openrouter_glm_5_2_backend,
)
from harness.setting_values import Environ, Reading, YamlValues, as_number, port_of
from harness.settings_file import load_settings
from harness.stopping import StopRules

PROJECT_ROOT = Path(__file__).resolve().parent.parent
MAX_SEED = 2**31 - 1
ENVIRONMENTS = ("auto", "docker", "local")
PROMPT_STYLES = ("zero-shot", "few-shot")
WANDB_PROJECT = "guidance-ttt"


@dataclass(frozen=True)
class TaskEntry:
    """What the harness must know of a task beyond its directory.

    `needs_gpu` says that its judge measures nothing on a machine without one.
    `quick_problem` is the judge's smaller problem that the local profile searches on; None where there is none.
    `timed` tasks score running times, which are noisy: their best programs are measured again before one is submitted.
    """

    judge_port: int
    verifier_timeout_s: float
    quick_problem: str | None = None
    needs_gpu: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Profile:
    """Defaults that differ between one ordinary machine and a GPU deployment."""

    config_file: str
    model_name: str
    executor: str
    prompt_style: str
    learning_rate: float
    quick_search: bool
    training_backend: str


TASKS: Mapping[str, TaskEntry] = {
    "polyomino_packing": TaskEntry(judge_port=8081, verifier_timeout_s=340.0, quick_problem="0-quick"),
    "lasso_path": TaskEntry(judge_port=8082, verifier_timeout_s=660.0, quick_problem="lasso_path-quick", timed=True),
    "ahc058": TaskEntry(judge_port=8082, verifier_timeout_s=530.0, quick_problem="ahc058-quick"),
    "trimul": TaskEntry(judge_port=8082, verifier_timeout_s=1160.0, needs_gpu=True, timed=True),
}
PROFILES: Mapping[str, Profile] = {
    "local": Profile("serve.local.yaml", "SmolLM2-135M-Instruct", "offline", "few-shot", 1e-4, True, "local-torch"),
    "gpu": Profile("serve.yaml", "Qwen/Qwen3-8B", "local", "zero-shot", 4e-5, False, "slime"),
}
EXECUTORS = ("offline", "openai", "local", "openrouter")
DEFAULT_EXECUTOR_URL = "http://127.0.0.1:8000/v1"


@dataclass(frozen=True)
class Limits:
    """How many calls of each kind are in flight at once."""

    policy: int
    executor: int
    judge: int


@dataclass(frozen=True)
class RunConfig:
    """Everything a run needs.  Times are in seconds, lengths in tokens."""

    profile: str
    task: str
    task_dir: Path
    state_dir: Path
    config_path: Path
    model_name: str
    model_path: Path
    scenario: str
    service_url: str
    token: str = field(repr=False)
    judge_url: str
    judge_problem_id: str | None
    verifier_timeout_s: float
    executor: str
    backend: ExecutionBackend
    groups: int
    rollouts: int
    steps: int
    max_tokens: int
    sequence_length: int
    training_backend: str
    lora_rank: int
    learning_rate: float
    kl_coef: float
    tensor_parallel_size: int
    train_timeout_s: float
    policy_timeout_s: float
    prompt_style: str
    limits: Limits
    stop_rules: StopRules
    remeasured_programs: int
    run_seed: int
    environment: str
    quiet: bool
    wandb_project: str | None
    seed_path: Path | None
    service_environ: Mapping[str, str] = field(repr=False)

    @property
    def run_dir(self) -> Path:
        """Where the harness keeps its own state."""
        return self.state_dir / "guidance-run"

    @property
    def trains_over_ray(self) -> bool:
        """Whether the trainer is an actor in a Ray cluster, on GPUs."""
        return self.training_backend == "slime"

    @property
    def policy_frozen(self) -> bool:
        """Whether this is a control run: everything as usual, but no update changes the policy."""
        return self.learning_rate == 0.0

    @property
    def judge_port(self) -> int:
        """The port the judge listens on."""
        return port_of(self.judge_url, "GUIDANCE_JUDGE_URL")

    @property
    def reef_port(self) -> int:
        """The port Reef listens on."""
        return port_of(self.service_url, "reef.port")

    @classmethod
    def load(
        cls, environ: Mapping[str, str], *, root: Path = PROJECT_ROOT, readings: dict[str, Reading] | None = None
    ) -> RunConfig:
        """Read and check all settings; raises `ConfigError` for the first thing that is wrong.

        `readings` is filled with what each variable may be and its default.
        """
        env = Environ(environ, readings)
        profile_name = env.choice("GUIDANCE_PROFILE", "local", tuple(PROFILES))
        profile = PROFILES[profile_name]
        task = env.choice("GUIDANCE_TASK", "polyomino_packing", tuple(TASKS))
        state_dir = _path(env.get("GUIDANCE_STATE_DIR") or f"work/{task}", root)
        model_name = env.get("GUIDANCE_MODEL") or profile.model_name
        model_path = _path(env.get("GUIDANCE_MODEL_PATH") or f"work/models/{model_name.rsplit('/', 1)[-1]}", root)
        config_path = _path(env.get("GUIDANCE_CONFIG") or profile.config_file, root)
        scenario = f"guidance-ttt-{task.replace('_', '-')}"
        service_environ = {
            "GUIDANCE_STATE_DIR": str(state_dir),
            "GUIDANCE_MODEL_PATH": str(model_path),
            "GUIDANCE_SCENARIO": scenario,
            "GUIDANCE_REEF_PORT": str(env.integer("GUIDANCE_REEF_PORT", 8900, 1, 65535)),
            "GUIDANCE_REEF_TOKEN": env.get("GUIDANCE_REEF_TOKEN") or _state_token(state_dir),
            "GUIDANCE_GROUPS": str(env.integer("GUIDANCE_GROUPS", 2, 1, 4096)),
            "GUIDANCE_ROLLOUTS": str(env.integer("GUIDANCE_ROLLOUTS", 4, 2, 4096)),
            "GUIDANCE_RUN_SEED": str(env.integer("GUIDANCE_RUN_SEED", 1, 0, MAX_SEED)),
            "GUIDANCE_LEARNING_RATE": _asked_learning_rate(env, profile),
        }
        service_environ["GUIDANCE_GLOBAL_BATCH"] = str(
            int(service_environ["GUIDANCE_GROUPS"]) * int(service_environ["GUIDANCE_ROLLOUTS"])
        )
        yaml = YamlValues(load_settings(config_path, {**environ, **service_environ}), config_path)
        grid = _grid(env, yaml)
        executor = env.choice("GUIDANCE_EXECUTOR", profile.executor, EXECUTORS)
        limits = _limits(env, yaml)
        return cls(
            profile=profile_name,
            task=task,
            task_dir=root / "harbor" / task,
            state_dir=state_dir,
            config_path=config_path,
            model_name=model_name,
            model_path=model_path,
            scenario=scenario,
            service_url=f"http://127.0.0.1:{yaml.integer('reef', 'port', low=1, high=65535)}",
            token=yaml.text("reef", "token"),
            judge_url=env.url("GUIDANCE_JUDGE_URL", f"http://127.0.0.1:{TASKS[task].judge_port}"),
            judge_problem_id=env.get("GUIDANCE_SEARCH_PROBLEM")
            or yaml.optional_text("training", "config", "judge_problem_id")
            or (TASKS[task].quick_problem if profile.quick_search else None),
            verifier_timeout_s=env.number("GUIDANCE_VERIFIER_TIMEOUT", TASKS[task].verifier_timeout_s, above=0.0),
            executor=executor,
            backend=_backend(env, executor, limits.executor),
            groups=grid[0],
            rollouts=grid[1],
            steps=env.integer("GUIDANCE_STEPS", yaml.integer("training", "config", "steps", low=1), 1, 1_000_000),
            max_tokens=yaml.integer("training", "config", "max_tokens", low=1),
            sequence_length=yaml.integer("training", "config", "seq_length", low=2),
            training_backend=yaml.optional_text("training", "backend") or profile.training_backend,
            lora_rank=yaml.integer("training", "config", "lora_rank", low=1),
            learning_rate=_learning_rate(env, yaml, service_environ["GUIDANCE_LEARNING_RATE"]),
            kl_coef=yaml.number("training", "options", "kl-coef", low=0.0),
            tensor_parallel_size=yaml.integer("training", "config", "tensor_parallel_size", low=1, default=1),
            train_timeout_s=env.number("GUIDANCE_TRAIN_TIMEOUT", 14400.0, above=0.0),
            policy_timeout_s=env.number("GUIDANCE_POLICY_TIMEOUT", 1800.0, above=0.0),
            prompt_style=env.choice(
                "GUIDANCE_PROMPT_STYLE",
                yaml.optional_text("training", "config", "prompt_style") or profile.prompt_style,
                PROMPT_STYLES,
            ),
            limits=limits,
            stop_rules=_stop_rules(env, grid[0] * grid[1]),
            remeasured_programs=env.integer("GUIDANCE_REMEASURE", 3 if TASKS[task].timed else 0, 0, 100),
            run_seed=int(service_environ["GUIDANCE_RUN_SEED"]),
            environment=env.choice("GUIDANCE_ENVIRONMENT", "auto", ENVIRONMENTS),
            quiet=env.flag("GUIDANCE_QUIET"),
            wandb_project=(env.get("WANDB_PROJECT") or WANDB_PROJECT) if env.flag("GUIDANCE_WANDB") else None,
            seed_path=_path(seed, root) if (seed := env.get("GUIDANCE_SEED")) else None,
            service_environ=service_environ,
        )._checked(env)

    def _checked(self, env: Environ) -> RunConfig:
        if self.trains_over_ray and self.run_seed == 0:
            raise ConfigError("GUIDANCE_RUN_SEED=0 cannot seed the GPU trainer (Megatron wants a positive seed); use 1")
        if self.stop_rules.max_cost_usd is not None and self.executor == "openai" and self.backend.price is None:
            raise ConfigError(
                f"GUIDANCE_MAX_COST={self.stop_rules.max_cost_usd:g} needs to know what {self.backend.model} costs: "
                "set GUIDANCE_EXECUTOR_PRICE to dollars per million tokens, prompt/completion, such as 0.5/2"
            )
        key = self.backend.api_key_env
        if key is not None and env.get(key) is None:
            raise ConfigError(f"GUIDANCE_EXECUTOR={self.executor} needs a key: set {key}")
        if self.max_tokens >= self.sequence_length:
            raise ConfigError(
                f"training.config.max_tokens={self.max_tokens} leaves no room for a prompt in "
                f"training.config.seq_length={self.sequence_length}; lower the first or raise the second"
            )
        context = model_context_length(self.model_path)
        if context is not None and self.sequence_length > context:
            raise ConfigError(
                f"training.config.seq_length={self.sequence_length} exceeds what the model at {self.model_path} can "
                f"hold ({context} tokens); lower it in {self.config_path.name} or choose another model"
            )
        return self


def model_context_length(model_path: Path) -> int | None:
    """`max_position_embeddings` of a Hugging Face directory; None while the model is not there yet."""
    config = model_path / "config.json"
    if not config.is_file():
        return None
    try:
        value = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"the model's {config} cannot be read: {error}") from error
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def option_key(yaml: YamlValues, *names: str) -> str:
    """The first of several spellings of one training option that the file uses."""
    return next((name for name in names if yaml.raw("training", "options", name) is not None), names[0])


def _path(text: str, root: Path) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else root / path


def _state_token(state_dir: Path) -> str:
    """Reef's bearer token for this state directory; made once, readable by its owner only."""
    path = state_dir / "stack" / "reef-token"
    if path.is_file():
        return path.read_text(encoding="ascii").strip()
    token = secrets.token_urlsafe(24)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(token + "\n", encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"the state directory {state_dir} is not writable: {error}; set GUIDANCE_STATE_DIR"
        ) from error
    return token


def _grid(env: Environ, yaml: YamlValues) -> tuple[int, int]:
    groups = yaml.integer("recipe", "config", "groups-per-step", low=1)
    rollouts = yaml.integer("recipe", "config", "rollouts-per-group", low=2)
    for name, value in (("GUIDANCE_GROUPS", groups), ("GUIDANCE_ROLLOUTS", rollouts)):
        asked = env.get(name)
        if asked is not None and int(asked) != value:
            raise ConfigError(
                f"{name}={asked} has no effect: the config file fixes this value at {value}; change it there"
            )
    if yaml.raw("training", "options", "global-batch-size") is not None:
        batch = yaml.integer("training", "options", "global-batch-size", low=1)
        if batch != groups * rollouts:
            raise ConfigError(
                f"training.options.global-batch-size={batch} must equal recipe.config.groups-per-step x "
                f"rollouts-per-group = {groups} x {rollouts} = {groups * rollouts}"
            )
    return groups, rollouts


def _asked_learning_rate(env: Environ, profile: Profile) -> str:
    """What the environment asks for, as text for the config file: 0 for a frozen policy."""
    rate = env.number("GUIDANCE_LEARNING_RATE", profile.learning_rate, above=0.0)
    return "0" if env.flag("GUIDANCE_FREEZE_POLICY") else repr(rate)


def _learning_rate(env: Environ, yaml: YamlValues, asked: str) -> float:
    """The learning rate that the file sets; raises `ConfigError` when the environment asks for another one."""
    option = option_key(yaml, "learning-rate", "lr")
    rate = yaml.number("training", "options", option, low=0.0)
    for name in ("GUIDANCE_LEARNING_RATE", "GUIDANCE_FREEZE_POLICY"):
        text = env.get(name)
        if text is not None and rate != float(asked) and (name != "GUIDANCE_FREEZE_POLICY" or env.flag(name)):
            raise ConfigError(
                f"{name}={text} has no effect: the config file fixes training.options.{option} at {rate:g}; "
                "write ${GUIDANCE_LEARNING_RATE:?} there"
            )
    return rate


def _limits(env: Environ, yaml: YamlValues) -> Limits:
    def limit(kind: str, default: int) -> int:
        configured = yaml.integer("training", "config", f"{kind}_concurrency", low=1, high=4096, default=default)
        return env.integer(f"GUIDANCE_{kind.upper()}_CONCURRENCY", configured, 1, 4096)

    return Limits(policy=limit("policy", 128), executor=limit("executor", 16), judge=limit("judge", 8))


def _stop_rules(env: Environ, grid_size: int) -> StopRules:
    """When the run ends early; raises `ConfigError` for a budget that allows no step at all."""
    evaluations = env.integer("GUIDANCE_MAX_EVALUATIONS", 0, 1, 10**9) or None
    if evaluations is not None and evaluations < grid_size:
        raise ConfigError(f"GUIDANCE_MAX_EVALUATIONS={evaluations} allows no step: one takes {grid_size} evaluations")
    return StopRules(
        max_evaluations=evaluations,
        max_time_s=env.optional_number("GUIDANCE_MAX_TIME", above=0.0),
        max_cost_usd=env.optional_number("GUIDANCE_MAX_COST", above=0.0),
        target_score=env.optional_number("GUIDANCE_TARGET_SCORE"),
        patience=env.integer("GUIDANCE_PATIENCE", 0, 1, 10**6) or None,
    )


def _price(env: Environ) -> Price | None:
    """`GUIDANCE_EXECUTOR_PRICE`: dollars per million prompt and completion tokens, as `0.5/2`."""
    text = env.get("GUIDANCE_EXECUTOR_PRICE")
    if text is None:
        return None
    parts = [as_number(part) for part in text.split("/")]
    if len(parts) != 2 or any(part is None or part < 0 for part in parts):
        raise ConfigError(
            f"GUIDANCE_EXECUTOR_PRICE={text!r} is not a price: give dollars per million tokens, prompt/completion, "
            "such as 0.5/2"
        )
    return Price(parts[0] or 0.0, parts[1] or 0.0)


def _backend(env: Environ, executor: str, concurrency: int) -> ExecutionBackend:
    url = env.url("GUIDANCE_EXECUTOR_URL", DEFAULT_EXECUTOR_URL)
    model = env.get("GUIDANCE_EXECUTOR_MODEL")
    if executor == "openai" and (env.get("GUIDANCE_EXECUTOR_URL") is None or model is None):
        raise ConfigError("GUIDANCE_EXECUTOR=openai needs GUIDANCE_EXECUTOR_URL and GUIDANCE_EXECUTOR_MODEL")
    makers: dict[str, Callable[[], ExecutionBackend]] = {
        "offline": lambda: offline_backend(url),
        "openai": lambda: openai_backend(url, model or "", key_env=env.get("GUIDANCE_EXECUTOR_KEY_ENV")),
        "local": lambda: gpt_oss_120b_backend(base_url=url),
        "openrouter": openrouter_glm_5_2_backend,
    }
    backend = makers[executor]()
    max_tokens = env.integer("GUIDANCE_EXECUTOR_MAX_TOKENS", 0, 1, 10_000_000) or backend.max_tokens
    return replace(
        backend,
        concurrency=concurrency,
        max_tokens=max_tokens,
        price=_price(env) or backend.price,
        timeout_s=env.number("GUIDANCE_EXECUTOR_TIMEOUT", backend.timeout_s, above=0.0),
    )
