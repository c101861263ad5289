"""The model and the evaluator of OpenEvolve in this experiment, as one small HTTP service on this machine.

`POST /v1/chat/completions` is OpenEvolve's model: it takes the parent out of the prompt, asks the frozen policy for
guidance with the harness's own guidance prompt, asks the executor for the program with the harness's own executor
prompt, and answers with that program.  `POST /evaluate` is its evaluator: the harness's judge client.

What a candidate did wrong is a record with its reward.  What a service did wrong, or a request that does not fit, is a
fault: it is answered with 503, remembered in `fault`, and whoever runs the peer must throw the whole run away.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from benchmarks.experiment.openevolve_prompt import can_be_answered, read_parent, rewrite_answer
from benchmarks.experiment.peer_records import UNCHANGED, PeerRollout
from harness.bootstrap import SeedProgram
from harness.contract import TaskContract
from harness.errors import SeedRejected
from harness.execution import ExecutionClient
from harness.grid import Grid, Slot, sampling_seed
from harness.parsing import extract_solution_code, extract_strict_guidance, extract_terminal_tag_or_none
from harness.prompts import Prompt, build_execution_prompt
from harness.rollout import Policy
from harness.scorer import Scorer
from harness.state import LibraryEntry, VerdictStatus, VerificationResult
from harness.summaries import NO_SUMMARY, canonical_summary

CHAT_PATH = "/v1/chat/completions"
EVALUATE_PATH = "/evaluate"
MODEL = "frozen-guidance"
MAX_BODY_BYTES = 8 * 2**20
FIRST_ATTEMPT = 1


class ProtocolBroken(Exception):
    """OpenEvolve asked for something that this experiment does not expect."""


@dataclass(frozen=True)
class PeerServices:
    """The three services that a rollout of the search uses, and the prompt that the policy gets."""

    policy: Policy
    executor: ExecutionClient
    scorer: Scorer
    build_prompt: Callable[[LibraryEntry], Prompt]


@dataclass
class _Known:
    """A program that was written here (or the seed), with its summary and the newest verdict on it."""

    summary: str
    verdict: VerificationResult | None = None


@dataclass(frozen=True)
class _Asked:
    """One rollout between its request and its verdict."""

    number: int
    parent_sha256: str
    parent_score: float
    guidance: str = ""


class PeerProxy:
    """Answers one run of OpenEvolve; `rollouts` fill up in the order in which they end."""

    def __init__(
        self,
        services: PeerServices,
        contract: TaskContract,
        seed: SeedProgram,
        *,
        grid: Grid,
        budget: int,
        run_seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rollouts: list[PeerRollout] = []
        self.fault: Exception | None = None
        self._services = services
        self._contract = contract
        self._language = contract.language.fence
        self._grid = grid
        self._budget = budget
        self._run_seed = run_seed
        self._clock = clock
        self._started_s = clock()
        self._requests = 0
        self._seed_sha256 = sha256_of(seed.code)
        self._known = {self._seed_sha256: _Known(seed.summary)}
        self._unjudged: dict[str, deque[_Asked]] = {}

    @property
    def seed_score(self) -> float | None:
        """The seed's score once it has been measured."""
        verdict = self._known[self._seed_sha256].verdict
        return None if verdict is None else verdict.raw_score

    def app(self) -> web.Application:
        """The service, not yet bound to a port."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(CHAT_PATH, self._guarded(self._chat))
        app.router.add_post(EVALUATE_PATH, self._guarded(self._evaluate))
        return app

    def _guarded(
        self, answer: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """After the first fault nothing is answered any more, so that no later score rests on it."""

        async def handle(request: web.Request) -> web.Response:
            if self.fault is None:
                try:
                    return await answer(request)
                except Exception as error:
                    self.fault = self.fault or error
            return web.json_response({"error": {"message": f"this run is void: {self.fault}"}}, status=503)

        return handle

    # --- the model ----------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.Response:
        text = await self.complete(user_message(await request.read()))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return web.json_response(
            {
                "id": f"chatcmpl-{self._requests}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": MODEL,
                "choices": [choice],
            }
        )

    async def complete(self, prompt: str) -> str:
        """One rollout up to its program; the empty text means that there is none, which OpenEvolve skips.

        Raises `PromptUnreadable`, `ProtocolBroken` or a service's fault.
        """
        number = self._requests
        self._requests += 1
        if number >= self._budget:
            raise ProtocolBroken(f"more than the {self._budget} requests of the budget")
        parent = read_parent(prompt, self._language)
        parent_sha256 = sha256_of(parent.program)
        entry = self._entry(parent.program, parent_sha256, parent.fitness)
        reply = await self._services.policy.guide(self._services.build_prompt(entry), seed=self._sampling_seed(number))
        parsed = extract_strict_guidance(reply.text, reply.finish_reason)
        asked = _Asked(number, parent_sha256, parent.fitness, parsed.guidance or "")
        if parsed.guidance is None:
            self._record(asked, None, VerdictStatus.GUIDANCE_FORMAT_ERROR)
            return ""
        execution = await self._services.executor.complete(
            build_execution_prompt(contract=self._contract, entry=entry, guidance=parsed.guidance)
        )
        if not execution.text.strip():
            self._record(asked, None, VerdictStatus.EMPTY_RESPONSE)
            return ""
        program = extract_solution_code(execution.text, self._contract.solution_language).code
        if program is None or not can_be_answered(program):
            self._record(asked, None, VerdictStatus.PARSE_ERROR)
            return ""
        return self._answer(asked, program, extract_terminal_tag_or_none(execution.text, "summary") or "")

    def _answer(self, asked: _Asked, program: str, raw_summary: str) -> str:
        """Remember a program and hand it over; one that equals its parent is never evaluated by OpenEvolve."""
        program_sha256 = sha256_of(program)
        if program_sha256 == asked.parent_sha256:
            verdict = self._known[program_sha256].verdict
            assert verdict is not None  # it was a parent, so it has one
            self._record(asked, program_sha256, UNCHANGED, verdict.reward, asked.parent_score)
        else:
            known = self._known.setdefault(program_sha256, _Known(""))
            known.summary = canonical_summary(raw_summary, program).text or NO_SUMMARY
            self._unjudged.setdefault(program_sha256, deque()).append(asked)
        return rewrite_answer(program, self._language)

    def _entry(self, program: str, program_sha256: str, fitness: float) -> LibraryEntry:
        """The parent as the harness's archive would hold it."""
        known = self._known.get(program_sha256)
        if known is None or known.verdict is None:
            raise ProtocolBroken("the current program was never evaluated here")
        return LibraryEntry(
            id=program_sha256,
            parent_id=None,
            problem_id=self._contract.judge_problem_id,
            timestep=0,
            guidance="",
            execution_thinking="",
            solution=program,
            verifier_reward=known.verdict.reward,
            verifier_raw_score=fitness if known.verdict.valid else None,
            verifier_status=known.verdict.status,
            verifier_message=known.verdict.message,
            summary=known.summary,
            reusable_idea=None,
            failure_mode=None,
            metadata={"raw_model_summary": known.summary},
        )

    def _sampling_seed(self, number: int) -> int:
        """The seed that our own runs of this run seed use at the same place of the budget."""
        step, place = divmod(number, self._grid.size)
        slot = Slot(*divmod(place, self._grid.rollouts))
        return sampling_seed(self._run_seed, step, FIRST_ATTEMPT, slot)

    # --- the evaluator ------------------------------------------------------------------------------------------------

    async def _evaluate(self, request: web.Request) -> web.Response:
        return web.json_response({"combined_score": await self.evaluate((await request.read()).decode("utf-8"))})

    async def evaluate(self, text: str) -> float:
        """The score that OpenEvolve selects by: the judge's, and 0 for a program that it rejects.

        Raises `ProtocolBroken`, `SeedRejected` or `JudgeUnavailable`.
        """
        program = text.strip()
        program_sha256 = sha256_of(program)
        waiting = self._unjudged.get(program_sha256)
        is_seed = program_sha256 == self._seed_sha256 and not waiting and self.seed_score is None
        if not waiting and not is_seed:
            raise ProtocolBroken("a program was handed in that was not asked for here")
        asked = waiting.popleft() if waiting else None
        verdict = await self._services.scorer.evaluate(program)
        if is_seed and (not verdict.valid or verdict.raw_score is None):
            raise SeedRejected(f"the judge rejects the seed ({verdict.status}): {verdict.message[:500]}")
        self._known[program_sha256].verdict = verdict
        if asked is not None:
            self._record(asked, program_sha256, verdict.status, verdict.reward, verdict.raw_score)
        return verdict.raw_score if verdict.valid and verdict.raw_score is not None else 0.0

    def _record(
        self,
        asked: _Asked,
        program_sha256: str | None,
        status: str,
        reward: float = 0.0,
        raw_score: float | None = None,
    ) -> None:
        self.rollouts.append(
            PeerRollout(
                number=asked.number,
                parent_sha256=asked.parent_sha256,
                parent_score=asked.parent_score,
                guidance=asked.guidance,
                program_sha256=program_sha256,
                status=str(status),
                reward=reward,
                raw_score=raw_score,
                ended_s=round(self._clock() - self._started_s, 3),
            )
        )


def sha256_of(program: str) -> str:
    """A program's name here; white space around it does not count, because OpenEvolve takes it off."""
    return hashlib.sha256(program.strip().encode("utf-8")).hexdigest()


def user_message(body: bytes) -> str:
    """The last user message of a chat request; raises `ProtocolBroken`."""
    try:
        messages = json.loads(body)["messages"]
        contents = [message["content"] for message in messages if message["role"] == "user"]
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolBroken(f"the chat request cannot be read: {error!r}") from None
    if not contents or not isinstance(contents[-1], str):
        raise ProtocolBroken("the chat request has no user message")
    return contents[-1]
