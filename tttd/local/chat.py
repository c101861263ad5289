"""The OpenAI-compatible chat endpoint: check a request, sample, and shape the answer that Reef records.

Everything a client can get wrong is answered with 400 and a sentence that names the field and the allowed values.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError
from reef.artifact.artifact import Artifact
from reef.runtime.interfaces import InferenceHandler, InferenceStream, UpstreamStatusError
from reef_client.sse import synthesize_sse_events

from tttd.local.decoding import SamplingOptions
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
        if path != PATH:
            raise _refusal(f"{path} is not served; use {PATH}")
        request = parse_chat_request(payload)
        prompt = await asyncio.to_thread(self._render, request)
        options = self._options(request, prompt)
        try:
            weights = await asyncio.to_thread(self._weights_of, artifact)
            future = self._sampler.submit(weights.checkpoint_id, prompt, options)
            answer = await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError:
            raise UpstreamStatusError(
                f"no answer within {self._timeout_s:g} s (inference.timeout-s)", status=504
            ) from None
        except (FloatingPointError, RuntimeError, OSError, ValueError, KeyError) as error:
            raise UpstreamStatusError(f"sampling failed: {error}", status=500) from error
        return self._response(request, prompt, answer, weights)

    async def inference_stream(self, artifact: Artifact, path: str, payload: dict[str, Any]) -> InferenceStream:
        """The same answer as server-sent events; Reef records the complete answer, so it is sampled first."""
        response = await self.inference(artifact, path, payload)
        include_usage = parse_chat_request(payload).include_usage

        async def chunks() -> AsyncIterator[bytes]:
            for event in synthesize_sse_events(response, include_usage=include_usage):
                yield event.encode()

        headers = {"Content-Type": "text/event-stream"}
        return InferenceStream(status=200, headers=headers, chunks=chunks(), record_response=response)

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

    def _response(
        self, request: ChatRequest, prompt: list[int], answer: SampledAnswer, weights: Weights
    ) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._policy.decode(answer.tokens)}
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.model or self._policy.model_path.name,
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": len(answer.tokens),
                "total_tokens": len(prompt) + len(answer.tokens),
            },
            "metadata": {"runtime_load_id": weights.load_id, "checkpoint_id": weights.checkpoint_id},
            # Reef keeps this block in its record and takes it out of the client's answer.
            "training": {
                "tokens": [*prompt, *answer.tokens],
                "loss_mask": [1] * len(answer.tokens),
                "rollout_log_probs": list(answer.log_probabilities),
                "prompt_length": len(prompt),
                "response_length": len(answer.tokens),
                "runtime_load_id": weights.load_id,
                "request_messages": [dict(message) for message in request.messages],
                "response_message": message,
                "finish_reason": answer.finish_reason,
            },
        }


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


def _refusal(message: str) -> UpstreamStatusError:
    return UpstreamStatusError(message, status=400)
