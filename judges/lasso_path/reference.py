"""What a correct solver must reach: the objectives of scikit-learn's path, and which instances are drawn.

scikit-learn takes seconds for the large cases, so its results are kept on disk.  A judge draws the instances of each
evaluation from a small pool of random seeds that it made for itself; with a fixed seed they are always the same four.
Candidates run in jails that see neither seeds nor instances before they are timed on them.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from judges.errors import SuiteError
from judges.lasso_path.cases import CASES, MAX_SEED, CaseSpec, Floats, Instance, cases_sha256

ROUNDS = 4
POOL_SEEDS = 8
FORMAT = 1


def objectives(x: Floats, y: Floats, lambdas: Floats, path: Floats) -> Floats:
    """(1/2n)||y - Xw||^2 + lambda ||w||_1 for each column of `path` (p x m) and its lambda."""
    with np.errstate(over="ignore", invalid="ignore"):
        residuals = y[:, None] - x @ path
        values: Floats = np.einsum("ij,ij->j", residuals, residuals) / (2 * len(y)) + lambdas * np.abs(path).sum(axis=0)
    return values


def reference_objectives(instance: Instance) -> Floats:
    """The objectives of scikit-learn's path at the instance's lambdas (default tolerance and iterations)."""
    from sklearn.linear_model import lasso_path

    with warnings.catch_warnings():
        # Some penalties of the wide cases do not converge within the default iterations; that is part of the reference.
        warnings.simplefilter("ignore")
        _, path, _ = lasso_path(instance.x, instance.y, alphas=instance.lambdas)
    return objectives(instance.x, instance.y, instance.lambdas, path)


class ReferenceBook:
    """The seeds that evaluations draw from and the reference objectives known so far; safe to share between threads."""

    def __init__(self, path: Path, fixed_seed: int | None = None) -> None:
        """Read the book at `path`, or begin a new one when it is missing, damaged or made by other versions."""
        self._path = path
        self._fixed_seed = fixed_seed
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int], Floats] = {}
        self._seeds = _fixed_seeds(fixed_seed) if fixed_seed is not None else _random_seeds()
        saved = _read(path)
        if saved is not None and saved.get("key") == self._key():
            self._take(saved)

    def seeds(self, spec: CaseSpec) -> tuple[int, ...]:
        """The seeds of one evaluation's runs of a case, the untimed first run's first."""
        pool = self._seeds[spec.number]
        if self._fixed_seed is not None:
            return pool
        return tuple(secrets.SystemRandom().sample(pool, ROUNDS))

    def objectives(self, instance: Instance) -> Floats:
        """The reference objectives of an instance; computed when first needed."""
        key = (instance.spec.number, instance.seed)
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        fresh = reference_objectives(instance)
        if not np.isfinite(fresh).all():
            raise SuiteError(f"scikit-learn gave no finite reference for case {key[0]} with seed {key[1]}")
        with self._lock:
            self._known[key] = fresh
            self._save()
        return fresh

    def _key(self) -> dict[str, Any]:
        import sklearn

        return {
            "format": FORMAT,
            "cases": cases_sha256(),
            "seed": self._fixed_seed,
            "numpy": np.__version__,
            "sklearn": sklearn.__version__,
        }

    def _take(self, saved: Mapping[str, Any]) -> None:
        try:
            seeds = {int(number): tuple(map(int, pool)) for number, pool in saved["seeds"].items()}
            known = {
                (int(number), int(seed)): np.array(values, dtype=np.float64)
                for number, by_seed in saved["objectives"].items()
                for seed, values in by_seed.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            return
        sizes = {len(pool) for pool in seeds.values()} | {len(pool) for pool in self._seeds.values()}
        if seeds.keys() == self._seeds.keys() and len(sizes) == 1:
            self._seeds, self._known = seeds, known

    def _save(self) -> None:
        by_case: dict[str, dict[str, list[float]]] = {}
        for (number, seed), values in sorted(self._known.items()):
            by_case.setdefault(str(number), {})[str(seed)] = values.tolist()
        book = {"key": self._key(), "seeds": {str(n): list(pool) for n, pool in self._seeds.items()}}
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps({**book, "objectives": by_case}), encoding="ascii")
            os.replace(fresh, self._path)
        except OSError as error:
            raise SuiteError(f"cannot store the reference objectives in {self._path}: {error.strerror}") from error


def _fixed_seeds(seed: int) -> dict[int, tuple[int, ...]]:
    rng = np.random.RandomState(seed)
    return {spec.number: tuple(int(value) for value in rng.randint(1, MAX_SEED, size=ROUNDS)) for spec in CASES}


def _random_seeds() -> dict[int, tuple[int, ...]]:
    source = secrets.SystemRandom()
    return {spec.number: tuple(source.sample(range(1, MAX_SEED), POOL_SEEDS)) for spec in CASES}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
