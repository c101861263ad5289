"""Settings, keys, the task's files, and whether the state directory can be continued with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from guidance_ttt.config_view import view_config
from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.run_health import read_holder
from guidance_ttt.status import read_status
from harness.bootstrap import load_seed
from harness.config import RunConfig
from harness.contract import load_task
from harness.errors import GuidanceError, StateError, TaskInvalid

SETTINGS = "settings"
KEYS = "keys"
TASK = "task"
STATE = "state"
_MODEL_HUB_KEY = "HF_TOKEN"
_PRINTABLE = re.compile(r"[\x21-\x7e]+")


def check_settings(context: Context) -> Iterator[Finding]:
    """What a run started now would be, and variables that nothing reads."""
    config = context.settings
    yield ok(
        SETTINGS,
        f"profile {config.profile}, task {config.task}, {config.steps} step(s) of {config.groups} x {config.rollouts}, "
        f"from {config.config_path}",
    )
    yield ok(
        SETTINGS,
        f"time limits: {config.policy_timeout_s:g} s a guidance text, {config.backend.timeout_s:g} s an executor call "
        f"({config.backend.max_retries} retries), {config.verifier_timeout_s:g} s a verdict, "
        f"{config.train_timeout_s:g} s an update",
    )
    for line in view_config(context.environ).unused:
        yield warning(SETTINGS, line, "correct its name, or unset it")


# --- keys -------------------------------------------------------------------------------------------------------------


def check_keys(context: Context) -> Iterator[Finding]:
    """Whether the keys that these settings use are there; values are never shown, not even in part."""
    config = context.settings
    name = config.backend.api_key_env
    if name is None:
        yield ok(KEYS, f"executor {config.executor} needs none")
    else:
        yield key_finding(name, context.environ, f"executor {config.executor}")
    to_download = config.profile == "gpu" and not config.model_path.is_dir()
    if to_download and not context.environ.get(_MODEL_HUB_KEY, "").strip():
        yield warning(
            KEYS,
            f"{_MODEL_HUB_KEY} is not set, and {config.model_name} has to be downloaded",
            f"set {_MODEL_HUB_KEY} if the model hub asks for one, or name a directory with GUIDANCE_MODEL_PATH",
        )


def key_finding(name: str, environ: Mapping[str, str], owner: str) -> Finding:
    """One key by its name: set and usable, or why not."""
    value = environ.get(name, "").strip()
    if not value:
        return failure(KEYS, f"{owner} needs a key, and {name} is not set", f"set {name}, or choose another executor")
    if not _PRINTABLE.fullmatch(value):
        return failure(
            KEYS,
            f"the key in {name} holds blanks or characters that no HTTP header can carry",
            f"set {name} again, to the key alone",
        )
    return ok(KEYS, f"{name} is set ({owner})")


# --- the task ---------------------------------------------------------------------------------------------------------


def check_task(context: Context) -> Iterator[Finding]:
    """The task's statement and contract, and the seed program with its summary."""
    config = context.settings
    try:
        contract = load_task(config.task_dir)
        seed = load_seed(config.task_dir, contract, config.seed_path)
    except (TaskInvalid, StateError) as error:
        yield failure(TASK, str(error), "restore the task's files, or name another seed with GUIDANCE_SEED")
        return
    yield ok(
        TASK,
        f"{config.task}: {contract.language_label}, {contract.raw_score_label} ({contract.score_direction}), "
        f"seed {seed.path.name} of {len(seed.code.splitlines())} lines",
    )


# --- the state directory ----------------------------------------------------------------------------------------------


def check_state(context: Context) -> Iterator[Finding]:
    """Whether the directory is new, can be continued with these settings, or is in use."""
    config = context.settings
    if not config.run_dir.is_dir():
        yield ok(STATE, f"{config.state_dir} holds no run yet")
        return
    try:
        status = read_status(config.state_dir)
    except GuidanceError as error:
        yield failure(STATE, str(error), "restore it from a backup, or choose a new GUIDANCE_STATE_DIR")
        return
    yield from state_findings(config, context.environ, status.steps_done, status.problems)


def state_findings(
    config: RunConfig, environ: Mapping[str, str], steps_done: int, problems: Sequence[str]
) -> Iterator[Finding]:
    """The position, and everything that would make the next run refuse the directory."""
    holder = read_holder(config.run_dir)
    differences = view_config(environ).differences
    if differences:
        yield failure(
            STATE,
            f"{config.state_dir} belongs to other settings: {'; '.join(differences)}",
            "set these back, or choose a new GUIDANCE_STATE_DIR",
        )
    for problem in problems:
        yield failure(STATE, problem, "restore it from a backup, or choose a new GUIDANCE_STATE_DIR")
    where = f"{config.state_dir}: {steps_done} of {config.steps} step(s) done"
    if holder is not None and holder.live is not False:
        yield warning(STATE, f"{where}; {holder.describe()}", "a second run is refused until that one has ended")
    elif not differences and not problems:
        complete = steps_done >= config.steps
        yield ok(STATE, where + ("; raise GUIDANCE_STEPS to go on" if complete else "; a run goes on from there"))
