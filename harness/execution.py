"""The executor: a frozen model behind an OpenAI-compatible HTTP interface.

A call either gives a reply (possibly without any text, which is the candidate's fault) or raises `ExecutorUnavailable`
after bounded retries (the service's fault).  A key comes from the one variable that the backend names, and goes nowhere
else.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from harness.errors import ConfigError, ExecutorUnavailable
from harness.execution_backends import (
    FREE,
    ExecutionBackend,
    Price,
    gpt_oss_120b_backend,
    offline_backend,
    openai_backend,
    openrouter_glm_5_2_backend,
)
from harness.http_common import (
    CONNECT_TIMEOUT_S,
    ClosingClient,
    OnRetry,
    backoff_s,
    body_words,
    error_words,
    is_loopback,
    retry_after_s,
)
from harness.prompts import Prompt
from harness.redaction import Redactor, strip_url

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = [
    "ExecutionBackend",
    "ExecutionClient",
    "ExecutionReply",
    "OpenAICompatibleExecutionClient",
    "Price",
    "gpt_oss_120b_backend",
    "offline_backend",
    "openai_backend",
    "openrouter_glm_5_2_backend",
]

NO_KEY = "local-executor"
"""Sent as bearer token to servers that need no key (the client library insists on one)."""

_RETRIED_CODES = frozenset({408, 409, 429})
_SENT_HEADERS = frozenset(
    {"host", "content-type", "content-length", "accept", "accept-encoding", "connection", "user-agent", "authorization"}
)


@dataclass(frozen=True)
class ExecutionReply:
    """An executor's answer; blank `text` means that there was no final content, whatever `reasoning` holds."""

    text: str
    reasoning: str
    finish_reason: str | None
    usage: Mapping[str, int]
    model: str
    attempts: int
    elapsed_s: float
    cost_usd: float | None = None

    @property
    def empty_reason(self) -> str | None:
        """Why nothing can be read from this reply, or None when it has final content."""
        return None if self.text.strip() else f"no final content (finish={self.finish_reason or 'unknown'})"


class ExecutionClient(Protocol):
    """What the search needs of an executor."""

    @property
    def backend(self) -> ExecutionBackend:
        """The settings in use."""
        ...

    async def complete(self, prompt: Prompt) -> ExecutionReply:
        """Ask once; raises `ExecutorUnavailable` when no usable reply came in time."""
        ...

    async def aclose(self) -> None:
        """Release the connections."""
        ...


