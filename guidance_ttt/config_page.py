"""Writes docs/configuration.md: `python -m guidance_ttt.config_page > docs/configuration.md`.

What a variable may be and its default are taken from the code that reads it (`RunConfig.load` tells of every reading),
the keys of the YAML file from the table behind `inspect --config` and the two shipped files.  Only what a setting means
is written down here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from guidance_ttt.config_view import ROWS
from harness.config import EXECUTORS, PROFILES, PROJECT_ROOT, TASKS, WANDB_PROJECT, RunConfig
from harness.setting_values import TEXT, Reading
from harness.settings_file import load_settings, setting

HEAD = """# Settings

Environment variables win over the YAML file, the YAML file over the profile's defaults. An empty variable counts as
unset; an unknown value is refused before anything starts, by name and with the choices. `guidance-ttt inspect --config`
shows the settings that a run started now would have, and where each comes from.

This page is made: `.venv/bin/python -m guidance_ttt.config_page > docs/configuration.md`.
"""


@dataclass(frozen=True)
class Entry:
    """What a variable means; `kind` and `default` only where the code that reads it cannot tell."""

    meaning: str
    kind: str = ""
    default: str = ""


@dataclass(frozen=True)
class Section:
    """Variables that belong together."""

    title: str
    entries: Mapping[str, Entry]


def by_value(values: Mapping[str, object]) -> str:
    """`1 (a, b), 2 (c)`: each value once, with everything that has it."""
    holders: dict[object, list[str]] = {}
    for key, value in values.items():
        holders.setdefault(value, []).append(f"`{key}`")
    return ", ".join(
        f"{'-' if value is None else shown(value)} ({', '.join(keys)})" for value, keys in holders.items()
    )


def shown(value: object) -> str:
    """A value as the page writes it."""
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return f"`{value}`" if isinstance(value, str) else str(value)


LIMIT = "no step begins that would exceed it, judging by the largest so far; a higher limit continues the run"
SECTIONS: tuple[Section, ...] = (
    Section(
        "The run",
        {
            "GUIDANCE_TASK": Entry("a directory under `harbor/`"),
            "GUIDANCE_PROFILE": Entry("one ordinary machine, or a GPU deployment ([the GPU profile](gpu.md))"),
            "GUIDANCE_CONFIG": Entry(
                "the YAML that Reef and the search both read: grid, limits, learning rate, ...",
                "path",
                by_value({name: profile.config_file for name, profile in PROFILES.items()}),
            ),
            "GUIDANCE_STATE_DIR": Entry(
                "where the run keeps everything ([state](state.md))", "path", "`work/<task>`"
            ),
            "GUIDANCE_STEPS": Entry("training steps in all, not in addition"),
            "GUIDANCE_GROUPS": Entry("parents of one step"),
            "GUIDANCE_ROLLOUTS": Entry("guidance texts for each parent; four or more learn better than two"),
            "GUIDANCE_RUN_SEED": Entry("seeds the guidance samples, the initial adapter and all ids"),
            "GUIDANCE_SEED": Entry(
                "another program to start from, with a `.md` summary beside it; or a `library.json` of another run",
                "path",
                "the task's `solution/seed.*`",
            ),
            "GUIDANCE_QUIET": Entry("print warnings, errors and the result only; also `./run.sh --quiet`"),
        },
    ),
    Section(
        "When it stops early",
        {
            "GUIDANCE_MAX_EVALUATIONS": Entry(f"judged programs of the whole run: {LIMIT}"),
            "GUIDANCE_MAX_TIME": Entry("the same for seconds spent in steps"),
            "GUIDANCE_MAX_COST": Entry("the same for dollars paid to the executor"),
            "GUIDANCE_TARGET_SCORE": Entry("stop once the best score reaches this"),
            "GUIDANCE_PATIENCE": Entry("stop after so many updates in a row without a better program"),
            "GUIDANCE_REMEASURE": Entry(
                "how many of the best programs are measured again, three times in turn, before the best mean is "
                "submitted"
            ),
        },
    ),
    Section(
        "The policy and its training",
        {
            "GUIDANCE_MODEL": Entry(
                "the policy's name", TEXT, by_value({name: profile.model_name for name, profile in PROFILES.items()})
            ),
            "GUIDANCE_MODEL_PATH": Entry(
                "any local Llama- or Qwen3-like Hugging Face directory", "path", "`work/models/<name>`"
            ),
            "GUIDANCE_PROMPT_STYLE": Entry("worked examples for small models, none for large ones"),
            "GUIDANCE_LEARNING_RATE": Entry("Adam's step size"),
            "GUIDANCE_FREEZE_POLICY": Entry(
                "a control run: same grid, seeds and search, but no update changes the policy (learning rate 0); also "
                "`./run.sh --freeze-policy`"
            ),
            "GUIDANCE_POLICY_TIMEOUT": Entry("seconds for one guidance request"),
            "GUIDANCE_TRAIN_TIMEOUT": Entry("seconds for one update"),
            "GUIDANCE_POLICY_CONCURRENCY": Entry("guidance requests in flight"),
            "GUIDANCE_REEF_PORT": Entry("Reef's port"),
            "GUIDANCE_REEF_TOKEN": Entry("Reef's bearer token", "text", "made once per state directory"),
        },
    ),
    Section(
        "The executor",
        {
            "GUIDANCE_EXECUTOR": Entry(
                "the catalogue, any compatible server, gpt-oss-120b on a server of one's own, or GLM-5.2; "
                "[recipes](executors.md)"
            ),
            "GUIDANCE_EXECUTOR_URL": Entry("base URL, with `/v1`; not for `openrouter`"),
            "GUIDANCE_EXECUTOR_MODEL": Entry("for `openai`: the model's name"),
            "GUIDANCE_EXECUTOR_KEY_ENV": Entry("for `openai`: the *name* of the variable that holds the key"),
            "GUIDANCE_EXECUTOR_MAX_TOKENS": Entry("tokens of one answer with its reasoning; unset: the server's limit"),
            "GUIDANCE_EXECUTOR_TIMEOUT": Entry("seconds for one call with its retries"),
            "GUIDANCE_EXECUTOR_CONCURRENCY": Entry("calls in flight"),
            "GUIDANCE_EXECUTOR_PRICE": Entry(
                "dollars per million tokens, prompt/completion, such as `0.5/2`",
                "two numbers",
                "the server's own account, else unknown",
            ),
        },
    ),
    Section(
        "The judge and the trial",
        {
            "GUIDANCE_JUDGE_URL": Entry("the judge; a loopback one is started by `./run.sh`"),
            "GUIDANCE_JUDGE_ARGS": Entry("further options of that judge, such as `--workers 2`", "options"),
            "GUIDANCE_SEARCH_PROBLEM": Entry(
                "the judge's problem that the search scores on; the Harbor verifier always uses the contract's",
                "text",
                "the task's quick problem (`local`), else the contract's",
            ),
            "GUIDANCE_VERIFIER_TIMEOUT": Entry("seconds for one verdict, from when it runs"),
            "GUIDANCE_JUDGE_CONCURRENCY": Entry("verdicts in flight"),
            "GUIDANCE_ENVIRONMENT": Entry(
                "the trial's environment: Docker, a bubblewrap jail, or `auto`: Docker where a daemon answers and the "
                "judge is not on loopback, which a container cannot reach"
            ),
            "FRONTIERCS_DIR": Entry(
                "a FrontierCS checkout: the polyomino judge uses its official cases instead of our own set", "path"
            ),
        },
    ),
    Section(
        "Around the run",
        {
            "GUIDANCE_WANDB": Entry("send each step's numbers to [W&B](wandb.md)"),
            "WANDB_PROJECT": Entry("the W&B project that they go to", TEXT, f"`{WANDB_PROJECT}`"),
            "GUIDANCE_REUSE_SERVICES": Entry(
                "use services that already run instead of refusing their ports", "`1` or `0`", "0"
            ),
            "GUIDANCE_PYTHON": Entry("set-up: the interpreter to use", "path", "the first one found"),
            "GUIDANCE_TORCH_INDEX": Entry(
                "set-up: an index to take torch from (PyTorch's CPU index saves several GB)", "URL", "as locked"
            ),
        },
    ),
)
MADE_FOR_THE_FILE = ("GUIDANCE_SCENARIO", "GUIDANCE_GLOBAL_BATCH")
"""Set by the launcher for `${...}` in the YAML file; setting them has no effect."""

FILE_MEANINGS: Mapping[str, str] = {
    "max_tokens": "longest guidance, in tokens, thinking included",
    "sequence_length (tokens)": "longest prompt plus guidance",
    "training_backend": "what trains: this project's engine, or Slime/Megatron",
    "lora_rank": "rank of the adapter",
    "kl_coef": "pull towards the frozen base model",
    "tensor_parallel_size": "GPUs that share one copy of the trained model",
}


def page() -> str:
    """The whole page."""
    readings = Readings()
    parts = [HEAD]
    for section in SECTIONS:
        rows = [variable_row(name, entry, readings) for name, entry in section.entries.items()]
        parts.append(_table(section.title, ("variable", "values", "default", "meaning"), rows))
    files = [f"`{profile.config_file}`" for profile in PROFILES.values()]
    parts.append(_table("Only in the YAML file", ("key", *files, "meaning"), file_rows()))
    return "\n".join(parts)


class Readings:
    """Every variable's reading under each task, executor and profile, because some defaults depend on these."""

    def __init__(self) -> None:
        self.by_task = {task: _read(GUIDANCE_TASK=task) for task in TASKS}
        self.by_executor = {name: _read(GUIDANCE_EXECUTOR=name) for name in EXECUTORS}
        self.by_profile = {name: _read(GUIDANCE_PROFILE=name) for name in PROFILES}

    def names(self) -> set[str]:
        """All variables of this project that were read."""
        found = {name for group in self._groups() for reading in group.values() for name in reading}
        return {name for name in found if name.startswith(("GUIDANCE_", "WANDB_"))}

    def of(self, name: str) -> Reading | None:
        """One reading of the variable, if anything reads it."""
        return next((found[name] for group in self._groups() for found in group.values() if name in found), None)

    def default(self, name: str) -> str:
        """Its default, with what it depends on."""
        for group in self._groups():
            values = {key: found[name].default for key, found in group.items() if name in found}
            if len(set(values.values())) > 1:
                return by_value(values)
        reading = self.of(name)
        return "-" if reading is None or reading.default is None else shown(reading.default)

    def _groups(self) -> tuple[Mapping[str, Mapping[str, Reading]], ...]:
        return self.by_task, self.by_executor, self.by_profile


