"""The GPU profile's runtime: devices, Ray, SGLang, Slime, Megatron, their pins, and what the container must allow.

Slime is not on the package index and its parts are pinned to each other, so a deployment takes them from one image;
docs/gpu.md says which.  Whether the parts really load is tried in a process of its own.
"""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from guidance_ttt import ports
from guidance_ttt.doctor.model import Context, Finding, failure, ok, warning
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.plan import GPU_MODULES
from harness.settings_file import load_settings, setting

GPU = "gpu"
IMAGE = "run inside the image that docs/gpu.md describes, or use GUIDANCE_PROFILE=local"
SHM_BYTES = 64 << 30
STACK_BYTES = 67_108_864
LOAD_S = 240.0
DEFAULT_DEVICES = "0,1"


@dataclass(frozen=True)
class Pin:
    """One part's version, and what goes wrong with another."""

    distribution: str
    versions: str
    why: str


PINS = (
    Pin("torch", "==2.11.*", "the image's kernels are built for it"),
    Pin("transformers", "==5.12.1", "newer ones collide with what this SGLang registers itself"),
    Pin("numpy", "==1.26.4", "remnants of numpy 2 break the compiled packages"),
    Pin("peft", ">=0", "adapters are read and written with it"),
    Pin("megatron-core", "==0.16.0rc0", "the trainer's sources are of this version"),
    Pin("megatron-bridge", "==0.4.2", "0.5 needs megatron-core 0.18 or newer"),
)
FLASHINFER = Pin("flashinfer-python", ">=0.7.0", "older ones can compute wrong attention")

LOAD_SCRIPT = """
import importlib, sys
for name in ("ray", "sglang", "slime.backends", "megatron.core", "megatron.bridge"):
    try:
        importlib.import_module(name)
        print(name, "loads")
    except BaseException as error:
        print(name, "fails:", type(error).__name__, " ".join(str(error).split())[:200])
try:
    from reef.inference.sglang.lora_schema import require_lora_tensor_request_schema
    require_lora_tensor_request_schema()
    print("adapter-receiver", "loads")
except BaseException as error:
    print("adapter-receiver", "fails:", type(error).__name__, " ".join(str(error).split())[:200])
"""


def check_gpu(context: Context) -> Iterator[Finding]:
    """Everything of this area; the slow try of loading the parts only when they are all there."""
    config, probes, environ = context.settings, context.probes, context.environ
    settings = load_settings(config.config_path, {**environ, **config.service_environ})
    wanted = setting(settings, "training", "config", "num_gpus")
    yield from device_findings(probes, environ, int(wanted) if str(wanted).isdecimal() else 1)
    missing = [name for name in GPU_MODULES if not probes.has_module(name)]
    for name in missing:
        yield failure(GPU, f"the Python module {name} is not installed", IMAGE)
    triton = setting(settings, "inference", "options", "attention-backend") == "triton"
    yield from pin_findings(probes, attention_is_triton=triton)
    yield from environment_findings(environ, environ.get("REEF_INFERENCE_HOST", "").strip() or ports.own_address())
    yield from container_findings(_shm_bytes(), *_limits())
    if not missing:
        context.tell(f"loading Ray, SGLang, Slime and Megatron once (at most {LOAD_S:g} s)")
        ran = probes.run((sys.executable, "-c", LOAD_SCRIPT), timeout_s=LOAD_S, env=dict(environ))
        yield from load_findings(None if ran is None else ran.output)


def device_findings(probes: Probes, environ: Mapping[str, str], wanted: int) -> Iterator[Finding]:
    """The devices that the driver shows and that the service may use, against what the config file asks for."""
    query = ("nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader")
    ran = probes.run(query) if probes.which("nvidia-smi") else None
    if ran is None or ran.code != 0:
        why = "nvidia-smi is not there" if ran is None else f"nvidia-smi says: {ran.first_line[:200]}"
        yield failure(GPU, f"no NVIDIA driver answers ({why})", "install it; in a container: run that with --gpus")
        return
    devices = [line.strip() for line in ran.output.splitlines() if line.strip()]
    visible = [item for item in environ.get("CUDA_VISIBLE_DEVICES", DEFAULT_DEVICES).split(",") if item.strip()]
    usable = min(len(devices), len(visible))
    fact = f"{len(devices)} device(s): {'; '.join(devices)}; {usable} for the policy, {wanted} asked for"
    if usable < wanted:
        lower = "lower num_gpus and tensor_parallel_size in training.config"
        yield failure(GPU, fact, f"name more devices in CUDA_VISIBLE_DEVICES, or {lower}")
    else:
        yield ok(GPU, fact)
    if any("B200" in device for device in devices) and environ.get("NCCL_NVLS_ENABLE") != "0":
        yield warning(
            GPU, "on B200 nodes Megatron can hang at start-up with idle devices", "set NCCL_NVLS_ENABLE=0 if it does"
        )


