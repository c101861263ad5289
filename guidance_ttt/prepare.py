"""The seed of a task before a run: where the bundled one is, or the published one, fetched at its pinned commit.

A fetch leaves `<state>/<checkout>` (a git checkout of that one file), `<state>/bootstrap.<ext>` and its summary
`<state>/bootstrap.md`.  Nothing of it is run, and nothing that differs is ever replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.bootstrap import load_seed
from harness.config import PROJECT_ROOT, TASKS
from harness.contract import load_task
from harness.errors import ConfigError, GuidanceError, StateMismatch
from harness.storage import write_bytes

FETCH_TIMEOUT_S = 300.0
EXIT_FAILED, EXIT_USAGE = 1, 2
SUMMARY_FILE = "bootstrap-summary.md"
# No hook, filter, credential prompt or helper of the fetched repository or of this user is started.
_GIT_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "protocol.ext.allow=never",
    "advice.detachedHead=false",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    "init.defaultBranch=main",
)
_GIT_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}


class FetchFailed(GuidanceError):
    """The published bootstrap could not be fetched, or is not what was published."""


@dataclass(frozen=True)
class PinnedBootstrap:
    """Where a published bootstrap is: one file of one commit."""

    repository: str
    commit: str
    checkout: str
    """Name of the checkout's folder in the state directory."""
    path: str
    licence: str
    sha256: str | None = None
    note: str = ""

    @property
    def host(self) -> str:
        """The machine to fetch from, for messages."""
        return urlsplit(self.repository).hostname or self.repository


_DISCOVER = "https://github.com/test-time-training/discover.git"
_DISCOVER_COMMIT = "6c40e82dab9d5de7416ac873ad5cd3106084aaed"
PINS: Mapping[str, PinnedBootstrap] = {
    "lasso_path": PinnedBootstrap(
        repository="https://github.com/wq-will/SimpleTES.git",
        commit="47d3413da1d85dc24341219d47452d2601e56a57",
        checkout="SimpleTES",
        path="datasets/numerical_tasks/lasso_path/init_program.py",
        licence="AGPL-3.0",
        sha256="778c81aba5a75534614f4f454d57536117e53b9eb175a0af474d4d6b6cc1d6ae",
    ),
    "ahc058": PinnedBootstrap(
        repository=_DISCOVER,
        commit=_DISCOVER_COMMIT,
        checkout="discover",
        path="results/algorithm-design/ahc058.cpp",
        licence="MIT",
        sha256="32d7cc7272fec19f4dbd35b4d04717ce78b8b89b1c593a2537f902af212ee19c",
        note="it uses almost all of its 2 s on every case, so on a busy machine the judge may call it too slow",
    ),
    "trimul": PinnedBootstrap(
        repository=_DISCOVER,
        commit=_DISCOVER_COMMIT,
        checkout="discover",
        path="results/kernel-engineering/trimul.py",
        licence="MIT",
        note="it never applies the mask, so the judge accepts it only with --reference-quirks; no hash of it was "
        "published",
    ),
}
"""Task -> its published bootstrap; a task that is not listed has none."""


