"""A jail in which Python, torch and, where there is one, the GPU can be used.

It is the sandbox of every judge with three additions: the running interpreter and its packages are shown read-only at
their own paths, the GPU's devices are passed in, and what the jail's unprivileged user could not reach on the host
(root's home is private) is first bound, in a mount namespace of its own, to a place that it can reach.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from judges.errors import SandboxFault, SandboxUnavailable
from judges.sandbox import MIB, Bind, Command, Limits, Sandbox, Tier
from judges.sandbox.cgroup import CGROUP_ROOT, CgroupTree
from judges.sandbox.detect import open_cgroups
from judges.sandbox.jail import LAUNCHER_PATH, NOBODY, Jail, Tools
from judges.sandbox.sandbox import make_scratch_root

GPU_CONTROL_DEVICE = Path("/dev/nvidiactl")
_CODE_ROOT = Path(__file__).resolve().parents[2]
_DRIVER_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
_PASSED_ON = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_STAGE = """
while [ "$1" = stage ]; do mount --bind -- "$2" "$3" || exit 125; shift 3; done
exec "$@"
"""
PROBE_LIMITS = Limits(
    cpu_s=120.0, wall_s=120.0, memory_bytes=4096 * MIB, pids=256, stdout_bytes=1 * MIB, open_files=1024,
    address_space_bytes=1 << 46, scratch_bytes=64 * MIB, file_bytes=64 * MIB,
)  # fmt: skip
_PROBE = """
import json, sys
sys.path[:0] = sys.argv[1].split(":")
import torch
device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
try:
    import triton
    kernels = triton.__version__
except ImportError:
    kernels = None
print(json.dumps({"torch": torch.__version__, "triton": kernels, "gpu": device, "cuda": torch.version.cuda}))
"""


@dataclass(frozen=True)
class PythonRuntime:
    """The interpreter that runs candidates, and every host path that it needs to see."""

    executable: str
    site: tuple[str, ...]
    binds: tuple[Bind, ...]
    code_root: str = str(_CODE_ROOT)

    @classmethod
    def of_this_process(cls, *, headers: bool) -> PythonRuntime:
        """The one that runs the judge; `headers` also shows what compiling an extension module takes."""
        executable = Path(os.path.realpath(sys.executable))
        paths = sysconfig.get_paths()
        site = tuple(dict.fromkeys((paths["purelib"], paths["platlib"])))
        # The virtual environment's own `stdlib` is the base installation's.
        shown = [executable, Path(paths["stdlib"]), Path(paths["platstdlib"]), *map(Path, site)]
        if sysconfig.get_config_var("Py_ENABLE_SHARED"):
            shown.append(Path(str(sysconfig.get_config_var("LIBDIR"))) / str(sysconfig.get_config_var("INSTSONAME")))
        if headers:
            shown.append(Path(paths["include"]))
        shown.append(_CODE_ROOT / "judges")
        binds = [Bind(path, str(path)) for path in dict.fromkeys(shown) if path.exists()]
        return cls(str(executable), site, tuple(binds))


@dataclass(frozen=True)
class PythonJail(Jail):
    """A jail with more to see; `staged` maps hidden bind sources to the mount points they are staged at."""

    staged: Mapping[Path, Path] = field(default_factory=dict)
    gpu: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def argv(self, command: Command, join_files: tuple[Path, ...], status_fd: int) -> list[str]:
        """The full command line: staging goes after the launcher, the additions before the root is made read-only."""
        binds = tuple(replace(bind, source=self.staged.get(bind.source, bind.source)) for bind in command.binds)
        line = super().argv(replace(command, binds=binds), join_files, status_fd)
        if self.tier is Tier.UNSAFE:
            return line
        place = line.index("--remount-ro")
        line[place:place] = self._additions()
        if self.staged:
            launcher = 5 + len(join_files)
            line[launcher:launcher] = self._staging()
        return line

    def _staging(self) -> list[str]:
        words = ["unshare", "--mount", "--propagation", "private", "--", str(self.tools.sh), "-c", _STAGE, "sh"]
        for source, point in self.staged.items():
            words += ["stage", str(source), str(point)]
        return words

    def _additions(self) -> list[str]:
        words = ["--proc", "/proc"]
        for name, value in self.environment.items():
            words += ["--setenv", name, value]
        if not self.gpu:
            return words
        words += ["--tmpfs", "/dev/shm", "--ro-bind-try", "/sys", "/sys"]
        for device in [Path("/dev/zero"), Path("/dev/urandom"), *sorted(Path("/dev").glob("nvidia*"))]:
            words += ["--dev-bind", str(device), str(device)]
        driver = driver_directory()
        if driver is not None:
            # The compiler of kernels asks `ldconfig` otherwise, whose cache is not there.
            words += ["--setenv", "TRITON_LIBCUDA_PATH", driver]
            if not driver.startswith("/usr/lib"):
                words += ["--ro-bind", driver, driver, "--setenv", "LD_LIBRARY_PATH", driver]
        return words


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA driver at work; says nothing about torch."""
    return GPU_CONTROL_DEVICE.exists()


