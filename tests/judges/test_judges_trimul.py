"""The TriMul judge's own mathematics: cases, inputs, reference, comparison, timing rules and verdicts."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from judges.errors import JudgeError
from judges.protocol import BadSubmission, Submission, verdict_result
from judges.trimul import command, formula, jail, timing
from judges.trimul.cases import BENCHMARKS, CAUCHY, NORMAL, TESTS, Case, Rules, cases_up_to, suite_sha256
from judges.trimul.formula import Inputs, make_inputs, make_weights, mismatch, reference
from judges.trimul.jail import PythonRuntime
from judges.trimul.judge import Mode, TriMulJudge, limits_for, verdict_of

SMALL = Case(4, 2, 5, NORMAL, True, 7)


def small_inputs(mask: torch.Tensor) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((2, 4, 4, 5), generator=generator)
    return Inputs(x, mask, make_weights(5, generator, hidden=6))


def by_hand(inputs: Inputs) -> list[float]:
    """The operator written out element by element in double precision."""
    x, mask, weights = inputs.x.tolist(), inputs.mask.tolist(), {k: v.tolist() for k, v in inputs.weights.items()}
    batch, size, dim, hidden = len(x), len(x[0]), len(x[0][0][0]), len(weights["to_out_norm.weight"])

    def norm(values: list[float], name: str) -> list[float]:
        mean = sum(values) / len(values)
        scale = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + 1e-5)
        pairs = zip(values, weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True)
        return [(v - mean) / scale * weight + bias for v, weight, bias in pairs]

    def times(name: str, vector: list[float]) -> list[float]:
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in weights[f"{name}.weight"]]

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    result: list[float] = []
    for b in range(batch):
        normed = [[norm(x[b][i][k], "norm") for k in range(size)] for i in range(size)]
        sides = {
            side: [
                [
                    [
                        value * sigmoid(gate) * mask[b][i][k]
                        for value, gate in zip(
                            times(f"{side}_proj", normed[i][k]), times(f"{side}_gate", normed[i][k]), strict=True
                        )
                    ]
                    for k in range(size)
                ]
                for i in range(size)
            ]
            for side in ("left", "right")
        }
        for i in range(size):
            for j in range(size):
                o = [
                    sum(sides["left"][i][k][h] * sides["right"][j][k][h] for k in range(size)) for h in range(hidden)
                ]
                gates = times("out_gate", normed[i][j])
                gated = [v * sigmoid(g) for v, g in zip(norm(o, "to_out_norm"), gates, strict=True)]
                result += [sum(w * v for w, v in zip(row, gated, strict=True)) for row in weights["to_out.weight"]]
    assert len(result) == batch * size * size * dim
    return result


MASK = torch.tensor([[[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1]]] * 2)


@pytest.mark.parametrize("mask", [torch.ones((2, 4, 4)), MASK])
@pytest.mark.parametrize("chunk", [1 << 25, 1])
def test_the_reference_is_the_operator_written_out(
    mask: torch.Tensor, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formula, "_CHUNK_ELEMENTS", chunk)
    inputs = small_inputs(mask)
    want = torch.tensor(by_hand(inputs), dtype=torch.float32).view(2, 4, 4, 5)
    assert float((reference(inputs) - want).abs().max()) < 1e-4


def test_the_mask_changes_most_of_the_result() -> None:
    inputs = make_inputs(TESTS[1], Rules(), seed=TESTS[1].seed, device="cpu")
    assert inputs.mask.dtype == torch.int64
    assert 0.4 < float(inputs.mask.float().mean()) < 0.6
    unmasked = reference(Inputs(inputs.x, torch.ones_like(inputs.mask), inputs.weights))
    found = mismatch(unmasked, reference(inputs))
    assert found is not None
    assert int(found.split()[0]) > inputs.x.numel() / 2


def test_the_quirks_are_those_of_the_public_evaluator() -> None:
    quirks = Rules(quirks=True)
    inputs = make_inputs(TESTS[1], quirks, seed=TESTS[1].seed, device="cpu")
    assert inputs.mask.dtype == torch.float32
    assert bool((inputs.mask == 1).all())
    shared = [torch.Generator().manual_seed(formula.GLOBAL_SEED) for _ in range(2)]
    one, other = (
        make_inputs(case, quirks, seed=case.seed, device="cpu", shared=generator)
        for case, generator in zip(TESTS[:2], shared, strict=True)
    )
    assert torch.equal(one.weights["norm.bias"], other.weights["norm.bias"])
    assert not torch.equal(one.x, other.x)


def test_inputs_depend_on_the_seed_and_on_nothing_else() -> None:
    torch.manual_seed(5)
    first = make_inputs(SMALL, Rules(), seed=1, device="cpu")
    again, other = (make_inputs(SMALL, Rules(), seed=seed, device="cpu") for seed in (1, 2))
    assert torch.equal(first.x, again.x)
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    assert not torch.equal(first.x, other.x)
    assert not torch.equal(first.weights["norm.bias"], other.weights["norm.bias"])


def test_cauchy_inputs_have_the_scale_of_the_statement() -> None:
    x = make_inputs(Case(64, 1, 128, CAUCHY, False, 3), Rules(), seed=3, device="cpu").x
    # Half of a Cauchy distribution lies within its scale.
    assert float((x.abs() < 2).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert float(x.abs().max()) > 1000


def test_the_cases_are_the_published_ones() -> None:
    assert (len(TESTS), len(BENCHMARKS)) == (18, 7)
    assert [number for number, case in enumerate(TESTS, 1) if case.masked] == [2, 4, 7, 9, 11, 17, 18]
    assert [number for number, case in enumerate(BENCHMARKS, 1) if case.masked] == [3, 6]
    assert [case.kind for case in TESTS].count(CAUCHY) == 7
    assert sum(case.seed for case in TESTS) == 1_330_661
    assert len(cases_up_to(64)) == 6
    assert cases_up_to(None) == TESTS


def test_every_change_of_what_is_judged_changes_the_suite() -> None:
    suites = {
        suite_sha256(TESTS, BENCHMARKS, Rules()),
        suite_sha256(TESTS, (), Rules()),
        suite_sha256(TESTS[:6], BENCHMARKS, Rules()),
        suite_sha256(TESTS, BENCHMARKS, Rules(quirks=True)),
    }
    assert len(suites) == 4


# --- comparison -------------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("got", "want", "good"),
    [
        ([1.0, 100.0], [1.0, 100.0], True),
        ([1.039, 102.0], [1.0, 100.0], True),
        ([1.041], [1.0], False),
        ([102.1], [100.0], False),
        ([0.019], [0.0], True),
        ([0.021], [0.0], False),
        ([NAN], [NAN], True),
        ([NAN], [0.0], False),
        ([0.0], [NAN], False),
        ([INF, -INF], [INF, -INF], True),
        ([INF], [-INF], False),
        ([INF], [1.0], False),
        ([1.0], [INF], False),
    ],
)
def test_the_tolerance_is_absolute_and_relative_and_special_values_must_agree(
    got: list[float], want: list[float], good: bool
) -> None:
    assert (mismatch(torch.tensor(got), torch.tensor(want)) is None) == good


def test_a_mismatch_is_counted_and_its_first_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    want = torch.zeros((2, 3, 4))
    got = want.clone()
    got[1, 0, 2] = 5
    got[1, 2, 3] = NAN
    said = "2 of 24 elements are wrong; at [1, 0, 2] it is 5, expected 0"
    assert mismatch(got, want) == said
    monkeypatch.setattr(formula, "_CHUNK_ELEMENTS", 5)
    assert mismatch(got, want) == said
    assert mismatch(got[:1], want) == "the result has shape (1, 3, 4), expected (2, 3, 4)"


# --- timing -----------------------------------------------------------------------------------------------------------


def test_timing_stops_once_the_mean_is_known_or_enough_time_was_spent() -> None:
    assert not timing.is_enough([], 1e9)
    assert not timing.is_enough([5.0, 5.0], 1e9)
    assert timing.is_enough([5.0, 5.0, 5.0], 0)
    noisy = [1000.0, 2000.0, 3000.0]
    assert not timing.is_enough(noisy, 0)
    assert timing.is_enough(noisy, 120.1)
    assert timing.is_enough([value * 1e4 for value in noisy], 0)
    assert timing.is_enough([1000.0, 2000.0] * 50, 0)
    assert not timing.is_enough([1000.0, 2000.0] * 49, 0)


def test_latency_is_the_geometric_mean_and_the_reward_is_1500_over_it() -> None:
    assert timing.latency_us([100.0, 10000.0]) == pytest.approx(1000.0)
    assert timing.reward(1200.0) == 1.25
    assert timing.reward(1500.0) == 1.0
    found = timing.summarize([1.0, 2.0, 3.0])
    assert (found.mean_us, found.best_us, found.worst_us, found.runs) == (2.0, 1.0, 3.0, 3)
    assert (found.std_us, found.error_us) == (1.0, pytest.approx(1 / math.sqrt(3)))


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0], [math.nan], [math.inf]])
def test_impossible_times_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no time|timed"):
        timing.latency_us(values)
    with pytest.raises(ValueError, match=r"no time|timed"):
        timing.summarize(values)


# --- verdicts ---------------------------------------------------------------------------------------------------------

TIMED = Mode()
DONE: dict[str, Any] = {
    "stage": "done",
    "tests": 18,
    "benchmarks": [{"mean_us": 1200.0}] * 7,
    "failure": None,
    "latency_us": 1200.0,
}


def test_a_timed_kernel_is_scored_by_its_latency() -> None:
    result = verdict_result(verdict_of(DONE, TIMED, {}))
    assert (result["status"], result["valid"], result["score"], result["scoreUnbounded"]) == ("done", True, 1.25, 1200)
    assert result["artifacts"]["reward_formula"] == "1500 / latency in microseconds"
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"tests": 17},
        {"benchmarks": [{"mean_us": 1200.0}] * 6},
        {"latency_us": 0},
        {"latency_us": -1.0},
        {"latency_us": math.nan},
        {"latency_us": math.inf},
        {"latency_us": True},
        {"latency_us": "1200"},
        {"latency_us": None},
        {"stage": "benchmarks"},
    ],
)
def test_a_report_that_no_sound_evaluation_gives_is_an_infrastructure_fault(change: dict[str, Any]) -> None:
    with pytest.raises(JudgeError):
        verdict_of({**DONE, **change}, TIMED, {})


def test_a_wrong_kernel_has_no_score_even_if_times_were_measured() -> None:
    result = verdict_result(verdict_of({**DONE, "failure": "benchmark 3: wrong"}, TIMED, {}))
    assert (result["status"], result["valid"], result["score"], result["scoreUnbounded"]) == ("error", False, 0, 0)
    assert (result["message"], result["failureDomain"]) == ("benchmark 3: wrong", "candidate")


def test_correctness_alone_is_worth_one_and_says_so() -> None:
    mode = Mode(correctness_only=True, max_seqlen=64, device="cpu")
    verdict = verdict_of({**DONE, "tests": 6, "benchmarks": []}, mode, {"timed": False})
    assert (verdict.valid, verdict.score, verdict.score_unbounded) == (True, 1.0, 1.0)
    assert "not timed" in verdict.message
    assert mode.suite == "correctness-only seqlen<=64"


# --- the machine ------------------------------------------------------------------------------------------------------


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    return parser.parse_args(list(words))


def test_without_a_gpu_a_request_for_timing_is_an_infrastructure_fault_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jail, "has_gpu", lambda: False)
    judge = command.open_judge(options(), None)  # type: ignore[arg-type]
    health = judge.describe()
    assert (health["can_judge"], health["timed"], health["device"]) == (False, False, None)
    with pytest.raises(JudgeError, match=r"no CUDA device.*GUIDANCE_JUDGE_URL.*--correctness-only"):
        judge.judge(Submission("0" * 32, "trimul", "python", b"def custom_kernel(data): ..."))
    judge.stop()


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--max-seqlen", "64"], "needs --correctness-only"), (["--correctness-only", "--max-seqlen", "8"], "no case")],
)
def test_options_that_would_judge_nothing_or_less_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(JudgeError, match=reason):
        command.open_judge(options(*words), None)  # type: ignore[arg-type]


def test_only_python_is_accepted() -> None:
    judge = TriMulJudge(None, PythonRuntime("python3", (), ()), Mode(), {})
    assert [judge.language(lang) for lang in ("python", "Python3", "py", "py3")] == ["python"] * 4
    with pytest.raises(BadSubmission, match="unsupported lang 'cpp'"):
        judge.language("cpp")


def test_the_interpreter_and_its_packages_are_shown_and_the_project_itself_is_not() -> None:
    runtime = PythonRuntime.of_this_process(headers=False)
    targets = {bind.target for bind in runtime.binds}
    assert runtime.executable in targets
    assert set(runtime.site) <= targets
    root = Path(runtime.code_root)
    assert str(root / "judges") in targets
    assert not {str(root), str(root / "harbor"), str(root / "work"), "/", "/root"} & targets


def test_the_gpu_and_its_memory_are_passed_into_the_jail(tmp_path: Path) -> None:
    tools = jail.Tools(sh=Path("/bin/sh"), bwrap=Path("/usr/bin/bwrap"), setpriv=Path("/usr/bin/setpriv"), prlimit=None)
    made = jail.PythonJail(
        tools=tools,
        tier=jail.Tier.CGROUP,
        host_uid=65534,
        staged={tmp_path: tmp_path / "stage"},
        gpu=True,
        environment={"CUDA_VISIBLE_DEVICES": "7"},
    )
    asked = jail.Command(("/w/x",), limits_for(Mode()), (jail.Bind(tmp_path, "/seen"),), toolchain=True)
    line = made.argv(asked, (Path("/cgroup/procs"),), 9)
    launched = line.index("unshare")
    assert launched < line.index("/usr/bin/setpriv") < line.index("/usr/bin/bwrap")
    assert line[line.index("stage") : line.index("stage") + 3] == ["stage", str(tmp_path), str(tmp_path / "stage")]
    assert line[line.index("/seen") - 1] == str(tmp_path / "stage")
    end = line.index("--remount-ro")
    for words in (["--proc", "/proc"], ["--tmpfs", "/dev/shm"], ["--setenv", "CUDA_VISIBLE_DEVICES", "7"]):
        place = line.index(words[-1])
        assert line[place - len(words) + 1 : place + 1] == words
        assert place < end


def test_torch_shares_gpu_memory_by_the_fields_that_are_expected() -> None:
    """The fields cannot be tried without a GPU, but their names and order can be compared with this torch's own."""
    from inspect import signature

    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    from judges.trimul import blobs

    names = list(signature(rebuild_cuda_tensor).parameters)
    assert names[6:10] + names[11:] == [
        "storage_device",
        "storage_handle",
        "storage_size_bytes",
        "storage_offset_bytes",
        "ref_counter_handle",
        "ref_counter_offset",
        "event_handle",
        "event_sync_required",
    ]
    assert [kind for _, kind in blobs._CUDA_FIELDS] == [int, bytes, int, int, bytes, int, bytes, bool]


