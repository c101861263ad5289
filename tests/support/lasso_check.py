"""A tiny runner and checker for lasso solvers, written from the problem statement alone.

It exists so that the tests of the task and the executor do not depend on the judge's code: two readings of the same
rules that agree.
"""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TOLERANCE = 1e-6


@dataclass(frozen=True)
class LassoCase:
    """One instance with the objectives that must be reached."""

    x: Floats
    y: Floats
    penalties: Floats
    reference: Floats

    def objective(self, index: int, w: Floats) -> float:
        """The statement's objective for one penalty."""
        rest = self.y - self.x @ w
        return float(rest @ rest / (2 * len(self.y)) + self.penalties[index] * np.abs(w).sum())

    def excess(self, output: bytes) -> float:
        """How far the worst of the 50 answers lies above the reference; fails on an answer of another form."""
        values = np.frombuffer(output, dtype=np.float64).reshape(50, self.x.shape[1])
        assert np.isfinite(values).all()
        return max(self.objective(k, values[k]) - self.reference[k] for k in range(50))


def make_lasso_case(rows: int, columns: int, seed: int, *, rho: float = 0.0, blank: int = 0) -> LassoCase:
    """Normal columns with neighbours correlated by `rho`; the first `blank` columns are all zero."""
    from sklearn.linear_model import lasso_path

    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns))
    for j in range(1, columns):
        x[:, j] = rho * x[:, j - 1] + np.sqrt(1 - rho * rho) * x[:, j]
    x[:, :blank] = 0.0
    w = np.where(rng.random(columns) < 0.1, rng.standard_normal(columns), 0.0)
    w[-1] = 1.5
    y = x @ w + 0.1 * rng.standard_normal(rows)
    largest = np.abs(x.T @ y).max() / rows
    penalties = largest * np.logspace(0, -2, 50)
    path = lasso_path(x, y, alphas=penalties)[1]
    case = LassoCase(x, y, penalties, np.zeros(50))
    return LassoCase(x, y, penalties, np.array([case.objective(k, path[:, k]) for k in range(50)]))


def read_constants(program: str) -> tuple[str, list[str]]:
    """CPP_CODE and COMPILE_FLAGS of a solution file."""
    found = {"COMPILE_FLAGS": []}
    for statement in ast.parse(program).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            found[ast.unparse(target)] = ast.literal_eval(statement.value)
    return found["CPP_CODE"], found["COMPILE_FLAGS"]


def compile_solver(program: str, directory: Path, name: str) -> Path:
    """Compile a solution file as the statement says; raises AssertionError when that fails or warns."""
    source, flags = read_constants(program)
    path = directory / f"{name}.cpp"
    path.write_text(source, encoding="utf-8")
    binary = directory / name
    command = ["g++", "-O3", "-march=native", "-std=c++17", *flags, "-Wall", "-Wextra", "-o", str(binary), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{name} does not compile:\n{done.stderr[:3000]}"
    assert not done.stderr.strip(), f"{name} compiles with warnings:\n{done.stderr[:3000]}"
    return binary


def run_solver(binary: Path, case: LassoCase) -> bytes:
    """The solver's answer to one instance."""
    sizes = np.array([*case.x.shape, 50], dtype=np.int32).tobytes()
    data = sizes + case.x.tobytes() + case.y.tobytes() + case.penalties.tobytes()
    done = subprocess.run([str(binary)], input=data, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"{binary.name} ended with {done.returncode}: {done.stderr[:500]!r}"
    return done.stdout
