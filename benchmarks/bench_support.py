"""What the benchmarks share: the policy model, measuring rivals in alternation, memory, and facts of the machine.

Other programs make a machine faster and slower from one minute to the next.  Two times are therefore compared only
when they were taken in turn, round by round, and a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_MODEL = ROOT / "work" / "models" / "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Rounds:
    """Seconds of each competitor in each round; the lists are equally long and round i of all was one after the
    other.

    `cpu_s` is the processor time of the same calls, over all threads.  It leaves out the time in which other programs
    had the cores, and so says more on a busy machine; with a GPU it says nothing.
    """

    times_s: Mapping[str, Sequence[float]]
    cpu_s: Mapping[str, Sequence[float]]

    def median_s(self, name: str) -> float:
        """A competitor's median time."""
        return statistics.median(self.times_s[name])

    def medians_s(self) -> dict[str, float]:
        """Every competitor's median time."""
        return {name: self.median_s(name) for name in self.times_s}

    def speedup(self, name: str, over: str) -> float:
        """How many times as fast `name` is as `over`: the median of the rounds' ratios."""
        return _median_ratio(self.times_s[over], self.times_s[name])

    def cpu_speedup(self, name: str, over: str) -> float:
        """The same for processor time."""
        return _median_ratio(self.cpu_s[over], self.cpu_s[name])


def alternating(competitors: Mapping[str, Callable[[], object]], *, repeats: int, warm_ups: int = 1) -> Rounds:
    """Time competing calls in turn, `repeats` rounds of each; every second round goes through them backwards.

    A call must be synchronous: on CUDA it ends with a synchronisation of its own.
    """
    order = list(competitors)
    for _ in range(warm_ups):
        for name in order:
            competitors[name]()
    times: dict[str, list[float]] = {name: [] for name in order}
    cpu: dict[str, list[float]] = {name: [] for name in order}
    for number in range(repeats):
        for name in order if number % 2 == 0 else reversed(order):
            gc.collect()
            started, cpu_started = time.perf_counter(), time.process_time()
            competitors[name]()
            cpu[name].append(time.process_time() - cpu_started)
            times[name].append(time.perf_counter() - started)
    return Rounds(times, cpu)


def model_directory(path: Path) -> Path:
    """`path` when it holds a model; exits with the cure otherwise."""
    if not (path / "config.json").is_file():
        cure = "run `guidance-ttt model` first" if path == DEFAULT_MODEL else "name a Hugging Face model directory"
        sys.exit(f"error: {path} holds no model; {cure}, or another with --model")
    return path


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def peak_memory_mb() -> float:
    """The most memory this process has had resident.

    Linux's own mark is taken where there is one: `getrusage` counts, in a child, what its parent had before the exec.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_part(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script in a process of its own, so that its memory is only its own, and return the JSON that it prints."""
    finished = subprocess.run([sys.executable, script, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def machine_facts() -> dict[str, Any]:
    """What a time depends on: processor, cores, load, and the libraries that compute (when they are loaded)."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts |= {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
        if torch.cuda.is_available():
            facts["cuda_device"] = torch.cuda.get_device_name()
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        facts["transformers"] = transformers.__version__
    return facts


def print_result(result: Mapping[str, Any]) -> None:
    """One JSON object on standard output, with numbers short enough to read."""
    print(json.dumps(_rounded(result), indent=2))


def _median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    return statistics.median(top / bottom for top, bottom in zip(numerators, denominators, strict=True))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()
