"""The offline executor as an OpenAI-compatible HTTP service.

Two endpoints matter (`/v1/models`, `/v1/chat/completions`); every error has OpenAI's shape.  The service keeps no state
and says in every place a client may look that it is a catalogue of rules and not a language model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from executors.answer import HONEST_LABEL, Composer
from executors.catalogue import Catalogue, CatalogueError
from executors.prompt_reader import PromptError, message_text, read_request

MODEL_ID = "offline-catalogue"
MAX_BODY_BYTES = 8 * 2**20
_BYTES_PER_TOKEN = 4
_PIECE_CHARS = 2_000

_COMPOSER = web.AppKey("composer", Composer)
_CREATED_S = web.AppKey("created_s", int)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger("executors")


class ApiError(Exception):
    """A refusal in OpenAI's shape: HTTP status, message, the parameter at fault and a machine-readable code."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def response(self) -> web.Response:
        """The HTTP answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return web.json_response({"error": error}, status=self.status)


@dataclass(frozen=True)
class ChatRequest:
    """The part of a chat request that this service uses."""

    messages: list[dict[str, Any]]
    stream: bool
    include_usage: bool
    max_tokens: int | None


@dataclass(frozen=True)
class Completion:
    """One finished answer with its accounting."""

    id: str
    created_s: int
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    fingerprint: str

    def usage(self) -> dict[str, int]:
        """Token counts as OpenAI reports them (an estimate: four bytes a token)."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A response object or one chunk of a stream."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": MODEL_ID,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def build_app(catalogue: Catalogue) -> web.Application:
    """The service for one catalogue, not yet bound to a port."""
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_openai_errors])
    app[_COMPOSER] = Composer(catalogue)
    app[_CREATED_S] = int(time.time())
    app.router.add_get("/health", _health)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/v1/models/{model}", _model)
    app.router.add_post("/v1/chat/completions", _chat_completions)
    return app


@web.middleware
async def _openai_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Every failure leaves in the same shape; an unexpected one is logged and told without its details."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPRequestEntityTooLarge:
        return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="request_too_large").response()
    except web.HTTPException as error:
        message = f"{request.method} {request.path[:100]}: {error.reason}; see /v1/models and /v1/chat/completions"
        return ApiError(error.status, message, code="unknown_url").response()
    except ConnectionError:
        raise  # the client is gone: nobody to answer, nothing to log
    except Exception:
        _log.exception("request failed: %s %s", request.method, request.path)
        return ApiError(500, "the offline executor failed; its log has the details", code="internal_error").response()


async def _health(request: web.Request) -> web.Response:
    catalogue = request.app[_COMPOSER].catalogue
    facts: dict[str, Any] = {
        "task": catalogue.data.task,
        "mechanisms": len(catalogue.data.mechanisms),
        "digest": catalogue.digest,
    }
    return web.json_response({"ok": True, "executor": MODEL_ID, "kind": HONEST_LABEL, "catalogue": facts})


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [_model_card(request)]})


async def _model(request: web.Request) -> web.Response:
    _require_model(request.match_info["model"])
    return web.json_response(_model_card(request))


def _model_card(request: web.Request) -> dict[str, Any]:
    catalogue = request.app[_COMPOSER].catalogue
    count = len(catalogue.data.mechanisms)
    return {
        "id": MODEL_ID,
        "object": "model",
        "created": request.app[_CREATED_S],
        "owned_by": "guidance-ttt",
        "description": f"A {HONEST_LABEL}: {count} mechanisms for {catalogue.data.task}, applied by their names.",
    }


def _require_model(model: object) -> None:
    if model != MODEL_ID:
        shown = json.dumps(model)[:100]
        message = f"the model {shown} does not exist; this service offers {MODEL_ID!r} (a {HONEST_LABEL})"
        raise ApiError(404, message, param="model", code="model_not_found")


async def _chat_completions(request: web.Request) -> web.StreamResponse:
    chat = parse_chat_request(await request.read())
    try:
        wanted = read_request(chat.messages)
    except PromptError as error:
        raise ApiError(400, str(error), param="messages", code="not_an_execution_request") from None
    composer = request.app[_COMPOSER]
    try:
        answer = composer.compose(wanted.parent_code, wanted.guidance).text()
    except CatalogueError as error:
        raise ApiError(500, f"the catalogue is broken: {error}", code="catalogue_error") from None
    completion = _complete(composer.catalogue, chat, answer)
    if chat.stream:
        return await _stream(request, completion, chat.include_usage)
    message = {"role": "assistant", "content": completion.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": completion.finish_reason}
    return web.json_response({**completion.envelope("chat.completion", [choice]), "usage": completion.usage()})


def parse_chat_request(body: bytes) -> ChatRequest:
    """Check the parts of the request that matter here; raises `ApiError`.  Sampling settings have no effect."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    _require_model(data.get("model"))
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ApiError(400, "messages must be a non-empty list of objects", param="messages")
    if data.get("n") not in (None, 1) or isinstance(data.get("n"), bool):
        raise ApiError(400, "n must be 1: the same request always has the same answer", param="n")
    stream = data.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ApiError(400, "stream must be true or false", param="stream")
    options = data.get("stream_options")
    return ChatRequest(
        messages=messages,
        stream=bool(stream),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        max_tokens=_max_tokens(data),
    )


def _max_tokens(data: dict[str, Any]) -> int | None:
    """The tighter of the two limits a client may send."""
    limits = []
    for name in ("max_completion_tokens", "max_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ApiError(400, f"{name} must be a positive integer", param=name)
        limits.append(value)
    return min(limits, default=None)


def _complete(catalogue: Catalogue, chat: ChatRequest, answer: str) -> Completion:
    """Account for the answer, and cut it where the client's limit says so."""
    finish_reason = "stop"
    if chat.max_tokens is not None and _tokens(answer) > chat.max_tokens:
        answer = answer.encode()[: chat.max_tokens * _BYTES_PER_TOKEN].decode(errors="ignore")
        finish_reason = "length"
    try:
        prompt = "\n".join(message_text(message.get("content")) for message in chat.messages)
    except PromptError as error:
        raise ApiError(400, str(error), param="messages") from None
    identity = hashlib.sha256("\0".join([catalogue.digest, prompt, str(chat.max_tokens)]).encode()).hexdigest()
    return Completion(
        id=f"chatcmpl-{identity[:24]}",
        created_s=int(time.time()),
        text=answer,
        finish_reason=finish_reason,
        prompt_tokens=_tokens(prompt),
        completion_tokens=_tokens(answer),
        fingerprint=f"catalogue-{catalogue.digest[:12]}",
    )


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


async def _stream(request: web.Request, completion: Completion, include_usage: bool) -> web.StreamResponse:
    """The same answer as server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    pieces = [completion.text[i : i + _PIECE_CHARS] for i in range(0, len(completion.text), _PIECE_CHARS)]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": completion.finish_reason})
    chunks = [completion.envelope("chat.completion.chunk", [choice]) for choice in choices]
    if include_usage:
        chunks.append({**completion.envelope("chat.completion.chunk", []), "usage": completion.usage()})
    for chunk in chunks:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
