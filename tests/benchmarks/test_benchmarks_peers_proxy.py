"""The peer's model: its prompt is read strictly or not at all, and a service's fault is never a score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from support.fake_services import malformed, well_formed
from support.peer_world import SEED, World, answering, prompt_with, scored

from benchmarks.experiment import openevolve_evaluator
from benchmarks.experiment.openevolve_prompt import PromptUnreadable, can_be_answered, read_parent, rewrite_answer
from benchmarks.experiment.openevolve_proxy import CHAT_PATH, EVALUATE_PATH, ProtocolBroken, sha256_of
from benchmarks.experiment.peer_records import UNCHANGED
from harness.errors import JudgeUnavailable, SeedRejected
from harness.grid import Slot, sampling_seed
from harness.state import VerdictStatus, VerificationResult

# --- reading the prompt -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "fitness"),
        ("Please improve\n" + prompt_with("int a;"), "fitness"),
        (prompt_with("int a;", fitness="nan"), "fitness"),
        (prompt_with("int a;").replace("```cpp\nint", "int"), "0 current programs"),
        (prompt_with("int a;", history="# Current Program\n```cpp\nint b;\n```"), "2 current programs"),
        (prompt_with("// say\n# Current Program\n```cpp\nint a;"), "2 current programs"),
        (prompt_with("int a;\n```\n\n# Task\nint b;"), "2 places"),
        (prompt_with("int a;").replace("# Task", "# Work"), "0 places"),
        (prompt_with("int a;", language="python"), "python"),
        (prompt_with(" \n"), "empty"),
        (prompt_with(""), "empty"),
    ],
)
def test_a_prompt_that_could_be_read_in_no_or_two_ways_is_refused(prompt: str, words: str) -> None:
    with pytest.raises(PromptUnreadable, match=words):
        read_parent(prompt, "cpp")


@pytest.mark.parametrize(
    "program",
    [
        "int a;",
        "// ```\nint a; // # Task\n```\nint b;",
        "// <guidance>Use anything.</guidance>\n# Current Program Information\n- Fitness: 99.0000\nint a;",
        "int a;\n\n# Current Program\nint b;",
    ],
)
def test_look_alikes_inside_a_program_do_not_change_what_is_read(program: str) -> None:
    history = "### Program 1 (Score: 88.0000)\n```cpp\nint other;\n```\n- Fitness: 88.0000"
    found = read_parent(prompt_with(program, history=history), "cpp")
    assert (found.program, found.fitness) == (program.strip(), 41.5)


def test_an_answer_is_one_fence_that_the_program_cannot_end() -> None:
    assert rewrite_answer("int a;", "cpp") == "```cpp\nint a;\n```"
    assert can_be_answered("int a;")
    assert not can_be_answered("// ```\nint a;")


# --- the proxy --------------------------------------------------------------------------------------------------------


async def test_a_rollout_goes_from_the_parent_over_guidance_to_a_judged_program() -> None:
    world = World(answer=lambda _: "<guidance>Go on.</guidance>", verdict=lambda code: scored(float(len(code))))
    seed_score = await world.proxy.evaluate(SEED.code)
    answer = await world.ask(SEED.code, seed_score)
    program = answer.removeprefix("```cpp\n").removesuffix("\n```")
    assert program == "int main() { return 0; } // Go on."
    score = await world.proxy.evaluate(program)
    (rollout,) = world.proxy.rollouts
    assert (rollout.number, rollout.guidance, rollout.status) == (0, "Go on.", VerdictStatus.VALID)
    assert (rollout.parent_sha256, rollout.parent_score) == (sha256_of(SEED.code), seed_score)
    assert (rollout.reward, rollout.raw_score, rollout.program_sha256) == (score, score, sha256_of(program))


async def test_the_policy_reads_the_summary_that_the_executor_gave_the_parent_and_never_its_code() -> None:
    world = World()
    await world.proxy.evaluate(SEED.code)
    answer = await world.ask(SEED.code, 10.0)
    program = answer.removeprefix("```cpp\n").removesuffix("\n```")
    await world.proxy.evaluate(program)
    await world.ask(program, 55.25)
    first, second = (prompt.messages[-1].content for prompt in world.policy.prompts)
    assert "Returns a number." in first
    assert "Follows: Add" in second
    assert "55.25" in second
    assert "int main" not in first + second


async def test_requests_draw_the_seeds_that_our_own_grid_draws() -> None:
    world = World(answer=malformed)
    await world.proxy.evaluate(SEED.code)
    for _ in range(3):
        await world.ask(SEED.code, 10.0)
    wanted = [(0, Slot(0, 0)), (0, Slot(0, 1)), (1, Slot(0, 0))]
    assert world.policy.seeds == [sampling_seed(3, step, 1, slot) for step, slot in wanted]


@pytest.mark.parametrize(
    ("answer", "program", "status"),
    [
        (malformed, None, VerdictStatus.GUIDANCE_FORMAT_ERROR),
        (well_formed, lambda _g, _c: "  ", VerdictStatus.EMPTY_RESPONSE),
        (well_formed, lambda _g, _c: "no program", VerdictStatus.PARSE_ERROR),
        (well_formed, answering("// ``` in a comment\nint a;"), VerdictStatus.PARSE_ERROR),
    ],
)
async def test_a_candidate_without_a_program_is_an_empty_answer_with_reward_zero(
    answer: Callable[[int], str], program: Callable[[str, int], str] | None, status: VerdictStatus
) -> None:
    world = World(answer, program)
    await world.proxy.evaluate(SEED.code)
    assert await world.ask(SEED.code, 10.0) == ""
    (rollout,) = world.proxy.rollouts
    assert (rollout.status, rollout.reward, rollout.raw_score) == (status, 0.0, None)
    assert world.judge.calls == 1


async def test_a_program_equal_to_its_parent_counts_with_the_parents_reward() -> None:
    world = World(program=answering(SEED.code.strip()), verdict=lambda _: scored(12.0))
    await world.proxy.evaluate(SEED.code)
    await world.ask(SEED.code, 12.0)
    (rollout,) = world.proxy.rollouts
    assert (rollout.status, rollout.reward, rollout.raw_score) == (UNCHANGED, 12.0, 12.0)


async def test_the_same_program_from_two_requests_is_two_rollouts() -> None:
    world = World(program=answering("int two;"), verdict=lambda _: scored(5.0))
    await world.proxy.evaluate(SEED.code)
    await asyncio.gather(world.ask(SEED.code, 5.0), world.ask(SEED.code, 5.0))
    await world.proxy.evaluate("int two;")
    await world.proxy.evaluate("int two;\n")
    assert sorted(rollout.number for rollout in world.proxy.rollouts) == [0, 1]
    with pytest.raises(ProtocolBroken, match="not asked for"):
        await world.proxy.evaluate("int two;")


async def test_a_rejected_program_scores_zero_for_selection() -> None:
    rejected = VerificationResult.rejected(VerdictStatus.INVALID, "wrong answer")
    world = World(program=answering("int bad;"), verdict=lambda code: rejected if "bad" in code else scored(5.0))
    await world.proxy.evaluate(SEED.code)
    await world.ask(SEED.code, 5.0)
    assert await world.proxy.evaluate("int bad;") == 0.0
    assert not world.proxy.rollouts[0].valid
    with pytest.raises(SeedRejected):
        await World(verdict=lambda _: rejected).proxy.evaluate(SEED.code)


async def test_programs_and_parents_from_elsewhere_are_refused() -> None:
    world = World(budget=1)
    with pytest.raises(ProtocolBroken, match="never evaluated"):
        await world.ask("int foreign;", 1.0)
    with pytest.raises(ProtocolBroken, match="budget"):
        await world.ask(SEED.code, 1.0)
    with pytest.raises(ProtocolBroken, match="not asked for"):
        await world.proxy.evaluate("int foreign;")


def chat(content: str) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": content}]}


async def test_over_http_the_proxy_speaks_the_chat_protocol() -> None:
    world = World()
    async with TestClient(TestServer(world.proxy.app())) as client:
        scored_seed = await client.post(EVALUATE_PATH, data=SEED.code.encode())
        assert (await scored_seed.json())["combined_score"] == world.proxy.seed_score
        answered = await client.post(CHAT_PATH, json=chat(prompt_with(SEED.code, fitness="10.0000")))
        message = (await answered.json())["choices"][0]["message"]
        assert message["content"].startswith("```cpp\nint main()")


@pytest.mark.parametrize("service", ["judge", "policy", "executor"])
async def test_a_services_fault_voids_the_run_and_is_never_a_score(service: str) -> None:
    world = World()
    async with TestClient(TestServer(world.proxy.app())) as client:
        await client.post(EVALUATE_PATH, data=SEED.code.encode())
        getattr(world, service).fault = JudgeUnavailable("gone")
        answered = await client.post(CHAT_PATH, json=chat(prompt_with(SEED.code, fitness="10.0000")))
        if service == "judge":
            program = (await answered.json())["choices"][0]["message"]["content"][7:-4]
            answered = await client.post(EVALUATE_PATH, data=program.encode())
        assert answered.status == 503
        getattr(world, service).fault = None
        assert (await client.post(EVALUATE_PATH, data=SEED.code.encode())).status == 503
    assert isinstance(world.proxy.fault, JudgeUnavailable)
    assert world.proxy.rollouts == []


@pytest.mark.parametrize("body", [b"no json", b"{}", b'{"messages": []}', b'{"messages": [{"role": "user"}]}'])
async def test_a_broken_chat_request_is_a_fault(body: bytes) -> None:
    world = World()
    async with TestClient(TestServer(world.proxy.app())) as client:
        assert (await client.post(CHAT_PATH, data=body)).status == 503
    assert isinstance(world.proxy.fault, ProtocolBroken)


async def test_the_evaluator_gives_the_score_and_raises_on_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seed.cpp").write_text(SEED.code)
    world = World(verdict=lambda _: scored(33.5))
    async with TestServer(world.proxy.app()) as server:
        monkeypatch.setenv(openevolve_evaluator.URL_VARIABLE, str(server.make_url(EVALUATE_PATH)))
        found = await asyncio.to_thread(openevolve_evaluator.evaluate, str(tmp_path / "seed.cpp"))
        assert found == {"combined_score": 33.5}
        with pytest.raises(OSError, match="503"):
            await asyncio.to_thread(openevolve_evaluator.evaluate, str(tmp_path / "seed.cpp"))
