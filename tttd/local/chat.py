"""The OpenAI-compatible chat endpoint: check a request, sample, and shape the answer that Reef records.

Everything a client can get wrong is answered with 400 and a sentence that names the field and the allowed values.  A
streamed answer is sent piece by piece while it is sampled; what Reef records of it is the same as without streaming.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from jinja2 import TemplateError
from reef.artifact.artifact import Artifact
from reef.runtime.interfaces import InferenceHandler, InferenceStream, UpstreamStatusError

from tttd.local.decoding import SamplingOptions, TextPieces
from tttd.local.policy import PolicyModel
from tttd.local.sampler import BatchedSampler, SampledAnswer

PATH = "/v1/chat/completions"
DEFAULT_MAX_TOKENS = 1024
ROLES = ("system", "user", "assistant")

_FIELDS = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "n",
        "stop",
        "stream",
        "stream_options",
        "chat_template_kwargs",
        "return_meta_info",
    }
)


class Weights(Protocol):
    """The weights frozen for a request."""

    @property
    def load_id(self) -> str:
        """Stamped on the answer."""

    @property
    def checkpoint_id(self) -> str:
        """Whose adapter samples."""


@dataclass(frozen=True)
class ChatRequest:
    """A checked request; `options` lacks only what depends on the prompt's length."""

    model: str | None
    messages: tuple[Mapping[str, str], ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    template_options: Mapping[str, Any]
    include_usage: bool


@dataclass(frozen=True)
class _Call:
    """A checked request, the prompt it makes, and the weights that were frozen for it."""

    request: ChatRequest
    prompt: list[int]
    options: SamplingOptions
    weights: Weights
    deadline: float
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))


