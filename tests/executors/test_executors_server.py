"""The offline executor over HTTP, with the official client and with plain requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from test_executors_prompt_reader import request as execution_messages

from executors.catalogue import Catalogue
from executors.server import MAX_BODY_BYTES, MODEL_ID, build_app


@pytest.fixture
async def base_url(catalogue: Catalogue) -> AsyncIterator[str]:
    runner = web.AppRunner(build_app(catalogue))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=20) as client:
        yield client


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "messages": execution_messages("int main() {}", "Use shelves."), **changes}


REFUSED: list[tuple[str, Any, int, str | None]] = [
    ("no object", [1], 400, "invalid_json"),
    ("no model", {"messages": []}, 404, "model_not_found"),
    ("another model", body(model="gpt-oss-120b"), 404, "model_not_found"),
    ("no messages", body(messages=[]), 400, None),
    ("messages that are no objects", body(messages=["hello"]), 400, None),
    ("no execution request", body(messages=[{"role": "user", "content": "hello"}]), 400, "not_an_execution_request"),
    ("content that is no text", body(messages=[{"role": "user", "content": 7}]), 400, "not_an_execution_request"),
    ("two answers", body(n=2), 400, None),
    ("n that is a bool", body(n=True), 400, None),
    ("stream that is no bool", body(stream="yes"), 400, None),
    ("a limit of zero", body(max_tokens=0), 400, None),
    ("a limit that is a bool", body(max_completion_tokens=True), 400, None),
]


@pytest.mark.parametrize(("what", "sent", "status", "code"), REFUSED, ids=[row[0] for row in REFUSED])
async def test_bad_requests_are_refused_in_the_usual_shape(
    base_url: str, what: str, sent: Any, status: int, code: str | None
) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{base_url}/v1/chat/completions", json=sent)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
async def test_a_body_that_is_no_json_is_refused(base_url: str, content: bytes) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{base_url}/v1/chat/completions", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_body_beyond_the_limit_is_refused_and_the_service_lives_on(base_url: str) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{base_url}/v1/chat/completions", content=b" " * (MAX_BODY_BYTES + 1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert (await http.get(f"{base_url}/health")).json()["ok"] is True


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2/x", 404), ("GET", "/v1/chat/completions", 405)])
async def test_unknown_paths_and_methods_have_the_usual_error_shape(
    base_url: str, method: str, path: str, status: int
) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.request(method, base_url + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, "unknown_url")


async def test_the_client_sees_an_unknown_model_as_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(**body(model="gpt-4"))
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-4")


async def test_the_model_list_says_that_it_is_no_language_model(client: openai.AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert [model.id for model in models] == [MODEL_ID]
    assert "not a language model" in models[0].model_dump()["description"]
    assert (await client.models.retrieve(MODEL_ID)).id == MODEL_ID


async def test_an_answer_holds_program_and_summary_and_is_counted(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**body(temperature=0.7, top_p=0.9, seed=3))
    choice = answer.choices[0]
    text = choice.message.content or ""
    assert (choice.finish_reason, choice.message.role, answer.model) == ("stop", "assistant", MODEL_ID)
    assert "not a language model" in text.split("<solution>")[0]
    assert "<solution>\n```cpp\n// packing-config begin\n" in text
    assert text.endswith("\n</summary>")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens * 4 >= len(text) > answer.usage.completion_tokens * 3


async def test_the_same_request_has_the_same_answer(client: openai.AsyncOpenAI) -> None:
    first, second = [await client.chat.completions.create(**body()) for _ in range(2)]
    assert (first.id, first.choices, first.usage) == (second.id, second.choices, second.usage)


async def test_a_stream_carries_the_same_text_then_the_usage(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**body())
    stream = await client.chat.completions.create(**body(stream=True, stream_options={"include_usage": True}))
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    assert {chunk.id for chunk in chunks} == {whole.id}


async def test_a_stream_without_the_option_has_no_usage_chunk(base_url: str) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{base_url}/v1/chat/completions", json=body(stream=True))
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["choices"] for event in events[:-1])


async def test_a_token_limit_cuts_the_answer_and_says_so(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**body(max_completion_tokens=50))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 50


async def test_the_harness_parser_accepts_the_answer(client: openai.AsyncOpenAI) -> None:
    parsing = pytest.importorskip("harness.parsing")
    answer = await client.chat.completions.create(**body())
    text = answer.choices[0].message.content or ""
    code = parsing.extract_solution_code(text, "cpp").code
    assert code is not None
    assert code.startswith("// packing-config begin")
    assert code.rstrip().endswith("}")
    assert parsing.extract_terminal_tag_or_none(text, "summary")
