"""A peer's proxy over scripted services, and a prompt such as OpenEvolve writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.fake_services import CONTRACT, FakeExecutor, FakeJudge, FakeReef, well_formed

from benchmarks.experiment.openevolve_proxy import PeerProxy, PeerServices
from harness.bootstrap import SeedProgram
from harness.grid import Grid
from harness.prompts import build_guidance_prompt
from harness.state import VerdictStatus, VerificationResult

GRID = Grid(1, 2)
SEED = SeedProgram(Path("seed.cpp"), "int main() { return 7; }\n", "Returns a number.")


def prompt_with(program: str, *, fitness: str = "41.5000", history: str = "", language: str = "cpp") -> str:
    """What matters of OpenEvolve's prompt; the test with the real template keeps this honest."""
    return (
        f"# Current Program Information\n- Fitness: {fitness}\n- Focus areas: - none\n\n\n\n"
        f"# Program Evolution History\n{history}\n\n# Current Program\n```{language}\n{program}\n```\n\n# Task\n"
        f"Write.\n\n```{language}\n# here\n```"
    )


class World:
    """A proxy over scripted services."""

    def __init__(
        self,
        answer: Callable[[int], str] = well_formed,
        program: Callable[[str, int], str] | None = None,
        verdict: Callable[[str], VerificationResult] | None = None,
        budget: int = 4,
    ) -> None:
        self.policy = FakeReef(GRID, answer)
        self.executor = FakeExecutor(program)
        self.judge = FakeJudge(verdict)
        services = PeerServices(
            self.policy,
            self.executor,  # type: ignore[arg-type]
            self.judge,
            lambda entry: build_guidance_prompt(contract=CONTRACT, entry=entry),
        )
        self.proxy = PeerProxy(services, CONTRACT, SEED, grid=GRID, budget=budget, run_seed=3)

    async def ask(self, program: str, fitness: float) -> str:
        return await self.proxy.complete(prompt_with(program, fitness=f"{fitness:.4f}"))


def scored(score: float) -> VerificationResult:
    return VerificationResult(score, score, True, VerdictStatus.VALID, "accepted", {})


def answering(code: str, summary: str = "Something else.") -> Callable[[str, int], str]:
    return lambda _guidance, _call: f"<solution>\n```cpp\n{code}\n```\n</solution>\n<summary>{summary}</summary>"