class ChatHandler(InferenceHandler):
    """Serves chat from whichever checkpoint the frozen release names."""

    def __init__(
        self,
        policy: PolicyModel,
        sampler: BatchedSampler,
        weights_of: Callable[[Artifact], Weights],
        *,
        timeout_s: float,
    ) -> None:
        self._policy = policy
        self._sampler = sampler
        self._weights_of = weights_of
        self._timeout_s = timeout_s

    async def inference(self, artifact: Artifact, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; cancelling the call frees its place in the batch."""
        call = await self._prepare(artifact, path, payload)
        with self._failures():
            future = self._sampler.submit(call.weights.checkpoint_id, call.prompt, call.options)
            async with asyncio.timeout_at(call.deadline):
                answer = await asyncio.wrap_future(future)
        return self._response(call, answer)

    async def inference_stream(self, artifact: Artifact, path: str, payload: dict[str, Any]) -> InferenceStream:
        """The same answer as server-sent events, each sent as soon as its text is sampled.

        Returns with the first token, so that whatever fails before is an ordinary error answer.  A later failure is
        told by an error event in the place of `[DONE]`.  Closing the stream frees the request's place in the batch;
        Reef's record is complete once the last event has been taken.
        """
        call = await self._prepare(artifact, path, payload)
        with self._failures():
            reader = _TokenReader(call.deadline)
            future = self._sampler.submit(call.weights.checkpoint_id, call.prompt, call.options, reader.tell)
            future.add_done_callback(reader.end)
            try:
                first = await reader.next()
                if not first:
                    future.result()
            except BaseException:
                future.cancel()
                raise

        async def close() -> None:
            future.cancel()

        async def chunks() -> AsyncIterator[bytes]:
            # Bound below, before the first chunk is asked for.
            async for chunk in self._events(call, first, reader, future, stream):
                yield chunk

        headers = {"Content-Type": "text/event-stream"}
        stream = InferenceStream(
            status=200, headers=headers, chunks=chunks(), close=close, record_response_pending=True
        )
        return stream

    async def _events(
        self,
        call: _Call,
        tokens: list[int],
        reader: _TokenReader,
        future: Future[SampledAnswer],
        stream: InferenceStream,
    ) -> AsyncIterator[bytes]:
        pieces = TextPieces(self._policy.decode)
        try:
            yield self._chunk(call, {"role": "assistant"})
            with self._failures():
                while tokens:
                    if piece := pieces.add(tokens):
                        yield self._chunk(call, {"content": piece})
                    tokens = await reader.next()
                response = self._response(call, future.result())
                rest = pieces.rest(response["choices"][0]["message"]["content"])
        except UpstreamStatusError as error:
            yield _event({"error": {"message": str(error), "type": "server_error", "code": error.status}})
            return
        finally:
            future.cancel()
        if rest:
            yield self._chunk(call, {"content": rest})
        stream.record_response = response
        yield self._chunk(call, {}, response["choices"][0]["finish_reason"])
        if call.request.include_usage:
            yield _event({**self._head(call, "chat.completion.chunk"), "choices": [], "usage": response["usage"]})
        yield b"data: [DONE]\n\n"

    async def _prepare(self, artifact: Artifact, path: str, payload: dict[str, Any]) -> _Call:
        if path != PATH:
            raise _refusal(f"{path} is not served; use {PATH}")
        request = parse_chat_request(payload)
        prompt = await asyncio.to_thread(self._render, request)
        options = self._options(request, prompt)
        with self._failures():
            weights = await asyncio.to_thread(self._weights_of, artifact)
        return _Call(request, prompt, options, weights, asyncio.get_running_loop().time() + self._timeout_s)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """What goes wrong with sampling, as the error status that Reef answers with."""
        try:
            yield
        except TimeoutError:
            raise UpstreamStatusError(
                f"no answer within {self._timeout_s:g} s (inference.timeout-s)", status=504
            ) from None
        except CancelledError:
            raise UpstreamStatusError("the request was given up by its reader", status=500) from None
        except (FloatingPointError, RuntimeError, OSError, ValueError, KeyError) as error:
            raise UpstreamStatusError(f"sampling failed: {error}", status=500) from error

    def _render(self, request: ChatRequest) -> list[int]:
        try:
            prompt = self._policy.render(request.messages, request.template_options)
        except (TemplateError, ValueError, TypeError) as error:
            raise _refusal(f"the model's chat template refuses these messages: {error}") from error
        if not prompt:
            raise _refusal("the model's chat template makes an empty prompt of these messages")
        return prompt

    def _options(self, request: ChatRequest, prompt: list[int]) -> SamplingOptions:
        limit = self._policy.context_length
        wanted = request.max_tokens
        if wanted is None:
            wanted = max(1, min(DEFAULT_MAX_TOKENS, limit - len(prompt)))
        if len(prompt) + wanted > limit:
            raise _refusal(
                f"context_length_exceeded: the prompt has {len(prompt)} tokens and {wanted} more were asked for, but "
                f"this model's maximum context length is {limit}; shorten the messages or lower max_completion_tokens"
            )
        return SamplingOptions(wanted, request.temperature, request.top_p, request.top_k, request.seed)

    def _head(self, call: _Call, kind: str) -> dict[str, Any]:
        model = call.request.model or self._policy.model_path.name
        return {"id": call.id, "object": kind, "created": call.created, "model": model}

    def _chunk(self, call: _Call, delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _event({**self._head(call, "chat.completion.chunk"), "choices": [choice]})

    def _response(self, call: _Call, answer: SampledAnswer) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._policy.decode(answer.tokens)}
        return {
            **self._head(call, "chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            "usage": {
                "prompt_tokens": len(call.prompt),
                "completion_tokens": len(answer.tokens),
                "total_tokens": len(call.prompt) + len(answer.tokens),
            },
            "metadata": {"runtime_load_id": call.weights.load_id, "checkpoint_id": call.weights.checkpoint_id},
            # Reef keeps this block in its record and takes it out of the client's answer.
            "training": {
                "tokens": [*call.prompt, *answer.tokens],
                "loss_mask": [1] * len(answer.tokens),
                "rollout_log_probs": list(answer.log_probabilities),
                "prompt_length": len(call.prompt),
                "response_length": len(answer.tokens),
                "runtime_load_id": call.weights.load_id,
                "request_messages": [dict(message) for message in call.request.messages],
                "response_message": message,
                "finish_reason": answer.finish_reason,
            },
        }


class _TokenReader:
    """Brings the tokens of one answer from the sampling thread into the event loop that streams them."""

    def __init__(self, deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._arrived: asyncio.Queue[int | None] = asyncio.Queue()

    def tell(self, token: int) -> None:
        """Called in the sampling thread for every token."""
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, token)

    def end(self, _: Future[SampledAnswer]) -> None:
        """Called when the answer is complete, failed or cancelled; always after its last token."""
        self._loop.call_soon_threadsafe(self._arrived.put_nowait, None)

    async def next(self) -> list[int]:
        """All tokens that have arrived, at least one; none once the answer has ended.

        Raises `TimeoutError` at the deadline.
        """
        async with asyncio.timeout_at(self._deadline):
            arrived = [await self._arrived.get()]
        while arrived[-1] is not None and not self._arrived.empty():
            arrived.append(self._arrived.get_nowait())
        if arrived[-1] is None and len(arrived) > 1:
            self._arrived.put_nowait(None)
        return [token for token in arrived if token is not None]


def parse_chat_request(payload: Mapping[str, Any]) -> ChatRequest:
    """Check a request body; raises `UpstreamStatusError` (400) for the first thing that is wrong."""
    given = {name: value for name, value in payload.items() if value is not None}
    if unknown := sorted(given.keys() - _FIELDS):
        raise _refusal(f"unsupported fields: {', '.join(unknown)}; supported: {', '.join(sorted(_FIELDS))}")
    if given.get("n", 1) != 1:
        raise _refusal(f"n must be 1, got {given['n']!r}")
    if given.get("stop"):
        raise _refusal("stop is not supported; answers end at the model's own stop tokens")
    if not isinstance(given.get("model", ""), str):
        raise _refusal(f"model must be a string, got {given['model']!r}")
    top_k = _integer(given, "top_k", -1, low=-1)
    return ChatRequest(
        model=given.get("model"),
        messages=_messages(given.get("messages")),
        max_tokens=_max_tokens(given),
        temperature=_number(given, "temperature", 1.0, low=0.0, high=100.0),
        top_p=_number(given, "top_p", 1.0, low=0.0, high=1.0, above=True),
        top_k=max(0, top_k),
        seed=_integer(given, "seed", secrets.randbits(62), low=0),
        template_options=_template_options(given.get("chat_template_kwargs", {})),
        include_usage=_include_usage(given.get("stream_options", {})),
    )


def _messages(value: Any) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise _refusal("messages must be a non-empty list")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise _refusal(f"messages[{index}] must be an object with exactly role and content")
        if message["role"] not in ROLES:
            raise _refusal(f"messages[{index}].role must be one of {', '.join(ROLES)}, got {message['role']!r}")
        if not isinstance(message["content"], str):
            raise _refusal(f"messages[{index}].content must be text")
    return tuple(value)


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    return _integer(given, name, 0, low=1) if name in given else None


def _template_options(value: Any) -> Mapping[str, Any]:
    allowed = isinstance(value, dict) and value.keys() <= {"enable_thinking"}
    if not allowed or not all(isinstance(option, bool) for option in value.values()):
        raise _refusal("chat_template_kwargs may hold only enable_thinking, true or false")
    return dict(value)


def _include_usage(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() - {"include_usage"}:
        raise _refusal("stream_options may hold only include_usage")
    return value.get("include_usage") is True


def _integer(given: Mapping[str, Any], name: str, default: int, *, low: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise _refusal(f"{name} must be an integer from {low} to 2**63-1, got {value!r}")
    return value


def _number(
    given: Mapping[str, Any], name: str, default: float, *, low: float, high: float, above: bool = False
) -> float:
    value = given.get(name, default)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (above and value == low):
        raise _refusal(f"{name} must be a number {'above' if above else 'from'} {low:g} to {high:g}, got {value!r}")
    return float(value)


def _event(content: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


def _refusal(message: str) -> UpstreamStatusError:
    return UpstreamStatusError(message, status=400)