class _AttemptFailed(Exception):
    """One attempt gave no reply; `final` when asking again cannot help."""

    def __init__(self, reason: str, *, final: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.wait_s = wait_s


class OpenAICompatibleExecutionClient(ClosingClient):
    """Asks an OpenAI-compatible server for programs; use as an async context manager or `aclose` it.

    The key is read from `environ` under the name that the backend gives, once, here; a missing one is a `ConfigError`.
    `on_retry` hears, before each wait, the reason and the seconds.
    """

    def __init__(
        self, backend: ExecutionBackend, environ: Mapping[str, str], *, on_retry: OnRetry | None = None
    ) -> None:
        self._backend = backend
        self._on_retry = on_retry
        key = _key_of(backend, environ)
        self._redact = Redactor.from_environ(environ, [] if key is None else [key])
        self._client = _new_openai_client(backend, NO_KEY if key is None else key)

    @property
    def backend(self) -> ExecutionBackend:
        """The settings in use."""
        return self._backend

    async def aclose(self) -> None:
        """Release the connections."""
        await self._client.close()

    async def complete(self, prompt: Prompt) -> ExecutionReply:
        """Ask once, within the backend's `timeout_s` in all."""
        started = time.monotonic()
        progress = _Progress()
        try:
            async with asyncio.timeout(self._backend.timeout_s):
                return await self._with_retries(prompt, progress, started)
        except TimeoutError:
            why = progress.last_reason or "no answer"
            raise self._unavailable(
                f"no reply within {self._backend.timeout_s:g} s (attempt {progress.attempts}; last: {why})"
            ) from None

    async def _with_retries(self, prompt: Prompt, progress: _Progress, started: float) -> ExecutionReply:
        body = self._backend.request_body(prompt)
        while True:
            progress.attempts += 1
            try:
                return self._reply(await self._post(body), progress.attempts, time.monotonic() - started)
            except _AttemptFailed as failure:
                reason = self._redact(str(failure))
                progress.last_reason = reason
                if failure.final or progress.attempts > self._backend.max_retries:
                    tries = f"after {progress.attempts} attempt{'s' if progress.attempts > 1 else ''}"
                    raise self._unavailable(f"{reason} ({tries})") from None
                wait_s = failure.wait_s
                if wait_s is None:
                    wait_s = backoff_s(self._backend.retry_backoff_s, progress.attempts - 1)
                left_s = self._backend.timeout_s - (time.monotonic() - started)
                if wait_s >= left_s:
                    raise self._unavailable(
                        f"{reason}; the next attempt would come in {wait_s:g} s, past the deadline of "
                        f"{self._backend.timeout_s:g} s (attempt {progress.attempts})"
                    ) from None
                if self._on_retry is not None:
                    await self._on_retry(reason, wait_s)
                await asyncio.sleep(wait_s)

    async def _post(self, body: dict[str, Any]) -> str:
        """One HTTP exchange; the body's text, or `_AttemptFailed`."""
        import openai

        try:
            return await self._client.post("/chat/completions", cast_to=str, body=body)
        except openai.APIStatusError as error:
            code = error.status_code
            words = body_words(self._redact(error.response.text))
            if 300 <= code < 400:
                raise _AttemptFailed(f"HTTP {code}: a redirect, which is not followed", final=True) from None
            wait_s = retry_after_s(error.response.headers.get("retry-after"))
            final = not (code in _RETRIED_CODES or code >= 500)
            raise _AttemptFailed(f"HTTP {code}: {words}", final=final, wait_s=wait_s) from None
        except openai.APIConnectionError as error:
            raise _AttemptFailed(f"no connection ({error_words(error)})") from None

    def _reply(self, text: str, attempts: int, elapsed_s: float) -> ExecutionReply:
        data = _decoded(text, self._redact)
        if data.get("error"):
            raise _error_object(data["error"], self._redact)
        choices = data.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise _AttemptFailed(f"the reply has no choice: {body_words(self._redact(text))}")
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        finish = choice.get("finish_reason")
        usage = data.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        model = data.get("model")
        return ExecutionReply(
            text=_content(message.get("content")) or _content(choice.get("text")),
            reasoning=_first_text(message.get("reasoning_content"), message.get("reasoning"), choice.get("reasoning")),
            finish_reason=finish if isinstance(finish, str) else None,
            usage={key: value for key, value in usage.items() if _is_count(value)},
            model=model if isinstance(model, str) and model else self._backend.model,
            attempts=attempts,
            elapsed_s=elapsed_s,
            cost_usd=_cost(usage, self._backend.price),
        )

    def _unavailable(self, detail: str) -> ExecutorUnavailable:
        backend = self._backend
        where = f"executor {backend.name} ({backend.model} at {strip_url(backend.base_url)})"
        return ExecutorUnavailable(self._redact(f"{where}: {detail}"))


@dataclass
class _Progress:
    attempts: int = 0
    last_reason: str = ""


def _key_of(backend: ExecutionBackend, environ: Mapping[str, str]) -> str | None:
    if backend.api_key_env is None:
        return None
    key = environ.get(backend.api_key_env, "").strip()
    if not key:
        raise ConfigError(f"executor {backend.name} needs a key: set {backend.api_key_env}")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key in {backend.api_key_env} has characters that no HTTP header can carry")
    return key


def _new_openai_client(backend: ExecutionBackend, key: str) -> AsyncOpenAI:
    import openai

    def only_our_headers(request: Any) -> None:
        # The library adds headers from OPENAI_* variables; nothing of the environment may leave with a request.
        for name in [name for name in request.headers if name.lower() not in _SENT_HEADERS]:
            del request.headers[name]
        request.headers["authorization"] = f"Bearer {key}"

    async def hook(request: Any) -> None:
        only_our_headers(request)

    http_client = openai.DefaultAsyncHttpxClient(
        follow_redirects=False,
        trust_env=not is_loopback(backend.base_url),
        timeout=openai.Timeout(None, connect=CONNECT_TIMEOUT_S),
        event_hooks={"request": [hook]},
    )
    return openai.AsyncOpenAI(
        api_key=key,
        base_url=backend.base_url,
        max_retries=0,
        timeout=openai.Timeout(None, connect=CONNECT_TIMEOUT_S),
        http_client=http_client,
    )


def _decoded(text: str, redact: Redactor) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        raise _AttemptFailed(f"the reply is not JSON: {body_words(redact(text))}") from None
    except RecursionError:
        raise _AttemptFailed("the reply's JSON is nested too deeply") from None
    if not isinstance(data, dict):
        raise _AttemptFailed(f"the reply is a JSON {type(data).__name__}, not an object")
    return data


def _error_object(error: object, redact: Redactor) -> _AttemptFailed:
    """A failure reported inside an HTTP 200, as gateways do."""
    details = error if isinstance(error, dict) else {"message": error}
    code = details.get("code")
    words = body_words(redact(str(details.get("message") or details)))
    final = isinstance(code, int) and 400 <= code < 500 and code not in _RETRIED_CODES
    return _AttemptFailed(f"the reply is an error (code {code}): {words}", final=final)


def _content(value: object) -> str:
    """Message content as text; some servers send a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part["text"] for part in value if isinstance(part, dict) and isinstance(part.get("text"), str))
    return ""


def _first_text(*values: object) -> str:
    return next((value for value in values if isinstance(value, str) and value), "")


def _cost(usage: Mapping[str, Any], price: Price | None) -> float | None:
    """What a call cost: by the server's own account, else by the price; None when neither is known."""
    told = usage.get("cost")
    if isinstance(told, int | float) and not isinstance(told, bool) and math.isfinite(told) and told >= 0:
        return float(told)
    if price is None or price == FREE:
        return None if price is None else 0.0
    counts = [count for name in ("prompt_tokens", "completion_tokens") if _is_count(count := usage.get(name))]
    return price.cost_usd(counts[0], counts[1]) if len(counts) == 2 else None


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0
