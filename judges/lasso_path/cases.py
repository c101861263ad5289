"""The 17 instances of the task as random distributions, and how one is drawn.

Every draw comes from NumPy's legacy `RandomState`, whose stream is frozen, in a fixed order: one seed always gives the
same instance (up to the last bit of the matrix products, which is the linear algebra library's).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["g", "dense_sol", "sparse", "corr_low", "corr_high"]

FULL_PROBLEM = "lasso_path"
QUICK_PROBLEM = "lasso_path-quick"
LAMBDA_COUNT = 50
LAMBDA_RATIO = 1e-2
MAX_SEED = 1 << 30
GENERATOR_VERSION = 1

_NOISE = 0.1
_NONZEROS_PER_ROW = 20
_CORRELATION: dict[str, float] = {"corr_low": 0.5, "corr_high": 0.9}


@dataclass(frozen=True)
class CaseSpec:
    """One case: its number from 1, its shape, and the distribution of its design matrix."""

    number: int
    rows: int
    columns: int
    kind: Kind

    @property
    def output_bytes(self) -> int:
        """Size of a complete answer."""
        return 8 * self.columns * LAMBDA_COUNT


def _specs(*rows: tuple[int, int, Kind]) -> tuple[CaseSpec, ...]:
    return tuple(CaseSpec(number, *row) for number, row in enumerate(rows, start=1))


CASES: tuple[CaseSpec, ...] = _specs(
    (200, 100, "g"),
    (200, 500, "g"),
    (500, 1000, "g"),
    (200, 2000, "g"),
    (50, 3000, "g"),
    (2000, 500, "g"),
    (100, 5000, "g"),
    (1000, 500, "sparse"),
    (500, 1000, "sparse"),
    (500, 1000, "dense_sol"),
    (500, 30, "g"),
    (1000, 50, "g"),
    (2000, 3000, "sparse"),
    (500, 200, "corr_low"),
    (500, 500, "corr_high"),
    (200, 1000, "corr_low"),
    (1000, 1000, "corr_high"),
)
# Small and quick to solve, but with every side of the problem: more rows, more columns, sparse rows, correlation.
_QUICK_NUMBERS = (2, 5, 8, 12, 15)


def problem_cases(problem: str) -> tuple[CaseSpec, ...]:
    """The cases that a problem id stands for."""
    if problem == FULL_PROBLEM:
        return CASES
    return tuple(CASES[number - 1] for number in _QUICK_NUMBERS)


def cases_sha256() -> str:
    """Names the distribution of the instances: equal hashes draw from equal distributions."""
    text = repr((GENERATOR_VERSION, LAMBDA_COUNT, LAMBDA_RATIO, CASES, _QUICK_NUMBERS))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Instance:
    """One drawn case: the design matrix `x` (n x p, row-major), the targets `y` (n), the decreasing `lambdas` (m)."""

    spec: CaseSpec
    seed: int
    x: Floats
    y: Floats
    lambdas: Floats

    def payload(self) -> bytes:
        """What a solver reads: int32 n, p, m, then float64 x (row-major), y and lambdas, in this machine's order."""
        sizes = np.array([*self.x.shape, len(self.lambdas)], dtype=np.int32)
        return b"".join((sizes.tobytes(), self.x.tobytes(), self.y.tobytes(), self.lambdas.tobytes()))


def draw_instance(spec: CaseSpec, seed: int) -> Instance:
    """The instance of a case for one seed."""
    rng = np.random.RandomState(seed)
    x = np.ascontiguousarray(_design(spec, rng))
    count = max(1, spec.columns // _SPARSITY[spec.kind])
    chosen = rng.choice(spec.columns, count, replace=False)
    coefficients = np.zeros(spec.columns)
    coefficients[chosen] = rng.randn(count) * (2.0 if spec.kind == "sparse" else 1.0)
    y = x @ coefficients + _NOISE * rng.randn(spec.rows)
    return Instance(spec, seed, x, y, lambda_path(x, y))


# One coefficient in so many is not zero.
_SPARSITY: dict[str, int] = {"g": 20, "dense_sol": 5, "corr_low": 20, "corr_high": 20, "sparse": 100}


def lambda_path(x: Floats, y: Floats) -> Floats:
    """The penalties: 50 log-spaced values from the smallest one with an all-zero solution down to 1 % of it.

    The same formula as `sklearn.linear_model.lasso_path(x, y, n_alphas=50, eps=1e-2)`.
    """
    largest = float(np.abs(x.T @ y).max()) / len(y)
    return np.geomspace(largest, largest * LAMBDA_RATIO, num=LAMBDA_COUNT).astype(np.float64, copy=False)


def _design(spec: CaseSpec, rng: np.random.RandomState) -> Floats:
    if spec.kind == "sparse":
        return _sparse_rows(spec, rng)
    x: Floats = rng.randn(spec.rows, spec.columns)
    rho = _CORRELATION.get(spec.kind)
    if rho is None:
        return x
    index = np.arange(spec.columns)
    covariance = rho ** np.abs(index[:, None] - index[None, :])
    factor: Floats = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
    return x @ factor.T


def _sparse_rows(spec: CaseSpec, rng: np.random.RandomState) -> Floats:
    """20 entries a row; columns are scaled to unit standard deviation, but not centred."""
    x = np.zeros((spec.rows, spec.columns))
    count = min(_NONZEROS_PER_ROW, spec.columns)
    for row in x:
        places = rng.choice(spec.columns, count, replace=False)
        row[places] = rng.randn(count)
    deviation = x.std(axis=0)
    scaled = deviation > 1e-8
    x[:, scaled] /= deviation[scaled]
    return x