def pin_findings(probes: Probes, *, attention_is_triton: bool) -> Iterator[Finding]:
    """Each pinned part's version."""
    wrong = False
    for pin in (*PINS, *(() if attention_is_triton else (FLASHINFER,))):
        version = probes.installed(pin.distribution)
        if version is None:
            wrong = True
            yield failure(GPU, f"{pin.distribution} is not installed ({pin.versions})", IMAGE)
        elif not SpecifierSet(pin.versions).contains(version.split("+")[0], prereleases=True):
            wrong = True
            other = "; or set inference.options.attention-backend: triton" if pin is FLASHINFER else ""
            yield failure(
                GPU, f"{pin.distribution} {version} is installed, {pin.versions} is needed: {pin.why}", IMAGE + other
            )
    if not wrong:
        yield ok(GPU, "pinned packages: " + ", ".join(f"{pin.distribution} {pin.versions}" for pin in PINS[:-1]))


def environment_findings(environ: Mapping[str, str], own_address: str | None) -> Iterator[Finding]:
    """Variables that the runtime needs; `own_address` is where this machine's engines will be reached."""
    if environ.get("SGLANG_DISABLE_CUDNN_CHECK") != "1":
        yield warning(
            GPU, "SGLANG_DISABLE_CUDNN_CHECK is not 1: SGLang may refuse the image's cuDNN", "set it to 1"
        )
    if not own_address:
        yield warning(
            GPU,
            "this machine's own address is not known, and the engines' router does not listen on loopback",
            "set REEF_INFERENCE_HOST to it",
        )
    joined = environ.get("RAY_ADDRESS", "").strip()
    yield ok(GPU, "Reef joins the Ray cluster in RAY_ADDRESS" if joined else "Reef starts a Ray runtime of its own")


def container_findings(shm_bytes: int | None, memlock: int, stack: int) -> Iterator[Finding]:
    """Shared memory and limits, as `docker run` sets them."""
    if shm_bytes is not None and shm_bytes < SHM_BYTES:
        size = f"{shm_bytes / (1 << 30):.0f} GiB"
        fact = f"/dev/shm holds {size}, and workers exchange tensors there"
        yield warning(GPU, fact, "run the container with --shm-size 64g")
    if memlock != resource.RLIM_INFINITY:
        yield warning(GPU, f"locked memory is limited to {memlock} bytes", "run the container with --ulimit memlock=-1")
    if stack != resource.RLIM_INFINITY and stack < STACK_BYTES:
        yield warning(
            GPU, f"the stack is limited to {stack} bytes", f"run the container with --ulimit stack={STACK_BYTES}"
        )


def load_findings(output: str | None) -> Iterator[Finding]:
    """What came of loading each part once."""
    if output is None:
        yield failure(GPU, f"the parts did not load within {LOAD_S:g} s", "try again; a busy disk is slow at first")
        return
    broken = False
    for line in output.splitlines():
        name, _, rest = line.partition(" ")
        if rest.startswith("fails: "):
            broken = True
            what = "SGLang cannot receive adapters" if name == "adapter-receiver" else f"{name} does not load"
            yield failure(GPU, f"{what}: {rest.removeprefix('fails: ')}", IMAGE)
    if not broken:
        yield ok(GPU, "Ray, SGLang, Slime and Megatron load, and SGLang can receive adapters")


def _shm_bytes() -> int | None:
    try:
        return shutil.disk_usage(Path("/dev/shm")).total
    except OSError:
        return None


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], resource.getrlimit(resource.RLIMIT_STACK)[0]