def driver_directory() -> str | None:
    """Where the driver's library lies."""
    return next((place for place in _DRIVER_DIRS if (Path(place) / "libcuda.so.1").exists()), None)


def open_python_sandbox(outer: Sandbox, runtime: PythonRuntime, *, gpu: bool) -> Sandbox:
    """A sandbox of the same tier whose jail shows Python; the caller closes it.

    `SandboxUnavailable` names what the jail's user cannot reach when that cannot be mended here.
    """
    host_uid = NOBODY if os.geteuid() == 0 else None
    tools = Tools.find()
    if outer.tier is Tier.UNSAFE and tools.setpriv is None:
        host_uid = None
    tree: CgroupTree | None = open_cgroups(CGROUP_ROOT) if outer.tier is Tier.CGROUP else None
    scratch = make_scratch_root(host_uid)
    staged = _stage(runtime.binds, scratch) if host_uid is not None else {}
    environment = {name: os.environ[name] for name in _PASSED_ON if gpu and name in os.environ}
    jail = PythonJail(
        tools=tools, tier=outer.tier, host_uid=host_uid, staged=staged, gpu=gpu, environment=environment
    )
    return Sandbox(jail, tree, scratch)


def _stage(binds: tuple[Bind, ...], scratch: Path) -> dict[Path, Path]:
    """A mount point for every bind source that an unprivileged user cannot reach."""
    staged: dict[Path, Path] = {}
    for bind in binds:
        if not _is_hidden(bind.source):
            continue
        point = scratch / f"stage-{len(staged)}"
        if bind.source.is_dir():
            point.mkdir()
        else:
            point.touch()
        staged[bind.source] = point
    return staged


def _is_hidden(path: Path) -> bool:
    """Whether others may not enter one of the directories above a path."""
    return any(not parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def probe_runtime(sandbox: Sandbox, runtime: PythonRuntime) -> dict[str, Any]:
    """Versions and GPU as the jail sees them; `SandboxUnavailable` when torch cannot be imported in there."""
    argv = (runtime.executable, "-I", "-S", "-c", _PROBE, ":".join(runtime.site))
    try:
        result = sandbox.run(Command(argv, PROBE_LIMITS, runtime.binds, workdir="/tmp"))
    except SandboxFault as error:
        raise SandboxUnavailable(f"Python does not start in the sandbox: {error}; {_CURE}") from error
    if not result.accepted:
        said = result.stderr[-400:].decode("utf-8", errors="replace").strip()
        raise SandboxUnavailable(f"torch cannot be used in the sandbox ({result.status.value}): {said}; {_CURE}")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


_CURE = (
    "the sandbox's user must be able to read this project, its virtual environment and its Python: try "
    f"chmod -R o+rX on them, or run the judge as an ordinary user (PATH for its tools: {LAUNCHER_PATH})"
)