def main(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    pins: Mapping[str, PinnedBootstrap] = PINS,
    root: Path = PROJECT_ROOT,
) -> int:
    """Carry out one command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _prepare(options, environ, pins, root)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except GuidanceError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="prepare.py", description="Make a task's seed program ready; runs nothing.")
    parser.add_argument("task", choices=tuple(TASKS), metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="default: GUIDANCE_STATE_DIR, else work/<task>"
    )
    parser.add_argument("--pinned", action="store_true", help="fetch the published bootstrap at its pinned commit")
    parser.add_argument(
        "--source", metavar="URL_OR_DIR", help="fetch from here instead, such as a local clone (with --pinned)"
    )
    parser.add_argument(
        "--timeout-seconds", type=_seconds, default=FETCH_TIMEOUT_S, metavar="S", help="limit of each git command"
    )
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _prepare(
    options: argparse.Namespace, environ: Mapping[str, str], pins: Mapping[str, PinnedBootstrap], root: Path
) -> None:
    if options.source and not options.pinned:
        raise ConfigError("--source names where to fetch from, so it needs --pinned")
    task_dir = root / "harbor" / options.task
    contract = load_task(task_dir)
    pin = pins.get(options.task)
    if not options.pinned:
        seed = load_seed(task_dir, contract)
        print(f"{options.task}: the seed is bundled: {seed.path} (summary: {seed.path.with_suffix('.md')})")
        print(f"score it with: .venv/bin/python smoke.py {options.task}")
        if pin is not None:
            print(f"the published bootstrap can be fetched with: .venv/bin/python prepare.py {options.task} --pinned")
        return
    if pin is None:
        raise ConfigError(
            f"{options.task} has no pinned checkout; its seed is bundled in {task_dir / 'solution'}: leave --pinned out"
        )
    state_dir = _state_dir(options, environ, root)
    source = options.source or pin.repository
    program = fetch_bootstrap(pin, state_dir, source=source, timeout_s=options.timeout_seconds)
    suffix = Path(contract.source_file.name).suffix
    target = state_dir / f"bootstrap{suffix}"
    summary = (task_dir / SUMMARY_FILE).read_bytes()
    for path, data in ((target, program), (target.with_suffix(".md"), summary)):
        _require_replaceable(path, data)
    write_bytes(target, program)
    write_bytes(target.with_suffix(".md"), summary)
    print(f"{options.task}: {pin.path} of {pin.commit[:12]} ({pin.licence}) is now {target}")
    print(f"SHA-256 {hashlib.sha256(program).hexdigest()}" + (" as published" if pin.sha256 else ""))
    if pin.note:
        print(f"note: {pin.note}")
    print(f"start from it with: GUIDANCE_SEED={target}")


def _state_dir(options: argparse.Namespace, environ: Mapping[str, str], root: Path) -> Path:
    if options.state_dir is not None:
        return Path(options.state_dir).expanduser().absolute()
    named = Path(environ.get("GUIDANCE_STATE_DIR", "").strip() or f"work/{options.task}").expanduser()
    return named if named.is_absolute() else root / named


def _require_replaceable(path: Path, data: bytes) -> None:
    if path.exists() and path.read_bytes() != data:
        raise StateMismatch(
            f"{path} exists and is different; move it away (or name another --state-dir) to get the published one"
        )


# --- fetching ---------------------------------------------------------------------------------------------------------


def fetch_bootstrap(pin: PinnedBootstrap, state_dir: Path, *, source: str, timeout_s: float) -> bytes:
    """The pinned file, out of a checkout that is made when it is not there yet.

    Raises `FetchFailed` (no network, no such commit, another hash) or `StateMismatch` (a checkout that is not exactly
    the pin).
    """
    if shutil.which("git") is None:
        raise FetchFailed("git is missing; install it with: apt-get install -y git")
    checkout = state_dir / pin.checkout
    if checkout.exists() and any(checkout.iterdir()):
        _require_pinned(checkout, pin, timeout_s)
        if not (checkout / pin.path).exists():
            # The same checkout serves two tasks, each of which needs one file of it.
            _git(["sparse-checkout", "add", "--skip-checks", f"/{pin.path}"], checkout, pin, timeout_s)
    else:
        _make_checkout(checkout, pin, source, timeout_s)
    program = _read_regular(checkout, pin)
    found = hashlib.sha256(program).hexdigest()
    if pin.sha256 is not None and found != pin.sha256:
        raise FetchFailed(f"{checkout / pin.path} has SHA-256 {found}, published was {pin.sha256}; it is not used")
    return program


def _make_checkout(checkout: Path, pin: PinnedBootstrap, source: str, timeout_s: float) -> None:
    """Fetch the pinned commit alone, without history and without files, then check one file out.

    It happens beside its final place, so that a fetch that was cut off is never taken for a checkout.
    """
    url = str(Path(source).expanduser().absolute()) if "://" not in source else source
    with _folder_beside(checkout) as folder:
        for command in (
            ["init", "--quiet"],
            ["remote", "add", "origin", f"file://{url}" if url.startswith("/") else url],
            ["sparse-checkout", "set", "--no-cone", f"/{pin.path}"],
            ["fetch", "--quiet", "--depth", "1", "--filter=blob:none", "--no-tags", "origin", pin.commit],
            ["checkout", "--quiet", "--detach", pin.commit],
        ):
            _git(command, folder, pin, timeout_s, source=url)
        if checkout.exists():
            checkout.rmdir()  # an empty one; `rename` would refuse it on some systems
        folder.rename(checkout)


@contextlib.contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise FetchFailed(f"cannot write to {target.parent}: {error.strerror}; name another --state-dir") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_pinned(checkout: Path, pin: PinnedBootstrap, timeout_s: float) -> None:
    """Raise unless an existing checkout is exactly the pinned commit."""
    try:
        top = _git(["rev-parse", "--show-toplevel"], checkout, pin, timeout_s).strip()
        head = _git(["rev-parse", "HEAD"], checkout, pin, timeout_s).strip()
        changed = _git(["status", "--porcelain", "--untracked-files=no"], checkout, pin, timeout_s).strip()
    except FetchFailed as error:
        raise StateMismatch(f"{checkout} is there but is no usable git checkout ({error}); move it away") from error
    if Path(top).resolve() != checkout.resolve():
        raise StateMismatch(f"{checkout} is there but is no git checkout of its own; move it away")
    if head != pin.commit:
        raise StateMismatch(f"{checkout} is at commit {head}, pinned is {pin.commit}; move it away")
    if changed:
        raise StateMismatch(f"{checkout} has changed files ({changed.splitlines()[0].strip()}, ...); move it away")


def _read_regular(checkout: Path, pin: PinnedBootstrap) -> bytes:
    path = checkout / pin.path
    if path.is_symlink() or not path.resolve().is_relative_to(checkout.resolve()) or not path.is_file():
        raise FetchFailed(f"{pin.path} is no ordinary file of commit {pin.commit}")
    return path.read_bytes()


def _git(
    command: list[str], folder: Path, pin: PinnedBootstrap, timeout_s: float, *, source: str | None = None
) -> str:
    """Run one git command in `folder`; `FetchFailed` with git's own last words."""
    settings = [word for setting in _GIT_SETTINGS for word in ("-c", setting)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _GIT_ENVIRONMENT
    process = subprocess.Popen(
        ["git", *settings, "-C", str(folder), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,  # so that git's own helpers end with it
    )
    try:
        output, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise FetchFailed(_unreachable(pin, source, f"no answer within {timeout_s:g} s")) from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return output
    words = next((line for line in reversed(said.strip().splitlines()) if line.strip()), "no message")
    if command[0] in ("fetch", "checkout") and source is not None:
        raise FetchFailed(_unreachable(pin, source, words))
    raise FetchFailed(f"git {command[0]} failed: {words}")


def _unreachable(pin: PinnedBootstrap, source: str | None, reason: str) -> str:
    place = (urlsplit(source).hostname or source) if source is not None else pin.host
    return (
        f"commit {pin.commit[:12]} could not be fetched from {place}: {reason}. Check the network to {place}, or name "
        "a local clone with --source DIR; a search needs neither, because every task has a bundled seed (leave "
        "--pinned out)"
    )


