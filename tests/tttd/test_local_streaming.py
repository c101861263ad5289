"""Streamed chat: text as it is sampled, the same record as without streaming, and no row kept for a lost reader."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from engine_support import plain_log_probabilities, tiny_policy, visible_adapter
from reef.runtime.interfaces import InferenceStream, UpstreamStatusError
from reef.service.routes.inference import register_inference_routes
from reef_client.sse import SSEAccumulator
from torch import Tensor

from tttd.local.chat import PATH, ChatHandler
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler

ENDLESS = 20_000
WAIT_S = 30.0


@dataclass(frozen=True)
class Weights:
    """What a release is served with."""

    load_id: str
    checkpoint_id: str


class Engine:
    """A tiny policy behind a chat handler; the "artifact" of a request is the name of its checkpoint."""

    def __init__(self, policy: PolicyModel) -> None:
        self.policy = policy
        self.adapters: dict[str, Mapping[str, Tensor] | None] = {"base": None, "trained": visible_adapter(policy)}
        self.sampler = BatchedSampler(policy, self.adapters.__getitem__)

    def handler(self, timeout_s: float = WAIT_S) -> ChatHandler:
        def weights_of(name: object) -> Weights:
            return Weights(f"load-{name}", str(name))

        return ChatHandler(self.policy, self.sampler, weights_of, timeout_s=timeout_s)

    async def answer(self, body: dict[str, Any], checkpoint: str = "base") -> dict[str, Any]:
        return await self.handler().inference(checkpoint, PATH, body)  # type: ignore[arg-type]

    async def stream(
        self, body: dict[str, Any], checkpoint: str = "base", timeout_s: float = WAIT_S
    ) -> InferenceStream:
        return await self.handler(timeout_s).inference_stream(checkpoint, PATH, body)  # type: ignore[arg-type]

    async def until(self, *, running: int, waiting: int) -> None:
        """Return when this many requests are being sampled and wait."""
        async with asyncio.timeout(WAIT_S):
            while self.sampler.load() != {"running": running, "waiting": waiting}:  # noqa: ASYNC110 (another thread's)
                await asyncio.sleep(0.005)

    async def idle(self) -> None:
        await self.until(running=0, waiting=0)


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = Engine(tiny_policy(tiny_model))
    yield engine
    engine.sampler.close()


@pytest.fixture
def endless(engine: Engine) -> Engine:
    """An engine whose answers never end by themselves."""
    engine.policy.stop_ids = frozenset()
    engine.policy.context_length = 2 * ENDLESS
    return engine


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True, **fields}


async def events(stream: InferenceStream) -> list[dict[str, Any] | str]:
    return [event async for event in each_event(stream)]


async def each_event(stream: InferenceStream) -> AsyncIterator[dict[str, Any] | str]:
    async for chunk in stream.chunks:
        line = chunk.decode().removesuffix("\n\n").removeprefix("data: ")
        yield line if line == "[DONE]" else json.loads(line)


def contents(found: list[dict[str, Any] | str]) -> list[str]:
    choices = [event["choices"][0] for event in found if isinstance(event, dict) and event.get("choices")]
    return [choice["delta"]["content"] for choice in choices if "content" in choice["delta"]]


# --- what is sent and what is recorded --------------------------------------------------------------------------------


async def test_the_pieces_together_are_exactly_the_text_without_streaming(engine: Engine) -> None:
    """The tiny model babbles bytes, so most of its characters are broken or take several tokens."""
    for seed in range(12):
        body = chat(seed=seed, max_tokens=60)
        plain = await engine.answer(body)
        stream = await engine.stream(body)
        found = await events(stream)
        assert "".join(contents(found)) == plain["choices"][0]["message"]["content"]
        assert len(contents(found)) > 3
        assert "" not in contents(found)


async def test_the_record_is_the_same_as_without_streaming(engine: Engine) -> None:
    body = chat(seed=5, max_tokens=30, temperature=0.7, top_p=0.9)
    plain, stream = await engine.answer(body), await engine.stream(body)
    assert stream.record_response_pending
    assert stream.record_response is None
    await events(stream)
    recorded = stream.record_response
    assert recorded is not None
    for answer in (plain, recorded):
        assert answer.pop("id").startswith("chatcmpl-")
        assert answer.pop("created") > 0
    assert recorded == plain


async def test_the_events_are_those_of_a_chat_completion_stream(engine: Engine) -> None:
    stream = await engine.stream(chat(seed=1, max_tokens=8, stream_options={"include_usage": True}, model="m"))
    found = await events(stream)
    assert found[-1] == "[DONE]"
    chunks = [event for event in found if isinstance(event, dict)]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert chunks[-2]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks} == {
        (stream.record_response["id"], "m", stream.record_response["created"])  # type: ignore[index]
    }


async def test_pieces_are_sent_while_the_answer_is_still_being_sampled(endless: Engine) -> None:
    stream = await endless.stream(chat(max_tokens=ENDLESS))
    pieces = 0
    async for event in each_event(stream):
        pieces += bool(contents([event]))
        if pieces == 5:
            break
    assert endless.sampler.load() == {"running": 1, "waiting": 0}
    await stream.close()
    await endless.idle()


async def test_streams_and_plain_requests_share_a_batch_without_changing_each_other(engine: Engine) -> None:
    bodies = [chat(f"prompt {index % 2}", seed=index, max_tokens=20 + index) for index in range(6)]
    alone = [(await engine.answer(body))["training"]["tokens"] for body in bodies]
    streams = await asyncio.gather(*(engine.stream(body) for body in bodies[:4]))
    plain = asyncio.gather(*(engine.answer(body) for body in bodies[4:]))
    await asyncio.gather(*map(events, streams))
    together = [stream.record_response["training"]["tokens"] for stream in streams]  # type: ignore[index]
    assert [*together, *(answer["training"]["tokens"] for answer in await plain)] == alone


# --- readers that go away, and time-outs ------------------------------------------------------------------------------


async def test_closing_a_stream_frees_its_row(endless: Engine) -> None:
    stream = await endless.stream(chat(max_tokens=ENDLESS))
    await endless.until(running=1, waiting=0)
    await stream.close()
    await endless.idle()
    assert stream.record_response is None


async def test_dropping_the_chunks_frees_the_row(endless: Engine) -> None:
    stream = await endless.stream(chat(max_tokens=ENDLESS))
    await anext(stream.chunks)
    await stream.chunks.aclose()  # type: ignore[attr-defined]
    await endless.idle()


async def test_a_lost_reader_changes_nothing_for_its_neighbours(endless: Engine) -> None:
    body = chat(seed=3, max_tokens=40)
    alone = await endless.answer(body)
    lost = await endless.stream(chat(max_tokens=ENDLESS))
    neighbour = await endless.stream(body)
    await anext(lost.chunks)
    await lost.close()
    await events(neighbour)
    assert neighbour.record_response["training"]["tokens"] == alone["training"]["tokens"]  # type: ignore[index]


async def test_a_cancelled_call_frees_its_row_whether_it_streams_or_not(endless: Engine) -> None:
    blocker = await endless.stream(chat(max_tokens=ENDLESS))
    plain = asyncio.create_task(endless.answer(chat(max_tokens=ENDLESS)))
    await endless.until(running=2, waiting=0)
    streamed = asyncio.create_task(endless.stream(chat(max_tokens=ENDLESS), "trained"))
    await endless.until(running=2, waiting=1)
    for task, running in ((streamed, 2), (plain, 1)):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await endless.until(running=running, waiting=0)
    await blocker.close()
    await endless.idle()


async def test_a_plain_request_that_takes_too_long_is_a_504_and_frees_its_row(endless: Engine) -> None:
    with pytest.raises(UpstreamStatusError, match=r"within 0\.3 s") as late:
        await endless.handler(0.3).inference("base", PATH, chat(max_tokens=ENDLESS))  # type: ignore[arg-type]
    assert late.value.status == 504
    await endless.idle()


async def test_a_stream_that_takes_too_long_ends_with_an_error_and_frees_its_row(endless: Engine) -> None:
    stream = await endless.stream(chat(max_tokens=ENDLESS), timeout_s=2.0)
    found = await events(stream)
    assert "within 2 s" in error_of(found)
    assert stream.record_response is None
    await endless.idle()


async def test_a_stream_that_never_starts_is_a_504_and_leaves_the_queue(endless: Engine) -> None:
    blocker = await endless.stream(chat(max_tokens=ENDLESS))
    with pytest.raises(UpstreamStatusError) as late:
        await endless.stream(chat(), "trained", timeout_s=0.2)
    assert late.value.status == 504
    await endless.until(running=1, waiting=0)
    await blocker.close()


def error_of(found: list[dict[str, Any] | str]) -> str:
    """The message of the error event that a stream ended with."""
    assert "[DONE]" not in found
    assert isinstance(found[-1], dict)
    message: str = found[-1]["error"]["message"]
    return message


# --- failures ---------------------------------------------------------------------------------------------------------


def fail_at_step(engine: Engine, step: int) -> None:
    """The model raises at its `step`-th run from now."""
    model, runs = engine.policy.sampling_model, iter(range(step))

    def broken(**inputs: Any) -> Any:
        if next(runs, None) is None:
            engine.policy.sampling_model = model
            raise RuntimeError("out of memory (injected)")
        return model(**inputs)

    engine.policy.sampling_model = broken  # type: ignore[assignment]


async def test_a_failure_in_mid_stream_is_told_and_recorded_as_no_answer(engine: Engine) -> None:
    fail_at_step(engine, 10)
    stream = await engine.stream(chat(seed=1, max_tokens=50))
    found = await events(stream)
    assert error_of(found) == "sampling failed: out of memory (injected)"
    assert contents(found)
    assert stream.record_response is None
    await engine.idle()
    assert (await engine.answer(chat(max_tokens=3)))["usage"]["completion_tokens"] >= 1


async def test_a_failure_before_the_first_token_is_an_ordinary_error(engine: Engine) -> None:
    fail_at_step(engine, 0)
    with pytest.raises(UpstreamStatusError, match="injected") as failed:
        await engine.stream(chat())
    assert failed.value.status == 500


async def test_shutting_down_in_mid_stream_is_told(endless: Engine) -> None:
    stream = await endless.stream(chat(max_tokens=ENDLESS))
    await asyncio.to_thread(endless.sampler.close)
    assert "shutting down" in error_of(await events(stream))


async def test_a_wrong_request_is_refused_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(UpstreamStatusError) as refused:
        await engine.stream(chat(temperature=-1))
    assert refused.value.status == 400


async def test_a_tokenizer_that_rewrites_told_text_ends_the_stream_with_an_error(
    endless: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endless.policy, "decode", lambda tokens: str(len(tokens)))
    found = await events(await endless.stream(chat(max_tokens=20)))
    assert "rewrites" in error_of(found)


# --- updates ----------------------------------------------------------------------------------------------------------


async def test_requests_for_new_weights_wait_for_running_streams_and_never_mix_with_them(endless: Engine) -> None:
    old = [await endless.stream(chat(seed=seed, max_tokens=400)) for seed in range(2)]
    new = [asyncio.create_task(endless.answer(chat(seed=seed, max_tokens=10), "trained")) for seed in range(3)]
    await endless.until(running=2, waiting=3)
    await asyncio.gather(*map(events, old))
    recorded = [*(stream.record_response for stream in old), *(await asyncio.gather(*new))]
    for answer, name in zip(recorded, ["base", "base", "trained", "trained", "trained"], strict=True):
        assert answer is not None
        training = answer["training"]
        assert training["runtime_load_id"] == f"load-{name}"
        tokens, length = training["tokens"], training["prompt_length"]
        expected = plain_log_probabilities(endless.policy, endless.adapters[name], tokens[:length], tokens[length:])
        assert training["rollout_log_probs"] == pytest.approx(expected.tolist(), abs=1e-4)


# --- over HTTP, through Reef's own relay ------------------------------------------------------------------------------


@dataclass
class Relay:
    """Reef's streaming route in front of a handler, with the rest of Reef left out."""

    engine: Engine
    records: list[dict[str, Any]] = field(default_factory=list)
    dispatcher: Any = field(default_factory=lambda: SimpleNamespace(recipe=SimpleNamespace(harness_adapter=None)))

    def harness_head(self, headers: Mapping[str, str]) -> None:
        return None

    async def start_stream(self, headers: Any, payload: Any, path: str, *_: Any, **__: Any) -> tuple[Any, Any]:
        stream = await self.engine.handler().inference_stream("base", path, payload)  # type: ignore[arg-type]
        return stream, SimpleNamespace(item=SimpleNamespace(agent_record_id="receipt-1"))

    def record_stream(self, pending: Any, response: Mapping[str, Any]) -> Any:
        self.records.append(dict(response))
        return pending.item


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[tuple[Relay, str]]:
    relay, app = Relay(engine), web.Application()
    register_inference_routes(app, request_service=relay, inference_handler=None)  # type: ignore[arg-type]
    async with TestServer(app) as server:
        yield relay, str(server.make_url("/v1"))


