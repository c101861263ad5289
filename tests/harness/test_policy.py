"""The policy's client over real loopback HTTP: receipts, idempotent reports, and what is never shown."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web
from loopback import Handler, Seen, answer, refusing_url, script, serve, serve_closing

from harness.errors import ConfigError, PolicyUnavailable
from harness.policy import GuidanceReply, ReefPolicyClient
from harness.prompts import ChatMessage

TOKEN = "sentinel-token-0123"
MESSAGES = (ChatMessage("system", "s"), ChatMessage("user", "u"))
RECEIPT = {"x-reef-agent-record-id": "receipt-1"}
CHAT = {
    "choices": [{"message": {"content": "<guidance>a</guidance>"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "note": "x"},
}


def client(url: str, **changes: Any) -> ReefPolicyClient:
    settings: dict[str, Any] = {"timeout_s": 5.0, "max_retries": 2, "retry_backoff_s": 0.01}
    return ReefPolicyClient(url, TOKEN, "guidance-ttt-x", **(settings | changes))


async def guide(policy: ReefPolicyClient) -> GuidanceReply:
    return await policy.guide(MESSAGES, seed=7, model="m", max_tokens=99)


async def call(policy: ReefPolicyClient, name: str) -> Any:
    if name == "guide":
        return await guide(policy)
    if name == "report":
        return await policy.report({"agent_record_id": "r", "score": 1.0})
    return await getattr(policy, name)()


async def fault(handler: Handler, name: str = "guide", **changes: Any) -> str:
    async with serve(handler) as server, client(server.url, **changes) as policy:
        with pytest.raises(PolicyUnavailable) as caught:
            await call(policy, name)
    return str(caught.value)


# --- faults ---


async def test_a_reply_without_its_receipt_stops_because_nothing_could_be_reported() -> None:
    assert "x-reef-agent-record-id" in await fault(script([lambda: answer(CHAT)]))
    assert "x-reef-agent-record-id" in await fault(
        script([lambda: answer(CHAT, 200, **{"x-reef-agent-record-id": " "})])
    )


@pytest.mark.parametrize("value", [{}, {"choices": []}, {"choices": [7]}, {"choices": [{}]}, [], "x", None])
async def test_a_reply_without_a_message_is_reefs_fault(value: Any) -> None:
    assert "no message" in await fault(script([lambda: answer(value, 200, **RECEIPT)]))


@pytest.mark.parametrize("status", [400, 401, 404, 500, 501])
async def test_reefs_plain_text_refusal_is_in_the_message_bounded_and_without_the_token(status: int) -> None:
    text = f"unknown scenario {TOKEN} " + "z" * 5000
    message = await fault(script([lambda: web.Response(text=text, status=status)]))
    assert f"HTTP {status}: unknown scenario [redacted]" in message
    assert TOKEN not in message
    assert len(message) < 600


@pytest.mark.parametrize("status", [409, 429, 502, 503, 504])
async def test_a_passing_fault_of_a_guidance_request_is_retried_and_told(status: int) -> None:
    waits: list[tuple[str, float]] = []

    async def note(reason: str, delay_s: float) -> None:
        waits.append((reason, delay_s))

    busy = web.Response(text="busy", status=status)
    handler = script([busy, lambda: answer(CHAT, 200, **RECEIPT)])
    async with serve(handler) as server, client(server.url, on_retry=note) as policy:
        reply = await guide(policy)
    assert (reply.receipt, reply.attempts) == ("receipt-1", 2)
    assert waits == [(f"POST /v1/chat/completions: HTTP {status}: busy", 0.01)]


async def test_a_dead_service_is_one_error_after_bounded_retries() -> None:
    async with client(refusing_url()) as policy:
        with pytest.raises(PolicyUnavailable, match=r"Reef at http://127\.0\.0\.1:1: .*after 3 attempts"):
            await guide(policy)
    async with serve_closing() as server, client(server.url) as policy:
        with pytest.raises(PolicyUnavailable, match="after 3 attempts"):
            await policy.status()
    assert len(server.seen) == 3


async def test_a_guidance_request_that_runs_into_its_limit_is_not_repeated() -> None:
    async def hang(seen: Seen) -> web.Response:
        await asyncio.sleep(60)
        return answer(CHAT)

    started = time.monotonic()
    async with serve(hang) as server, client(server.url, timeout_s=0.3) as policy:
        with pytest.raises(PolicyUnavailable, match=r"no answer within 0\.3 s"):
            await guide(policy)
    assert len(server.seen) == 1
    assert time.monotonic() - started < 3


async def test_a_conflicting_report_is_refused_at_once_with_reefs_words() -> None:
    handler = script([lambda: web.Response(text="record r holds another body", status=409)])
    assert "HTTP 409: record r holds another body" in await fault(handler, "report")


@pytest.mark.parametrize("name", ["status", "report", "releases"])
async def test_an_answer_that_is_no_object_is_reefs_fault(name: str) -> None:
    assert "not an object" in await fault(script([lambda: answer([])]), name)
    assert "without JSON" in await fault(script([lambda: web.Response(text="<html>")]), name)


async def test_a_report_without_its_own_id_is_a_mistake_of_the_caller() -> None:
    async with client(refusing_url()) as policy:
        for body in ({}, {"agent_record_id": " "}, {"agent_record_id": 3}):
            with pytest.raises(ValueError, match="agent_record_id"):
                await policy.report(body)


@pytest.mark.parametrize(
    ("url", "token", "scenario", "timeout_s"),
    [("", "t", "s", 1), ("http://h", "to\nken", "s", 1), ("http://h", "t", " ", 1), ("http://h", "t", "s", 0)],
)
def test_settings_that_cannot_work_are_refused(url: str, token: str, scenario: str, timeout_s: float) -> None:
    with pytest.raises(ConfigError) as caught:
        ReefPolicyClient(url, token, scenario, timeout_s=timeout_s)
    assert "ken" not in str(caught.value).replace("token", "")


# --- what is sent and read ---


async def test_a_guidance_request_samples_untruncated_with_its_seed_and_names_no_release() -> None:
    async with serve(script([lambda: answer(CHAT, 200, **RECEIPT)])) as server, client(server.url) as policy:
        reply = await guide(policy)
        await policy.guide(MESSAGES, seed=None, model="m", max_tokens=1)
    seen = server.seen[0]
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert seen.headers["x-reef-scenario"] == "guidance-ttt-x"
    assert seen.json == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_completion_tokens": 99,
        "chat_template_kwargs": {"enable_thinking": True},
        "stream": False,
        "seed": 7,
    }
    assert "seed" not in server.seen[1].json
    assert (reply.receipt, reply.text, reply.finish_reason) == ("receipt-1", "<guidance>a</guidance>", "stop")
    assert dict(reply.usage) == {"prompt_tokens": 5, "completion_tokens": 2}


@pytest.mark.parametrize("content", [None, 7, [], {}])
async def test_content_that_is_no_text_is_an_empty_answer_and_never_stops_the_step(content: Any) -> None:
    chat = {"choices": [{"message": {"content": content}, "finish_reason": "length"}]}
    async with serve(script([lambda: answer(chat, 200, **RECEIPT)])) as server, client(server.url) as policy:
        reply = await guide(policy)
    assert (reply.text, reply.finish_reason, reply.receipt) == ("", "length", "receipt-1")


async def test_a_report_is_repeated_with_the_same_body_until_reef_has_it() -> None:
    body = {"agent_record_id": "r1", "score": 0.5, "references": ["receipt-1"], "metadata": {"step": 0}}
    done = {"agent_record_id": "r1", "scenario": "guidance-ttt-x", "request_type": "report"}
    async with serve(script([web.Response(status=503), lambda: answer(done)])) as server, client(server.url) as policy:
        assert await policy.report(body) == done
    assert [seen.json for seen in server.seen] == [body, body]
    assert {seen.path for seen in server.seen} == {"/reef/report"}


class ScenarioReef:
    """Knows one scenario once it was created, or once it is loaded, which takes a number of status reads."""

    def __init__(self, *, loaded_after: int | None = None, preload_error: str | None = None) -> None:
        self.loaded_after = loaded_after
        self.preload_error = preload_error
        self.created: list[str] = []
        self.reads = 0

    async def __call__(self, seen: Seen) -> web.Response:
        if seen.path == "/reef/scenarios":
            self.created.append(seen.json["name"])
            return answer({"scenario": seen.json["name"]}, 201)
        if seen.path == "/reef/scenarios/guidance-ttt-x/releases":
            return answer({"scenario": "guidance-ttt-x", "releases": [{"release_id": "b"}, {"release_id": "a"}]})
        self.reads += 1
        known = bool(self.created) or (self.loaded_after is not None and self.reads > self.loaded_after)
        errors = {"guidance-ttt-x": self.preload_error} if self.preload_error else {}
        return answer({"error": None, "scenarios": {"guidance-ttt-x": {}} if known else {}, "preload_errors": errors})


async def test_the_scenario_is_created_once_and_releases_are_listed() -> None:
    reef = ScenarioReef()
    async with serve(reef) as server, client(server.url) as policy:
        assert await policy.ensure_scenario() is True
        assert await policy.ensure_scenario() is False
        assert [row["release_id"] for row in await policy.releases()] == ["b", "a"]
    assert reef.created == ["guidance-ttt-x"]


async def test_a_scenario_that_is_still_loading_is_waited_for_and_not_asked_for() -> None:
    reef = ScenarioReef(loaded_after=2)
    async with serve(reef) as server, client(server.url) as policy:
        assert await policy.ensure_scenario(expected=True) is False
    assert reef.created == []
    assert reef.reads == 3


async def test_an_expected_scenario_that_never_loads_is_created_after_all() -> None:
    for reef in (ScenarioReef(), ScenarioReef(preload_error="its ref is gone")):
        async with serve(reef) as server, client(server.url) as policy:
            assert await policy.ensure_scenario(expected=True, patience_s=0.1) is True
        assert reef.created == ["guidance-ttt-x"]


async def test_the_token_is_not_carried_to_another_place() -> None:
    async with serve(script([lambda: answer({})])) as other:
        target = other.url

        async def redirect(seen: Seen) -> web.Response:
            return web.Response(status=307, headers={"Location": target})

        message = await fault(redirect, "status")
    assert other.seen == []
    assert "HTTP 307" in message


async def test_a_whole_grid_of_requests_is_in_flight_at_once() -> None:
    active = peak = 0

    async def slow(seen: Seen) -> web.Response:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        await asyncio.sleep(0.3)
        active -= 1
        return answer(CHAT, 200, **RECEIPT)

    async with serve(slow) as server, client(server.url) as policy:
        await asyncio.gather(*(guide(policy) for _ in range(128)))
    assert peak == 128
