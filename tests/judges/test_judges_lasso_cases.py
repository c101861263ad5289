"""The instances are those of the task, the reference is scikit-learn's, and an answer is checked in full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import lasso_path

import judges.lasso_path.reference as reference
from judges.errors import SuiteError
from judges.lasso_path.cases import (
    CASES,
    CaseSpec,
    Floats,
    Instance,
    cases_sha256,
    draw_instance,
    lambda_path,
    problem_cases,
)
from judges.lasso_path.checker import TOLERANCE, check_output
from judges.lasso_path.reference import POOL_SEEDS, ROUNDS, ReferenceBook, objectives, reference_objectives

SMALL = CaseSpec(1, 40, 25, "g")


@pytest.fixture(scope="module")
def instance() -> Instance:
    return draw_instance(SMALL, 3)


@pytest.fixture(scope="module")
def exact(instance: Instance) -> Floats:
    """The coefficients, p x m, to nearly the last digit."""
    return np.asarray(lasso_path(instance.x, instance.y, alphas=instance.lambdas, tol=1e-14, max_iter=100_000)[1])


def as_output(path: Floats) -> bytes:
    return path.tobytes(order="F")


# --- the cases --------------------------------------------------------------------------------------------------------


def test_there_are_seventeen_cases_of_five_kinds_and_a_quick_part_of_them() -> None:
    assert [(spec.rows, spec.columns, spec.kind) for spec in problem_cases("lasso_path")] == [
        *((200, 100, "g"), (200, 500, "g"), (500, 1000, "g"), (200, 2000, "g"), (50, 3000, "g"), (2000, 500, "g")),
        *((100, 5000, "g"), (1000, 500, "sparse"), (500, 1000, "sparse"), (500, 1000, "dense_sol"), (500, 30, "g")),
        *((1000, 50, "g"), (2000, 3000, "sparse"), (500, 200, "corr_low"), (500, 500, "corr_high")),
        *((200, 1000, "corr_low"), (1000, 1000, "corr_high")),
    ]
    quick = problem_cases("lasso_path-quick")
    assert len(quick) == 5
    assert all(spec in CASES for spec in quick)
    assert {spec.kind for spec in quick} == {"g", "sparse", "corr_high"}
    assert {spec.rows < spec.columns for spec in quick} == {True, False}


def test_the_draws_come_in_the_order_of_the_task() -> None:
    """Written out once more for two kinds, from the task's description."""
    rng = np.random.RandomState(11)
    x = rng.randn(30, 50)
    places = rng.choice(50, 2, replace=False)
    w = np.zeros(50)
    w[places] = rng.randn(2)
    y = x @ w + 0.1 * rng.randn(30)
    drawn = draw_instance(CaseSpec(1, 30, 50, "g"), 11)
    assert np.array_equal(drawn.x, x)
    assert np.array_equal(drawn.y, y)

    rng = np.random.RandomState(12)
    x = np.zeros((60, 200))
    for row in range(60):
        columns = rng.choice(200, 20, replace=False)
        x[row, columns] = rng.randn(20)
    deviation = np.std(x, axis=0)
    for column in np.flatnonzero(deviation > 1e-8):
        x[:, column] /= deviation[column]
    places = rng.choice(200, 2, replace=False)
    w = np.zeros(200)
    w[places] = 2 * rng.randn(2)
    y = x @ w + 0.1 * rng.randn(60)
    drawn = draw_instance(CaseSpec(8, 60, 200, "sparse"), 12)
    assert np.allclose(drawn.x, x, rtol=1e-14, atol=0)
    assert np.allclose(drawn.y, y, rtol=1e-12, atol=1e-12)


def test_each_kind_has_the_statistics_it_claims() -> None:
    for kind, rho in (("g", 0.0), ("corr_low", 0.5), ("corr_high", 0.9)):
        x = draw_instance(CaseSpec(1, 4000, 20, kind), 5).x  # type: ignore[arg-type]
        neighbours = np.mean([np.corrcoef(x[:, j], x[:, j + 1])[0, 1] for j in range(19)])
        second = np.mean([np.corrcoef(x[:, j], x[:, j + 2])[0, 1] for j in range(18)])
        assert neighbours == pytest.approx(rho, abs=0.03)
        assert second == pytest.approx(rho**2, abs=0.04)
        assert x.std() == pytest.approx(1.0, abs=0.03)
    sparse = draw_instance(CASES[7], 5)
    assert set(np.count_nonzero(sparse.x, axis=1)) == {20}
    assert np.allclose(sparse.x.std(axis=0), 1.0)


