"""One rollout, from asking for guidance to reporting its reward; resumable after every stage.

The order is fixed: a stage's result is in the journal before the next stage's side effect begins, so a killed process
repeats at most the call that it was in.  What a candidate did wrong becomes a verdict; what a service did wrong is
raised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from harness.contract import TaskContract
from harness.execution import ExecutionClient
from harness.grid import Grid, Slot, archive_timestep, group_uid, sampling_seed
from harness.journal import RolloutJournal
from harness.lanes import Lane
from harness.parsing import GuidanceParse, extract_solution_code, extract_strict_guidance, extract_terminal_tag_or_none
from harness.policy import GuidanceReply
from harness.progress import utc_now
from harness.prompts import PROMPT_MODE, Prompt, build_execution_prompt
from harness.rollout_log import RolloutProgress
from harness.scorer import Scorer
from harness.state import LibraryEntry, VerdictStatus, VerificationResult, derived_id
from harness.summaries import NO_SUMMARY, canonical_summary

ALGORITHM = "ttt-discover"


class Policy(Protocol):
    """The trained policy as the search sees it: a call and the report on exactly that call."""

    async def guide(self, prompt: Prompt, *, seed: int) -> GuidanceReply:
        """One guidance request; raises `PolicyUnavailable`."""

    async def report(self, body: Mapping[str, Any]) -> None:
        """Report a score against a receipt; idempotent by `agent_record_id`; raises `PolicyUnavailable`."""


@dataclass(frozen=True)
class Attempt:
    """One try at a whole step; a voided try is never mixed with the next."""

    step: int
    number: int


@dataclass(frozen=True)
class Parent:
    """What one group improves: an archive node, its entry and the one prompt that its rollouts share."""

    node_id: str
    entry: LibraryEntry
    prompt: Prompt


@dataclass(frozen=True)
class RolloutOutcome:
    """A finished rollout: everything needed to archive it and to show it."""

    step: int
    slot: Slot
    parent: Parent
    receipt: str
    guidance: GuidanceParse
    guidance_text: str
    solution: str
    raw_summary: str | None
    verdict: VerificationResult
    prompt_tokens: int
    completion_tokens: int
    executor_attempts: int
    executor_prompt_tokens: int
    executor_completion_tokens: int
    cost_usd: float | None
    finished_at: str


@dataclass(frozen=True)
class Services:
    """The three services of a rollout, each behind its own lane."""

    policy: Policy
    executor: ExecutionClient
    scorer: Scorer
    policy_lane: Lane
    executor_lane: Lane
    judge_lane: Lane


class RolloutRunner:
    """Runs the rollouts of one attempt at one step."""

    def __init__(
        self,
        services: Services,
        journal: RolloutJournal,
        contract: TaskContract,
        grid: Grid,
        attempt: Attempt,
        run_seed: int,
    ) -> None:
        self._services = services
        self._journal = journal
        self._contract = contract
        self._grid = grid
        self._attempt = attempt
        self._run_seed = run_seed

    async def run(self, slot: Slot, parent: Parent, done: RolloutProgress) -> RolloutOutcome:
        """Go on from whatever `done` holds until the reward is reported."""
        guidance = done.guidance if done.guidance is not None else await self._guide(slot, parent)
        parsed = extract_strict_guidance(guidance["text"], guidance["finish_reason"])
        execution = done.execution
        if execution is None and parsed.guidance is not None and done.verdict is None:
            execution = await self._execute(slot, parent, parsed.guidance)
        code, rejection = self._program(parsed, execution)
        if done.verdict is None:
            verdict = await self._judge(slot, code, rejection)
        else:
            verdict = VerificationResult.from_dict(done.verdict["verification"])
        outcome = RolloutOutcome(
            step=self._attempt.step,
            slot=slot,
            parent=parent,
            receipt=guidance["receipt"],
            guidance=parsed,
            guidance_text=guidance["text"],
            solution=code,
            raw_summary=extract_terminal_tag_or_none(execution["text"], "summary") if execution else None,
            verdict=verdict,
            prompt_tokens=token_count(guidance["usage"], "prompt_tokens"),
            completion_tokens=token_count(guidance["usage"], "completion_tokens"),
            executor_attempts=token_count(execution, "attempts") if execution else 0,
            executor_prompt_tokens=token_count(execution["usage"], "prompt_tokens") if execution else 0,
            executor_completion_tokens=token_count(execution["usage"], "completion_tokens") if execution else 0,
            cost_usd=execution.get("cost_usd") if execution else 0.0,
            finished_at=utc_now(),
        )
        if not done.reported:
            await self._services.policy.report(self.report_body(outcome))
            await self._journal.append(self._record("reported", slot, reward=verdict.reward))
        return outcome

    async def _guide(self, slot: Slot, parent: Parent) -> dict[str, Any]:
        seed = sampling_seed(self._run_seed, self._attempt.step, self._attempt.number, slot)
        async with self._services.policy_lane:
            reply = await self._services.policy.guide(parent.prompt, seed=seed)
        record = self._record(
            "guidance",
            slot,
            receipt=reply.receipt,
            text=reply.text,
            finish_reason=reply.finish_reason,
            usage=dict(reply.usage),
        )
        await self._journal.append(record)
        return record

    async def _execute(self, slot: Slot, parent: Parent, guidance: str) -> dict[str, Any]:
        prompt = build_execution_prompt(contract=self._contract, entry=parent.entry, guidance=guidance)
        async with self._services.executor_lane:
            reply = await self._services.executor.complete(prompt)
        record = self._record(
            "execution",
            slot,
            text=reply.text,
            reasoning=reply.reasoning,
            finish_reason=reply.finish_reason,
            usage=dict(reply.usage),
            model=reply.model,
            attempts=reply.attempts,
            elapsed_s=reply.elapsed_s,
            cost_usd=reply.cost_usd,
        )
        await self._journal.append(record)
        return record

    def _program(
        self, parsed: GuidanceParse, execution: Mapping[str, Any] | None
    ) -> tuple[str, VerificationResult | None]:
        """The program to judge, or "" with the verdict of a rollout that never reaches the judge."""
        if parsed.guidance is None:
            return "", VerificationResult.rejected(
                VerdictStatus.GUIDANCE_FORMAT_ERROR, parsed.error or "malformed guidance"
            )
        if execution is None:
            return "", None
        if not execution["text"].strip():
            reason = f"no final content (finish={execution['finish_reason'] or 'unknown'})"
            return "", VerificationResult.rejected(VerdictStatus.EMPTY_RESPONSE, reason)
        solution = extract_solution_code(execution["text"], self._contract.solution_language)
        if solution.code is None:
            return "", VerificationResult.rejected(VerdictStatus.PARSE_ERROR, solution.error or "no program found")
        return solution.code, None

    async def _judge(self, slot: Slot, code: str, rejection: VerificationResult | None) -> VerificationResult:
        if rejection is None:
            async with self._services.judge_lane:
                verdict = await self._services.scorer.evaluate(code)
        else:
            verdict = rejection
        await self._journal.append(self._record("verdict", slot, verification=verdict.to_dict()))
        return verdict

    def _record(self, kind: str, slot: Slot, **fields: Any) -> dict[str, Any]:
        return {"kind": kind, "attempt": self._attempt.number, "group": slot.group, "rollout": slot.rollout, **fields}

    # -- identities and the two documents that leave a rollout

    def entry_id(self, slot: Slot) -> str:
        """The archive id of this slot's entry, known before it is made."""
        return derived_id(self._run_seed, "entry", self._attempt.step, self._attempt.number, slot.group, slot.rollout)

    def node_id(self, slot: Slot) -> str:
        """The archive id of this slot's node."""
        return derived_id(self._run_seed, "node", self._attempt.step, self._attempt.number, slot.group, slot.rollout)

    def report_body(self, outcome: RolloutOutcome) -> dict[str, Any]:
        """What Reef is told: the reward of one receipt, placed in the grid."""
        attempt, slot, verdict = self._attempt, outcome.slot, outcome.verdict
        record_id = derived_id(self._run_seed, "report", attempt.step, attempt.number, slot.group, slot.rollout)
        return {
            "score": verdict.reward,
            "feedback": f"{verdict.status}: {verdict.message}"[:2000],
            "references": [outcome.receipt],
            "agent_record_id": record_id,
            "metadata": {
                "comparison_set": f"tttd-step-{attempt.step}-group-{slot.group}",
                "algorithm": ALGORITHM,
                "step": attempt.step,
                "attempt": attempt.number,
                "group": slot.group,
                "rollout": slot.rollout,
                "groups_per_step": self._grid.groups,
                "rollouts_per_group": self._grid.rollouts,
                "parent_id": outcome.parent.node_id,
                "search_value": verdict.raw_score,
                "guidance_ttt": True,
                "prompt_mode": PROMPT_MODE,
                "archive_timestep": archive_timestep(attempt.step),
                "library_entry_id": self.entry_id(slot),
            },
        }

    def entry(self, outcome: RolloutOutcome) -> LibraryEntry:
        """The archive's record of a finished rollout; prompts and raw texts stay in the journal."""
        verdict = outcome.verdict
        clean = canonical_summary(outcome.raw_summary or "", outcome.solution)
        parent_code = outcome.parent.entry.solution
        return LibraryEntry(
            id=self.entry_id(outcome.slot),
            parent_id=outcome.parent.node_id,
            problem_id=outcome.parent.entry.problem_id,
            timestep=archive_timestep(self._attempt.step),
            guidance=outcome.guidance.guidance or "",
            execution_thinking="",
            solution=outcome.solution,
            verifier_reward=verdict.reward,
            verifier_raw_score=verdict.raw_score,
            verifier_status=verdict.status,
            verifier_message=verdict.message[:2000],
            summary=clean.text or NO_SUMMARY,
            reusable_idea=None,
            failure_mode=None if verdict.valid else verdict.status,
            metadata={
                "group_uid": group_uid(self._attempt.step, outcome.slot.group),
                "attempt": self._attempt.number,
                "rollout": outcome.slot.rollout,
                "agent_record_id": outcome.receipt,
                "selected_node_id": outcome.parent.node_id,
                "selected_parent_entry_id": outcome.parent.entry.id,
                "selected_parent_solution_sha256": hashlib.sha256(parent_code.encode()).hexdigest(),
                "guidance_format_ok": outcome.guidance.guidance is not None,
                "raw_model_summary": clean.text or None,
                "summary_code_removed": clean.removed_lines + clean.removed_fences,
                "prompt_mode": PROMPT_MODE,
            },
        )


def token_count(usage: Mapping[str, Any], name: str) -> int:
    """A count that a service gave, or 0 when it gave none."""
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
