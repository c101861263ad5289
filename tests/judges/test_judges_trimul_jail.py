"""The TriMul judge with its real jail: torch and Triton work in there, the host and the judge cannot be reached."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from judges_testkit import JudgeProcess, first_line, groups_of_this_process, scratch_of_this_process

from judges.protocol import Submission
from judges.sandbox import Sandbox
from judges.trimul import command, jail
from judges.trimul.cases import NORMAL, Case
from judges.trimul.jail import PythonRuntime, open_python_sandbox
from judges.trimul.judge import Mode, TriMulJudge

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

# Computes the right result, and before that tries to reach what it must not; any success is an exception.
PRYING = """
import ctypes, os, socket
from pathlib import Path
import torch
F = torch.nn.functional

def must_fail(what, call):
    try:
        found = call()
    except OSError:
        return
    raise RuntimeError(f"could {what}: {found!r:.100}")

parent = os.getppid()
must_fail("read the judge's memory", lambda: open(f"/proc/{parent}/mem", "rb").read(1))
must_fail("see the judge's connections", lambda: os.listdir(f"/proc/{parent}/fd"))
must_fail("reach the judge again", lambda: socket.socket(socket.AF_UNIX).connect("/w/shared/link"))
must_fail("reach the network", lambda: socket.create_connection(("127.0.0.1", 22), 1))
must_fail("write to the judge's code", lambda: open(__import__("judges").__file__, "a").write("#"))
must_fail("write to the packages", lambda: Path(torch.__file__).with_name("planted").touch())
must_fail("read accounts", lambda: open("/etc/passwd").read())
must_fail("write to the root", lambda: Path("/planted").touch())
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, parent, None, None) != -1:
    raise RuntimeError("could trace the judge")
PROJECT = Path(__import__("judges").__file__).parents[1]
if [path.name for path in PROJECT.iterdir() if path.name not in ("judges", ".venv")]:
    raise RuntimeError("could see the project")

def custom_kernel(data):
    x, mask, w, config = data
    keep = mask.to(x.dtype).unsqueeze(-1)
    x = F.layer_norm(x, (config["dim"],), w["norm.weight"], w["norm.bias"])
    left = F.linear(x, w["left_proj.weight"]) * keep * torch.sigmoid(F.linear(x, w["left_gate.weight"]))
    right = F.linear(x, w["right_proj.weight"]) * keep * torch.sigmoid(F.linear(x, w["right_gate.weight"]))
    o = torch.einsum("bikh,bjkh->bijh", left, right)
    o = F.layer_norm(o, (config["hidden_dim"],), w["to_out_norm.weight"], w["to_out_norm.bias"])
    return F.linear(o * torch.sigmoid(F.linear(x, w["out_gate.weight"])), w["to_out.weight"])
"""


class SmallMode(Mode):
    """The order of a GPU machine, with cases that a CPU does at once."""

    tests = (Case(8, 1, 16, NORMAL, False, 5), Case(8, 1, 16, NORMAL, True, 6))
    benchmarks = (Case(8, 2, 16, NORMAL, True, 7),)


def test_beside_the_judge_in_one_jail_a_module_is_timed_and_can_reach_nothing(sandbox: Sandbox) -> None:
    runtime = PythonRuntime.of_this_process(headers=False)
    mode = SmallMode(device="cpu", in_jail=True, budget_s=120.0)
    judge = TriMulJudge(open_python_sandbox(sandbox, runtime, gpu=False), runtime, mode, {})
    try:
        verdict = judge.judge(Submission("0" * 32, "trimul", "python", PRYING.encode()))
    finally:
        judge.stop()
    assert verdict.valid, verdict.message
    assert verdict.score == pytest.approx(1500 / verdict.score_unbounded)
    (report,) = verdict.artifacts["benchmarks"]
    assert report["mean_us"] == pytest.approx(verdict.score_unbounded)
    assert report["runs"] >= 3
    assert report["overhead_us"] > 0
    assert len(scratch_of_this_process()) == 1, "only the session's own sandbox is left"
    assert groups_of_this_process() == []


def test_the_seed_with_its_triton_kernel_is_correct_where_there_is_no_gpu(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "has_gpu", lambda: False)
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    judge = command.open_judge(parser.parse_args(["--correctness-only", "--max-seqlen", "32"]), sandbox)
    try:
        health = judge.describe()
        assert (health["suite"], health["timed"], health["tests"]) == ("correctness-only seqlen<=32", False, 3)
        assert (health["device"], health["runtime"]["gpu"]) == ("cpu", None)
        assert health["runtime"]["torch"]
        code = (ROOT / "harbor/trimul/solution/seed.py").read_bytes()
        verdict = judge.judge(Submission("0" * 32, "trimul", "python", code))
    finally:
        judge.stop()
    assert (verdict.valid, verdict.score) == (True, 1.0), verdict.message
    assert "not timed" in verdict.message
    assert groups_of_this_process() == []


@pytest.mark.skipif(jail.has_gpu(), reason="this machine has a GPU, so a kernel can be timed")
def test_without_a_gpu_the_real_server_answers_that_it_cannot_time(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "judges", "trimul", "--port", "0", "--state-dir", str(tmp_path / "state")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    judge = JudgeProcess(process, url="", banner=first_line(process))
    try:
        found = re.search(r"http://\S+", judge.banner)
        assert found, judge.banner
        url = found.group(0)
        form = {"pid": "trimul", "lang": "python"}
        sid = httpx.post(f"{url}/submit", data=form, files={"code": b"def custom_kernel(data): ..."}).json()["sid"]
        deadline = time.monotonic() + 60
        while (result := httpx.get(f"{url}/result/{sid}").json())["status"] in ("queued", "running"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (result["status"], result["failureDomain"]) == ("environment_error", "infrastructure")
        assert (result["valid"], result["score"]) == (False, 0.0)
        assert "no CUDA device" in result["message"]
        assert httpx.get(f"{url}/health").json()["can_judge"] is False
        assert judge.stop() == 0
    finally:
        process.kill()
        process.communicate()
