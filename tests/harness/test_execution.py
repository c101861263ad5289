"""The executor's client over real loopback HTTP: which faults are retried, what is never sent, what a reply says."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from loopback import Loopback, Seen, answer, refusing_url, script, serve, serve_closing

from harness.errors import ConfigError, ExecutorUnavailable
from harness.execution import ExecutionBackend, ExecutionReply, OpenAICompatibleExecutionClient, openai_backend
from harness.execution_backends import FREE, Price
from harness.http_common import MAX_RETRY_WAIT_S, retry_after_s
from harness.prompts import ChatMessage, Prompt

SECRET = "sk-sentinel-0123456789"
PROMPT = Prompt((ChatMessage("system", "s"), ChatMessage("user", "u")))
GOOD: dict[str, Any] = {
    "model": "served",
    "choices": [{"message": {"content": "hello", "reasoning_content": "hmm"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "cost": 0.25, "odd": True},
}


def backend(url: str, **changes: Any) -> ExecutionBackend:
    base = openai_backend(url + "/v1", "some-model", timeout_s=10.0)
    return replace(base, retry_backoff_s=0.01, **changes)


async def ask(
    settings: ExecutionBackend, environ: dict[str, str] | None = None, waits: list[tuple[str, float]] | None = None
) -> ExecutionReply:
    async def note(reason: str, delay_s: float) -> None:
        if waits is not None:
            waits.append((reason, delay_s))

    async with OpenAICompatibleExecutionClient(settings, environ or {}, on_retry=note) as client:
        return await client.complete(PROMPT)


async def failure(settings: ExecutionBackend, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ExecutorUnavailable) as caught:
        await ask(settings, environ)
    return str(caught.value)


# --- faults ---


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
async def test_a_passing_fault_is_retried_with_its_reason(status: int) -> None:
    waits: list[tuple[str, float]] = []
    async with serve(script([answer({"error": {"message": "busy"}}, status), lambda: answer(GOOD)])) as server:
        reply = await ask(backend(server.url), waits=waits)
    assert (reply.text, reply.attempts) == ("hello", 2)
    assert waits[0][0].startswith(f"HTTP {status}: ")
    assert "busy" in waits[0][0]


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422])
async def test_a_refusal_is_final_after_one_request(status: int) -> None:
    async with serve(script([lambda: answer({"error": {"message": "no credit"}}, status)])) as server:
        message = await failure(backend(server.url))
    assert len(server.seen) == 1
    assert f"HTTP {status}" in message
    assert "no credit" in message


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda: web.Response(text="<html>gateway</html>", content_type="text/html"), "not JSON"),
        (lambda: answer([]), "JSON list"),
        (lambda: answer({"error": {"code": 502, "message": "upstream"}}), "upstream"),
        (lambda: answer({"error": "overloaded"}), "overloaded"),
        (lambda: answer({"choices": []}), "no choice"),
        (lambda: answer({"choices": [None]}), "no choice"),
    ],
)
async def test_a_broken_success_is_retried_and_then_unavailable(bad: Any, words: str) -> None:
    async with serve(script([bad])) as server:
        message = await failure(backend(server.url, max_retries=2))
    assert len(server.seen) == 3
    assert words in message
    assert "after 3 attempts" in message


async def test_an_error_object_that_names_a_refusal_is_final() -> None:
    async with serve(script([lambda: answer({"error": {"code": 402, "message": "no credit"}})])) as server:
        await failure(backend(server.url))
    assert len(server.seen) == 1


async def test_a_dead_or_closing_server_is_one_clear_error_after_bounded_retries() -> None:
    message = await failure(backend(refusing_url(), max_retries=2))
    assert "executor openai (some-model at http://127.0.0.1:1/v1)" in message
    assert "after 3 attempts" in message
    async with serve_closing() as server:
        assert "no connection" in await failure(backend(server.url, max_retries=1))
    assert len(server.seen) == 2


async def test_one_deadline_covers_all_attempts_and_waits() -> None:
    async def slow(seen: Seen) -> web.Response:
        await asyncio.sleep(30)
        return answer(GOOD)

    started = time.monotonic()
    async with serve(slow) as server:
        assert "no reply within 0.5 s" in await failure(backend(server.url, timeout_s=0.5))
    async with serve(script([lambda: answer({}, 503, **{"Retry-After": "60"})])) as server:
        message = await failure(backend(server.url, timeout_s=5.0))
    assert "the next attempt would come in 60 s, past the deadline of 5 s" in message
    assert len(server.seen) == 1
    assert time.monotonic() - started < 4


async def test_the_time_limit_is_in_seconds() -> None:
    async def slow(seen: Seen) -> web.Response:
        await asyncio.sleep(1.5)
        return answer(GOOD)

    async with serve(slow) as server:
        reply = await ask(backend(server.url, timeout_s=1200.0))
    assert reply.text == "hello"
    assert 1.4 < reply.elapsed_s < 10


# --- wait hints ---


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("86400", MAX_RETRY_WAIT_S),
        ("inf", None),
        ("-1", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        (None, None),
    ],
)
def test_a_wait_hint_is_understood_capped_or_ignored(header: str | None, wait_s: float | None) -> None:
    assert retry_after_s(header) == wait_s


def test_a_wait_hint_may_be_a_date() -> None:
    now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    for seconds, wait_s in ((30, 30.0), (-30, 0.0), (86_400, MAX_RETRY_WAIT_S)):
        header = format_datetime(now + timedelta(seconds=seconds), usegmt=True)
        assert retry_after_s(header, now=now.timestamp()) == pytest.approx(wait_s)


async def test_the_providers_wait_hint_is_kept_and_told() -> None:
    waits: list[tuple[str, float]] = []
    started = time.monotonic()
    async with serve(script([answer({}, 429, **{"Retry-After": "0.3"}), lambda: answer(GOOD)])) as server:
        await ask(backend(server.url), waits=waits)
    assert [delay_s for _, delay_s in waits] == [0.3]
    assert time.monotonic() - started >= 0.3


# --- what is sent ---


async def echo(seen: Seen) -> web.Response:
    """Strict about nulls and double sampling settings, as some providers are."""
    body = seen.json
    if None in body.values() or {"temperature", "top_p"} <= set(body):
        return answer({"error": {"message": "bad option"}}, 400)
    return answer(GOOD)


async def test_options_that_are_not_set_are_absent_from_the_body() -> None:
    async with serve(echo) as server:
        await ask(backend(server.url, request_options={"top_p": None, "seed": None}))
        await ask(backend(server.url, temperature=0.5, max_tokens=7, request_options={"reasoning": {"effort": "high"}}))
    assert server.seen[0].json == {"model": "some-model", "messages": PROMPT.to_list()}
    assert server.seen[1].json["max_tokens"] == 7
    assert server.seen[1].json["reasoning"] == {"effort": "high"}
    assert server.seen[0].path == "/v1/chat/completions"


async def test_nothing_of_the_environments_openai_variables_is_ever_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    ambient = {
        "OPENAI_API_KEY": SECRET,
        "OPENAI_ADMIN_KEY": SECRET,
        "OPENAI_ORG_ID": SECRET,
        "OPENAI_PROJECT_ID": SECRET,
        "OPENAI_BASE_URL": refusing_url(),
        "OPENAI_CUSTOM_HEADERS": f"X-Leak: {SECRET}\nAuthorization: Bearer {SECRET}",
    }
    for name, value in ambient.items():
        monkeypatch.setenv(name, value)
    async with serve(echo) as server:
        await ask(backend(server.url), ambient)
    assert SECRET not in str(server.seen)
    assert server.seen[0].headers["authorization"] == "Bearer local-executor"
    assert not [name for name in server.seen[0].headers if name.startswith(("x-", "openai"))]


async def test_the_named_key_is_sent_and_only_to_the_server_that_was_named() -> None:
    async with serve(echo) as other:
        target = other.url

        async def redirect(seen: Seen) -> web.Response:
            return web.Response(status=307, headers={"Location": target + "/v1/chat/completions"})

        async with serve(redirect) as server:
            message = await failure(backend(server.url, api_key_env="MY_KEY"), {"MY_KEY": SECRET})
    assert server.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert other.seen == []
    assert "redirect" in message


@pytest.mark.parametrize("environ", [{}, {"MY_KEY": ""}, {"MY_KEY": "  "}, {"OPENAI_API_KEY": SECRET}])
def test_a_missing_key_names_its_variable(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="set MY_KEY"):
        OpenAICompatibleExecutionClient(backend("http://127.0.0.1:1", api_key_env="MY_KEY"), environ)


@pytest.mark.parametrize("body", [{"error": {"message": f"bad key {SECRET}"}}, f"{'x' * 290}{SECRET}", {"a": SECRET}])
@pytest.mark.parametrize("status", [200, 401, 500])
async def test_error_bodies_are_cut_and_never_show_a_secret(body: Any, status: int) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    async with serve(script([lambda: web.Response(text=text + "y" * 5000, status=status)])) as server:
        message = await failure(backend(server.url, api_key_env="MY_KEY", max_retries=0), {"MY_KEY": SECRET})
    assert SECRET[:8] not in message
    assert len(message) < 600


# --- replies ---


async def one_reply(value: dict[str, Any]) -> ExecutionReply:
    async with serve(script([lambda: answer(value)])) as server:
        return await ask(backend(server.url))


def completion(message: Any, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop", **choice}]}


@pytest.mark.parametrize(
    ("usage", "price", "cost"),
    [
        ({"prompt_tokens": 2_000_000, "completion_tokens": 1_000_000}, Price(0.5, 2.0), 3.0),
        ({"prompt_tokens": 10, "completion_tokens": 10, "cost": 0.25}, Price(0.5, 2.0), 0.25),
        ({"prompt_tokens": 10, "completion_tokens": 10, "cost": -1}, None, None),
        ({"prompt_tokens": 10}, Price(0.5, 2.0), None),
        ({"prompt_tokens": True, "completion_tokens": 1}, Price(0.5, 2.0), None),
        ({}, FREE, 0.0),
        ({}, None, None),
    ],
)
async def test_a_call_costs_what_the_server_says_else_its_price_else_nobody_knows(
    usage: dict[str, Any], price: Price | None, cost: float | None
) -> None:
    async with serve(script([lambda: answer({**GOOD, "usage": usage})])) as server:
        assert (await ask(backend(server.url, price=price))).cost_usd == cost


async def test_a_reply_has_text_reasoning_counts_and_cost() -> None:
    reply = await one_reply(GOOD)
    assert (reply.text, reply.reasoning, reply.finish_reason, reply.model) == ("hello", "hmm", "stop", "served")
    assert dict(reply.usage) == {"prompt_tokens": 3, "completion_tokens": 4}
    assert reply.cost_usd == 0.25
    assert reply.empty_reason is None


@pytest.mark.parametrize("content", [None, "", " \n", [], 7])
async def test_a_reply_with_only_reasoning_is_empty_and_says_why(content: Any) -> None:
    reasoning = "```cpp\nint main() {}\n```\n" * 800
    reply = await one_reply(completion({"content": content, "reasoning": reasoning}, finish_reason="length"))
    assert reply.text.strip() == ""
    assert reply.reasoning == reasoning
    assert reply.empty_reason == "no final content (finish=length)"


async def test_content_may_come_in_parts_or_as_plain_text_of_the_choice() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert (await one_reply(completion({"content": parts}))).text == "ab"
    assert (await one_reply({"choices": [{"text": "plain"}]})).text == "plain"


async def test_many_calls_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(echo) as server, OpenAICompatibleExecutionClient(backend(server.url), {}) as client:
        replies = await asyncio.gather(*(client.complete(PROMPT) for _ in range(20)))
    assert {reply.text for reply in replies} == {"hello"}
    assert isinstance(server, Loopback)
