"""What a report has to say against itself: limits of the run that its numbers do not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from guidance_ttt.report.facts import RunFacts
from guidance_ttt.report.series import Update
from harness.config import TASKS

OFFLINE_EXECUTOR = "offline"


def caveats(facts: RunFacts, rows: Sequence[Update]) -> list[str]:
    """Whole sentences, the most important first."""
    return [*_about_state(facts), *_about_scores(facts), *_about_training(facts, rows), *_about_services(rows)]


def _about_state(facts: RunFacts) -> Iterator[str]:
    if facts.status.live:
        yield "The run is still going on: these are its numbers up to its last committed update."
    yield (
        "This is one run with one seed of the random generator. How much its result would vary from run to run cannot "
        "be read from it."
    )


def _about_scores(facts: RunFacts) -> Iterator[str]:
    timed = facts.task in TASKS and TASKS[facts.task].timed
    quick = facts.contract is not None and facts.problem not in (None, facts.contract.judge_problem_id)
    if facts.identity.get("judge_suite") == "own":
        yield (
            "Scores are on this project's own case set, which follows the distribution of the official cases. They are "
            "not official results."
        )
    if quick:
        yield (
            f"The search scored on problem {facts.problem}, a small part of the task's cases. The winner was chosen by "
            "that score, so it flatters the winner; the verifier's result on all cases is the one to quote."
        )
    else:
        yield "The winner was chosen by the same cases that it is scored on, so its score is somewhat too good."
    if timed:
        yield (
            "Scores are running times on this machine and vary from one measurement to the next: the best of many "
            "timings is lucky as well as fast. They cannot be compared with times from other machines."
        )


def _about_training(facts: RunFacts, rows: Sequence[Update]) -> Iterator[str]:
    if facts.identity.get("executor") == OFFLINE_EXECUTOR:
        yield (
            "The executor is a rule-based catalogue of mechanisms, not a language model. The quality of the programs "
            "is the catalogue's; what the policy can contribute is which mechanisms are asked for."
        )
    if facts.status.policy_frozen:
        yield "The policy was frozen: a control run, whose result owes nothing to training."
    else:
        yield (
            "A gain over the seed does not show that training helped. That takes a control run with the same settings "
            "and a frozen policy (./run.sh --freeze-policy), and several seeds of both."
        )
    silent = sum(row.zero_signal for row in rows)
    if silent:
        yield f"{silent} of {len(rows)} updates had no learning signal: all rewards within each group were equal."


def _about_services(rows: Sequence[Update]) -> Iterator[str]:
    quarantined = sum(row.quarantined for row in rows)
    if quarantined:
        yield (
            f"The judge gave no usable verdict on {quarantined} candidates, also when asked again; they count as "
            "invalid."
        )
    if any(row.cost_usd is None for row in rows):
        yield "The cost of the executor is not known for every update, so no total is given."