@pytest.mark.parametrize(
    "change", [{"handle": "xyz"}, {"size": "8"}, {"start": -1}, {"bytes": 10**9}, {"event": None}, {"device": True}]
)
def test_a_broken_description_of_gpu_memory_is_refused_before_it_is_opened(change: dict[str, Any]) -> None:
    from judges.trimul.blobs import BadDescription, open_cuda

    good: dict[str, Any] = {"device": 0, "handle": "00", "size": 64, "offset": 0, "counter": "00", "counter_offset": 0}
    good |= {"event": "00", "event_sync": False, "start": 0, "bytes": 64}
    with pytest.raises(BadDescription, match="GPU tensor is broken"):
        open_cuda({**good, **change})


@pytest.mark.gpu
def test_a_kernel_is_timed_on_the_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from judges.sandbox import open_sandbox

    seed = Path(__file__).parents[2] / "harbor/trimul/solution/seed.py"
    with open_sandbox() as sandbox:
        judge = command.open_judge(options(), sandbox)
        try:
            verdict = judge.judge(Submission("0" * 32, "trimul", "python", seed.read_bytes()))
        finally:
            judge.stop()
    assert verdict.valid, verdict.message
    assert 100 < verdict.score_unbounded < 1e6
    assert verdict.score == pytest.approx(1500 / verdict.score_unbounded)
