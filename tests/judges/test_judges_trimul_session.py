"""Candidates that cheat, break or leave, each in a process of its own: none of them is called correct or fast.

The processes come from a fork server that has imported torch already, so that each costs milliseconds.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from judges.trimul import timing
from judges.trimul.bench import CandidateFault, Session
from judges.trimul.cases import CAUCHY, NORMAL, Case, Rules
from judges.trimul.host import serve_socket
from judges.trimul.wire import Link, LinkBroken

CASES = (Case(8, 1, 16, NORMAL, False, 5), Case(8, 1, 16, NORMAL, True, 6), Case(8, 2, 16, CAUCHY, False, 7))
LIMIT_S = 60.0

HONEST = """
import torch
F = torch.nn.functional

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
WRAPPED = HONEST.replace("def custom_kernel", "def honest")


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "judges.trimul.host", "judges.trimul.blobs"])
    return context


Start = Callable[..., Session]


@pytest.fixture
def start(forks: ForkServerContext, tmp_path: Path) -> Iterator[Start]:
    """`start(code)` gives a session with the module in a fresh process, ready but not loaded."""
    running = []

    def begin(code: str, rules: Rules | None = None) -> Session:
        submission = tmp_path / "submission.py"
        submission.write_text(code, encoding="utf-8")
        ours, theirs = socket.socketpair()
        process = forks.Process(target=serve_socket, args=(theirs, tmp_path, submission, "cpu"))
        process.start()
        theirs.close()
        link = Link(ours)
        running.append((process, link))
        session = Session(link, "cpu", tmp_path, time.monotonic() + LIMIT_S, rules or Rules())
        session.expect_ready()
        return session

    yield begin
    for process, link in running:
        link.close()
        process.kill()
        process.join()


def check(session: Session) -> None:
    session.load()
    session.check_all(CASES)


def refusal(session: Session) -> str:
    with pytest.raises(CandidateFault) as caught:
        check(session)
    return str(caught.value)


def test_an_honest_module_is_correct_on_every_case(start: Start, tmp_path: Path) -> None:
    check(start(HONEST))
    assert list(tmp_path.glob("block-*")) == []


def test_a_module_that_overwrites_its_inputs_is_still_correct(start: Start) -> None:
    check(start(WRAPPED + "\ndef custom_kernel(data):\n    data[0].copy_(honest(data))\n    return data[0]\n"))


def test_a_module_that_ignores_the_mask_fails_and_passes_only_under_the_quirks(start: Start) -> None:
    maskless = HONEST.replace("mask.to(x.dtype).unsqueeze(-1)", "1.0")
    said = refusal(start(maskless))
    assert said.startswith("test 2 (seqlen 8, batch 1, dim 16, normal, masked): ")
    assert "elements are wrong; at [" in said
    check(start(maskless, Rules(quirks=True)))


