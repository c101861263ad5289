"""What the lasso judge's tests share: the seed program, ways of spoiling it, and a judge over fixed instances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import judges.lasso_path.judge as judge_module
from judges.lasso_path.cases import CaseSpec
from judges.lasso_path.judge import EIGEN_DIR, LassoJudge
from judges.lasso_path.reference import ReferenceBook
from judges.protocol import Submission, Verdict
from judges.sandbox import Sandbox

SEED = Path(__file__).parents[2] / "harbor/lasso_path/solution/seed.py"
FIXED_SEED = 7
SOLVED = "const std::vector<double> &w = solver.solve(lambda);"


# Stand-ins for the cases of both problems: the same judge, in a fraction of the time.
TINY_CASES = (CaseSpec(1, 40, 30, "g"), CaseSpec(2, 30, 60, "corr_high"))


def need_eigen() -> None:
    """Skip where the judge cannot start."""
    if not (EIGEN_DIR / "Eigen" / "Core").is_file():
        pytest.skip("no Eigen headers here; install them with: apt-get install -y libeigen3-dev")


@contextmanager
def tiny_judge(sandbox: Sandbox, directory: Path) -> Iterator[LassoJudge]:
    """A judge of two tiny cases that draws the same instances in every evaluation."""
    need_eigen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_module, "problem_cases", lambda _: TINY_CASES)
        yield LassoJudge(sandbox, ReferenceBook(directory / "references.json", FIXED_SEED), FIXED_SEED)


def run_judge(judge: LassoJudge, code: str, pid: str = "lasso_path-quick") -> Verdict:
    """The verdict on one file."""
    return judge.judge(Submission("0" * 32, pid, "python", code.encode()))


def seed_code() -> str:
    """The task's own seed file."""
    return SEED.read_text(encoding="utf-8")


def spoiled(old: str, new: str, *, top: str = "") -> str:
    """The seed file with one piece of its C++ replaced and lines added above it; both must be there."""
    code = seed_code()
    assert code.count(old) == 1, old
    head = "#include <algorithm>\n"
    assert code.count(head) == 1
    return code.replace(old, new).replace(head, f"{head}{top}\n")


def wrapped(cpp: str, rest: str = "") -> str:
    """A file around some C++."""
    return f'CPP_CODE = r"""\n{cpp}\n"""\n{rest}\n'