def test_a_seed_always_gives_the_same_instance_and_another_seed_another() -> None:
    one, same, other = (draw_instance(CASES[0], seed).payload() for seed in (1, 1, 2))
    assert one == same != other


def test_the_payload_is_three_int32_and_then_float64(instance: Instance) -> None:
    payload = instance.payload()
    assert np.frombuffer(payload[:12], dtype=np.int32).tolist() == [40, 25, 50]
    values = np.frombuffer(payload[12:], dtype=np.float64)
    assert np.array_equal(values[:1000].reshape(40, 25), instance.x)
    assert np.array_equal(values[1000:1040], instance.y)
    assert np.array_equal(values[1040:], instance.lambdas)


@pytest.mark.parametrize("spec", [SMALL, CASES[10], CaseSpec(5, 20, 100, "g")])
def test_the_penalties_are_scikit_learns(spec: CaseSpec) -> None:
    drawn = draw_instance(spec, 9)
    alphas = lasso_path(drawn.x, drawn.y, n_alphas=50, eps=1e-2)[0]
    assert np.allclose(drawn.lambdas, alphas, rtol=1e-13, atol=0)
    assert np.array_equal(lambda_path(drawn.x, drawn.y), drawn.lambdas)


def test_the_hash_names_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cases_sha256()
    monkeypatch.setattr("judges.lasso_path.cases.CASES", CASES[:-1])
    assert cases_sha256() != before


# --- the reference ----------------------------------------------------------------------------------------------------


def test_the_objective_is_the_textbook_formula() -> None:
    x, y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, -1.0])
    path = np.array([[0.5, 0.0], [-0.25, 1.0]])
    # Residuals (1, -1.5) and (-1, -5); l1 norms 0.75 and 1.
    expected = [(1 + 2.25) / 4 + 0.1 * 0.75, (1 + 25) / 4 + 0.2 * 1.0]
    assert objectives(x, y, np.array([0.1, 0.2]), path) == pytest.approx(expected)


def test_references_are_computed_once_and_survive_a_restart(
    tmp_path: Path, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "book.json"
    first = ReferenceBook(path).objectives(instance)
    assert first == pytest.approx(reference_objectives(instance))
    monkeypatch.setattr(reference, "reference_objectives", lambda _: pytest.fail("computed again"))
    assert np.array_equal(ReferenceBook(path).objectives(instance), first)


def test_each_evaluation_draws_from_a_small_pool_that_outlives_the_judge(tmp_path: Path, instance: Instance) -> None:
    book = ReferenceBook(tmp_path / "book.json")
    book.objectives(instance)
    again = ReferenceBook(tmp_path / "book.json")
    for spec in CASES[:3]:
        drawn = [seeds for one in (book, again) for seeds in (one.seeds(spec) for _ in range(40))]
        assert {len(set(seeds)) for seeds in drawn} == {ROUNDS}
        assert len({seed for seeds in drawn for seed in seeds}) == POOL_SEEDS
        assert len(set(drawn)) > 10
    other = ReferenceBook(tmp_path / "other.json")
    assert set(other.seeds(CASES[0])) & set(book.seeds(CASES[0])) == set()


def test_a_fixed_seed_fixes_the_instances(tmp_path: Path) -> None:
    one, same, other = (
        [ReferenceBook(tmp_path / f"{i}.json", seed).seeds(spec) for spec in CASES] for i, seed in enumerate((5, 5, 6))
    )
    assert one == same != other
    assert all(len(set(seeds)) == ROUNDS and all(1 <= seed < 2**30 for seed in seeds) for seeds in one)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"sklearn": "', '"sklearn": "0'),
        lambda text: json.dumps({**json.loads(text), "seeds": {"1": [3]}}),
        lambda text: json.dumps({**json.loads(text), "objectives": 7}),
    ],
)
def test_a_damaged_or_outdated_book_is_begun_anew(tmp_path: Path, instance: Instance, damage: object) -> None:
    path = tmp_path / "book.json"
    expected = ReferenceBook(path).objectives(instance)
    path.write_text(damage(path.read_text(encoding="ascii")), encoding="ascii")  # type: ignore[operator]
    assert ReferenceBook(path).objectives(instance) == pytest.approx(expected)
    assert json.loads(path.read_text(encoding="ascii"))["objectives"]