async def test_over_http_the_text_arrives_in_pieces_with_the_receipt_last(engine: Engine) -> None:
    body = chat(seed=2, max_tokens=30)
    plain = await engine.answer(body)
    async with served(engine) as (relay, url), aiohttp.ClientSession() as session:
        found = SSEAccumulator()
        async with session.post(f"{url}/chat/completions", json=body) as response:
            async for data in response.content.iter_any():
                found.feed(data)
    assert found.done
    assert found.agent_record_id == "receipt-1"
    assert found.completion["choices"][0]["message"] == plain["choices"][0]["message"]  # type: ignore[index]
    assert relay.records[0]["training"]["tokens"] == plain["training"]["tokens"]
    assert relay.records[0]["stream_delivery"]["complete"]


async def test_a_client_that_disconnects_in_mid_stream_frees_its_row_and_leaves_no_training_record(
    endless: Engine,
) -> None:
    async with served(endless) as (relay, url), aiohttp.ClientSession() as session:
        response = await session.post(f"{url}/chat/completions", json=chat(max_tokens=ENDLESS))
        await response.content.readany()
        await endless.until(running=1, waiting=0)
        response.close()
        await endless.idle()
    assert "training" not in relay.records[0]
    assert relay.records[0]["complete"] is False


async def test_an_openai_client_raises_when_the_engine_fails_in_mid_stream(engine: Engine) -> None:
    fail_at_step(engine, 10)
    received = []
    async with served(engine) as (relay, url), openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True, seed=1, max_tokens=50
        )
        with pytest.raises(openai.APIError, match="injected"):
            received += [chunk async for chunk in stream]
    assert "training" not in relay.records[0]
    assert relay.records[0]["complete"] is False