def _read(**environ: str) -> dict[str, Reading]:
    """How each variable is read under these settings; writes nothing."""
    readings: dict[str, Reading] = {}
    filled = {
        "GUIDANCE_REEF_TOKEN": "unused",
        "GUIDANCE_WANDB": "1",
        "OPENROUTER_API_KEY": "unused",
        "GUIDANCE_MODEL_PATH": "/nowhere",
    }
    if environ.get("GUIDANCE_EXECUTOR") == "openai":
        filled |= {"GUIDANCE_EXECUTOR_URL": "http://127.0.0.1:1/v1", "GUIDANCE_EXECUTOR_MODEL": "any"}
    RunConfig.load({**filled, **environ}, root=PROJECT_ROOT, readings=readings)
    return readings


def variable_row(name: str, entry: Entry, readings: Readings) -> tuple[str, ...]:
    """One line of a table of variables."""
    reading = readings.of(name)
    kind = entry.kind or (TEXT if reading is None else reading.kind)
    keys = [".".join(row.key) for row in ROWS if row.key and row.variables[-1:] == (name,)]
    in_file = f" (in the file: `{keys[0]}`)" if keys else ""
    return f"`{name}`", kind, entry.default or readings.default(name), entry.meaning + in_file


def file_rows() -> list[tuple[str, ...]]:
    """The settings that no variable reaches, with their values in the shipped files."""
    files = [load_settings(PROJECT_ROOT / profile.config_file, AnyValue()) for profile in PROFILES.values()]
    rows = []
    for row in ROWS:
        if row.key and not row.variables:
            values = [setting(content, *row.key) for content in files]
            told = ["-" if value is None else shown(value) for value in values]
            rows.append((f"`{'.'.join(row.key)}`", *told, FILE_MEANINGS[row.name]))
    return rows


class AnyValue(Mapping[str, str]):
    """An environment in which every variable is set."""

    def __getitem__(self, name: str) -> str:
        return "0"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    line = partial("| {} |".format)
    lines = [line(" | ".join(columns)), line(" | ".join("---" for _ in columns))]
    return "\n".join([f"## {title}", "", *lines, *(line(" | ".join(row)) for row in rows), ""])


if __name__ == "__main__":
    sys.stdout.write(page())