def test_an_unwritable_book_is_the_judges_fault(tmp_path: Path, instance: Instance) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(SuiteError, match=r"cannot store the reference objectives in .*file/book"):
        ReferenceBook(tmp_path / "file" / "book.json").objectives(instance)


# --- the checker ------------------------------------------------------------------------------------------------------


def test_the_exact_path_and_scikit_learns_own_are_accepted(instance: Instance, exact: Floats) -> None:
    expected = reference_objectives(instance)
    own = lasso_path(instance.x, instance.y, alphas=instance.lambdas)[1]
    for path in (exact, own):
        checked = check_output(instance, as_output(path), expected)
        assert checked.valid, checked.message
        assert checked.max_gap is not None
        assert checked.max_gap <= TOLERANCE


def test_being_better_than_the_reference_is_fine(instance: Instance, exact: Floats) -> None:
    checked = check_output(instance, as_output(exact), reference_objectives(instance) + 0.5)
    assert checked.valid
    assert checked.max_gap == pytest.approx(-0.5, abs=1e-3)


def test_one_penalty_that_is_worse_by_more_than_the_tolerance_is_refused(instance: Instance, exact: Floats) -> None:
    best = objectives(instance.x, instance.y, instance.lambdas, exact)
    path = exact.copy()
    path[3, 30] += 2e-3
    lost = objectives(instance.x, instance.y, instance.lambdas, path)[30] - best[30]
    assert TOLERANCE < lost < 1e-3
    checked = check_output(instance, as_output(path), best)
    assert not checked.valid
    assert checked.max_gap == pytest.approx(lost)
    assert checked.message.startswith("the objective at lambda 31 of 50 exceeds the reference by ")
    just_allowed = replace_reference(best, 30, lost - 0.9 * TOLERANCE)
    assert check_output(instance, as_output(path), just_allowed).valid


def replace_reference(best: Floats, index: int, by: float) -> Floats:
    raised = best.copy()
    raised[index] += by
    return raised


def test_a_path_that_is_right_for_the_first_penalty_only_is_refused(instance: Instance, exact: Floats) -> None:
    path = np.zeros_like(exact)
    path[:, 0] = exact[:, 0]
    checked = check_output(instance, as_output(path), reference_objectives(instance))
    assert not checked.valid


def test_a_transposed_path_is_refused(instance: Instance, exact: Floats) -> None:
    assert not check_output(instance, exact.tobytes(order="C"), reference_objectives(instance)).valid


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.nan, "the coefficients for lambda 8 are not finite"),
        (np.inf, "the coefficients for lambda 8 are not finite"),
        (1e200, "exceeds the reference by infinity"),
        (-1e300, "exceeds the reference by infinity"),
    ],
)
def test_values_that_are_no_numbers_or_overflow_are_refused(
    instance: Instance, exact: Floats, value: float, reason: str
) -> None:
    path = exact.copy()
    path[:, 7] = value
    checked = check_output(instance, as_output(path), reference_objectives(instance))
    assert not checked.valid
    assert reason in checked.message
    json.dumps(checked.max_gap, allow_nan=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "wrote 9999 of the 10000 bytes"),
        (lambda data: data[:-8], "wrote 9992 of the 10000 bytes"),
        (lambda data: data + b"\0", "wrote more than the 10000 bytes"),
        (lambda data: b"", "wrote 0 of the 10000 bytes"),
    ],
)
def test_an_answer_of_another_length_is_refused(
    instance: Instance, exact: Floats, change: object, reason: str
) -> None:
    checked = check_output(instance, change(as_output(exact)), reference_objectives(instance))  # type: ignore[operator]
    assert not checked.valid
    assert checked.message.startswith(reason)


def test_a_spec_knows_the_size_of_its_answer() -> None:
    assert replace(SMALL, columns=3000).output_bytes == 3000 * 50 * 8