WRONG = {
    "returns its input": "def custom_kernel(data):\n    return data[0]",
    "returns zeros": "import torch\ndef custom_kernel(data):\n    return torch.zeros_like(data[0])",
    "returns memory that nothing was written to": "import torch\ndef custom_kernel(data):\n"
    "    return torch.full_like(data[0], float('nan'))",
    "keeps the first result of a shape": WRAPPED
    + """
kept = {}
def custom_kernel(data):
    key = data[0].shape
    if key not in kept:
        kept[key] = honest(data).clone()
    return kept[key]
""",
    "fills the result in later": WRAPPED
    + """
import threading, time
def custom_kernel(data):
    result = torch.zeros_like(data[0])
    def later():
        time.sleep(0.3)
        result.copy_(honest(data))
    threading.Thread(target=later, daemon=True).start()
    return result
""",
    "teaches torch that everything is equal": """
import torch
torch.allclose = torch.equal = lambda *a, **k: True
torch.Tensor.__eq__ = torch.Tensor.__le__ = lambda self, other: torch.ones_like(self, dtype=torch.bool)
torch.testing.assert_close = lambda *a, **k: None
def custom_kernel(data):
    return data[0] * 0
""",
    "replaces the checks in its own process": """
import sys, types
import judges.trimul
fake = types.ModuleType("judges.trimul.formula")
fake.mismatch = lambda got, want: None
sys.modules["judges.trimul.formula"] = fake
def custom_kernel(data):
    return data[0] * 0
""",
    "is a tensor that lies about itself": """
import torch
class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.detach or function is torch.Tensor.contiguous:
            return args[0]
        return super().__torch_function__(function, types, args, kwargs or {})
    def __eq__(self, other):
        return True
def custom_kernel(data):
    return torch.zeros_like(data[0]).as_subclass(Liar)
""",
    "writes the tolerance into the input file": """
import torch
def custom_kernel(data):
    data[0].fill_(0)
    for name in data[2]:
        data[2][name].fill_(0)
    data[1].fill_(0)
    return torch.zeros_like(data[0])
""",
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_module_that_does_not_compute_is_wrong(start: Start, what: str) -> None:
    assert "elements are wrong" in refusal(start(WRONG[what]))


BROKEN = {
    "import error": ("import no_such_module", "No module named 'no_such_module'"),
    "syntax error": ("def custom_kernel(data)\n    pass", "SyntaxError"),
    "no function": ("x = 1", "defines no function custom_kernel"),
    "not text": ("def custom_kernel(data):\n    return '\\x00'", "returned str, not a tensor"),
    "raises": ("def custom_kernel(data):\n    raise ValueError('too hard')", "ValueError: too hard"),
    "exits while it is imported": ("import sys\nsys.exit(0)", "SystemExit"),
    "exits in the call": ("def custom_kernel(data):\n    raise SystemExit(0)", "SystemExit"),
    "leaves while it is imported": ("import os\nos._exit(0)", "it broke off: the other side ended"),
    "leaves in the call": ("import os\ndef custom_kernel(data):\n    os._exit(0)", "it broke off: the other side"),
    "kills itself": ("import os\ndef custom_kernel(data):\n    os.kill(os.getpid(), 9)", "it broke off"),
    "wrong shape": (WRAPPED + "def custom_kernel(data):\n    return honest(data)[..., :3]", "has shape (1, 8, 8, 3)"),
    "wrong type": (WRAPPED + "def custom_kernel(data):\n    return honest(data).half()", "result is of torch.float16"),
    "odd type": (WRAPPED + "def custom_kernel(data):\n    return honest(data) > 0", "a tensor of torch.bool"),
    "too large": (
        WRAPPED + "def custom_kernel(data):\n    return honest(data).repeat(1, 9, 1, 1)",
        "claims 36864 bytes of data where at most 8192",
    ),
    "nothing in it": (WRAPPED + "def custom_kernel(data):\n    return honest(data)[:0]", "has shape (0, 8, 8, 16)"),
}


@pytest.mark.parametrize("what", list(BROKEN))
def test_a_broken_module_is_the_candidates_fault_with_its_reason(start: Start, what: str) -> None:
    code, reason = BROKEN[what]
    said = refusal(start(code))
    assert reason in said
    assert len(said) < 3000


FORGER = """
import gc, os, socket, struct
def say(text, payload=b""):
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket) and thing.fileno() >= 0:
            thing.sendall(struct.pack("!IQ", len(text), len(payload)) + text + payload)
"""
FORGERIES = {
    "a result before the call": 'say(b\'{"loaded": true}\')\n'
    'say(b\'{"shape": [1, 8, 8, 16], "dtype": "float32"}\', bytes(4096))',
    "no JSON": 'say(b"[")',
    "no object": 'say(b"[1]")',
    "an endless header": 'say(b" " * (1 << 21))',
    "a negative shape": 'say(b\'{"loaded": true}\')\nsay(b\'{"shape": [-1], "dtype": "float32"}\')',
    "a shape of text": 'say(b\'{"loaded": true}\')\nsay(b\'{"shape": "8", "dtype": "float32"}\')',
    "a huge shape": 'say(b\'{"loaded": true}\')\nsay(b\'{"shape": [1000000, 1000000], "dtype": "float32"}\')',
    "an unknown type": 'say(b\'{"loaded": true}\')\nsay(b\'{"shape": [1], "dtype": "complex64"}\')',
    "deep JSON": 'say(b"[" * 100000)',
    "a success of its own": 'say(b\'{"loaded": true, "report": {"failure": null, "stage": "done", "latency_us": 1}}\')',
}


@pytest.mark.parametrize("what", list(FORGERIES))
def test_messages_that_a_module_forges_get_it_nowhere(start: Start, what: str) -> None:
    refusal(start(f"{FORGER}{FORGERIES[what]}\ndef custom_kernel(data):\n    return data[0]\n"))


def test_a_module_that_never_answers_runs_into_the_limit(start: Start) -> None:
    session = start("import time\ndef custom_kernel(data):\n    time.sleep(3600)")
    session.deadline = time.monotonic() + 0.5
    assert "did not answer within the time limit" in refusal(session)


def test_a_process_that_ends_before_it_has_loaded_anything_is_not_the_candidates_fault(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    session = Session(Link(ours), "cpu", tmp_path, time.monotonic() + LIMIT_S, Rules())
    theirs.close()
    with pytest.raises(LinkBroken):
        session.expect_ready()


# --- timing; the clock and the rules are the same on a GPU ------------------------------------------------------------


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_RUNS", 4)


CLOCKS = """
import time
real_sleep = time.sleep
time.perf_counter = time.monotonic = time.time = lambda: 0.0
time.perf_counter_ns = time.monotonic_ns = lambda: 0
class Event:
    def __init__(self, **k): pass
    def record(self, *a): pass
    def synchronize(self): pass
    def elapsed_time(self, other): return 1e-6
torch.cuda.Event = Event
torch.cuda.synchronize = lambda *a: None
def custom_kernel(data):
    real_sleep(0.03)
    return honest(data)
"""


@pytest.mark.usefixtures("few_runs")
def test_a_module_that_turns_back_every_clock_it_can_reach_is_timed_all_the_same(start: Start) -> None:
    session = start(WRAPPED + CLOCKS)
    overheads = session.overheads_us(CASES[:1])
    session.load()
    (report,) = session.time_all(CASES[:1], [0.0], 11)
    assert report["best_us"] >= 30_000
    assert (report["runs"], report["benchmark"], report["overhead_us"]) == (4, 1, 0.0)
    assert overheads[0] > 0


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize(
    "key", ["data[0].shape", "data[0].data_ptr()", "float(data[0][0, 0, 0, 0])", "tuple(data[2])"]
)
def test_results_kept_from_earlier_runs_are_wrong_or_not_used(start: Start, key: str) -> None:
    """A kept result is only ever right when it was made from the very same numbers, and no two runs have those."""
    session = start(
        WRAPPED
        + f"""
kept = {{}}
hits = 0
def custom_kernel(data):
    global hits
    key = {key}
    if key in kept:
        hits += 1
        return kept[key]
    kept[key] = honest(data).clone()
    return kept[key]
"""
    )
    session.load()
    said = ""
    try:
        session.time_all(CASES[:1], [0.0], 11)
    except CandidateFault as fault:
        said = str(fault)
    if key in ("data[0].shape", "tuple(data[2])"):
        assert "elements are wrong" in said
    else:
        assert not said or "elements are wrong" in said


@pytest.mark.usefixtures("few_runs")
def test_a_module_that_is_right_at_first_and_then_stops_computing_has_no_time(start: Start) -> None:
    session = start(
        WRAPPED
        + """
calls = 0
def custom_kernel(data):
    global calls
    calls += 1
    return honest(data) if calls < 3 else data[0]
"""
    )
    session.load()
    with pytest.raises(CandidateFault, match=r"benchmark 1 \(.*elements are wrong"):
        session.time_all(CASES[:1], [0.0], 11)


@pytest.mark.usefixtures("few_runs")
def test_every_run_has_inputs_and_weights_of_its_own(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "seen"
    session = start(
        WRAPPED
        + f"""
def custom_kernel(data):
    with open({str(log)!r}, "a") as stream:
        stream.write(f"{{float(data[0].sum())}} {{float(data[2]['to_out.weight'].sum())}}\\n")
    return honest(data)
"""
    )
    session.load()
    session.time_all(CASES[:1], [0.0], 11)
    seen = [line.split() for line in log.read_text().splitlines()]
    assert len(seen) >= 5
    assert len({x for x, _ in seen}) == len({w for _, w in seen}) == len(seen)
