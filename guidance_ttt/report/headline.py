"""The first screen of a report: the numbers that matter and the protocol under which they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from guidance_ttt.archive_view import place_of
from guidance_ttt.report.facts import RunFacts, number_in
from guidance_ttt.report.provenance import named, run_dates
from guidance_ttt.report.series import Update, elapsed_s, spent_usd
from guidance_ttt.report.words import duration, score_text, signed
from guidance_ttt.terminal import one_line

OWN_SUITE = "own"
_SUITES = {OWN_SUITE: "this project's own case set", "frontiercs": "the official FrontierCS cases"}


@dataclass(frozen=True)
class KeyNumber:
    """One number of the first screen, with a few words of what it means."""

    label: str
    value: str | None
    detail: str


def key_numbers(facts: RunFacts, rows: Sequence[Update]) -> list[KeyNumber]:
    """The winner first, then what it took."""
    found = list(_scores(facts))
    evaluations = len(facts.candidates)
    valid = sum(row.valid for row in rows)
    share = f"{valid:,} valid ({valid / evaluations:.0%})" if evaluations else "none yet"
    found.append(KeyNumber("Evaluations", f"{evaluations:,}", share))
    total = facts.status.total_steps
    asked = f"of {total} asked for" if total and total > len(rows) else _grid(facts)
    found.append(KeyNumber("Updates", str(len(rows)), asked))
    spent = elapsed_s(rows)
    if spent is not None:
        cost = spent_usd(rows)
        money = "executor cost unknown"
        if cost is not None:
            money = f"${cost[-1]:.2f} for the executor" if cost[-1] > 0 else "no cost for the executor"
        found.append(KeyNumber("Time in updates", duration(spent[-1]), money))
    return found


def _scores(facts: RunFacts) -> Iterator[KeyNumber]:
    best, seed = facts.best.verifier_raw_score, facts.seed.verifier_raw_score
    place = place_of(facts.best)
    where = "the seed itself: nothing better was found" if place.step == 0 else f"found in update {place.step}"
    gain = None if best is None or seed is None or place.step == 0 else signed(best - seed)
    detail = where if gain is None else f"{gain} over the seed, {where}"
    yield KeyNumber(f"Best {facts.score_label}", score_text(best), detail)
    yield KeyNumber("Seed", score_text(seed), "the program that the search began with")
    mean = number_in(facts.submission, "mean")
    if facts.submission.get("remeasured") and mean is not None:
        yield KeyNumber("Submitted", score_text(mean), "mean of new measurements after the search")
    rewards = facts.result.get("rewards")
    reward = number_in(rewards, "reward") if isinstance(rewards, dict) else None
    if reward is not None:
        yield KeyNumber("Verifier", score_text(reward), _verifier(facts))


def _verifier(facts: RunFacts) -> str:
    problem = "" if facts.contract is None else f", problem\N{NO-BREAK SPACE}{facts.contract.judge_problem_id}"
    return f"the task's own verifier{problem}"


def _grid(facts: RunFacts) -> str:
    groups, rollouts = facts.identity.get("groups_per_step"), facts.identity.get("rollouts_per_group")
    return f"of {groups} groups x {rollouts} rollouts" if groups and rollouts else "committed"


def protocol(facts: RunFacts) -> list[tuple[str, str]]:
    """How the numbers came about: what is needed to read them, one fact a row."""
    order = "lower is better" if facts.lower_is_better else "higher is better"
    suite = facts.identity.get("judge_suite")
    cases = (
        "cases that the state does not name"
        if suite is None
        else _SUITES.get(str(suite), f"the case set {one_line(str(suite))}")
    )
    whole = facts.contract is not None and facts.problem == facts.contract.judge_problem_id
    share = "all" if whole else "a part"
    part = "" if facts.problem is None else f"problem {facts.problem} ({share} of the task's cases)"
    seed = facts.identity.get("run_seed", "unknown")
    return [
        ("Score", f"{facts.score_label}, {order}"),
        ("Scored on", f"{part} of {cases}" if part else cases),
        ("Policy", _policy(facts)),
        ("Executor", _executor(facts)),
        ("Grid", f"{len(facts.summaries)} updates {_grid(facts)}, random seed {seed}"),
        ("Recorded", run_dates(facts) or "no event log"),
        ("State", _standing(facts)),
    ]


def _policy(facts: RunFacts) -> str:
    name = named(facts.identity, "model") or "a model that the state does not name"
    rank = facts.identity.get("lora_rank")
    if facts.status.policy_frozen:
        return f"{name}, frozen: a control run, no update changed it"
    return f"{name}, trained by its LoRA adapter" + (f" of rank {rank}" if rank else "")


def _executor(facts: RunFacts) -> str:
    model = named(facts.identity, "executor_model") or named(facts.backend, "model")
    if facts.identity.get("executor") == "offline":
        return "the offline catalogue, which is no language model"
    return model or "a model that the state does not name"


def _standing(facts: RunFacts) -> str:
    status = facts.status
    if status.live:
        return "running" if status.position is None else f"running; {status.position.describe()}"
    if status.stopped is not None:
        return f"stopped: {status.stopped}"
    if status.last_error is not None:
        return f"ended with an error: {one_line(status.last_error['message'], 400)}"
    if status.total_steps and status.total_steps > status.steps_done:
        return f"not running, {status.steps_done} of {status.total_steps} updates done"
    return "finished" if facts.result else "not running"


def page_title(facts: RunFacts) -> str:
    """The name of the report."""
    return f"{facts.task} - Guidance-TTT report"


def as_context(facts: RunFacts, rows: Sequence[Update]) -> dict[str, Any]:
    """What the template needs of this."""
    return {"title": page_title(facts), "numbers": key_numbers(facts, rows), "protocol": protocol(facts)}
