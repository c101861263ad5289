"""The policy's client: asks Reef for guidance, and reports the reward against the receipt of exactly that call.

Reef serves the scenario's current adapter by itself, so no release is ever named here.  Every failure is
`PolicyUnavailable` after bounded retries; nothing about a candidate is decided here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from harness.errors import ConfigError, PolicyUnavailable
from harness.http_common import (
    ClosingClient,
    OnRetry,
    backoff_s,
    body_words,
    checked_base_url,
    error_words,
    new_http_client,
    retry_after_s,
)
from harness.prompts import ChatMessage
from harness.redaction import Redactor, strip_url

SCENARIO_HEADER = "x-reef-scenario"
RECEIPT_HEADER = "x-reef-agent-record-id"

_RETRIED_CODES = frozenset({429, 502, 503, 504})
_CONTROL_TIMEOUT_S = 60.0
_LOADING_POLL_S = 0.5


@dataclass(frozen=True)
class GuidanceReply:
    """What the policy wrote, and the receipt under which Reef recorded it."""

    receipt: str
    text: str
    finish_reason: str | None
    usage: Mapping[str, int]
    elapsed_s: float = 0.0
    attempts: int = 1


@dataclass(frozen=True)
class _Exchange:
    data: Any
    code: int
    headers: httpx.Headers
    attempts: int
    elapsed_s: float


class ReefPolicyClient(ClosingClient):
    """One scenario at one Reef service; use as an async context manager or `aclose` it.

    `timeout_s` bounds one guidance request (sampling included); other calls take at most a minute.  A call that fails
    in transport, with 429 or with 502-504 is repeated up to `max_retries` times; a guidance request also with 409 (Reef
    is just publishing another adapter), but not when it ran into its time limit.
    """

    def __init__(
        self,
        service_url: str,
        token: str,
        scenario: str,
        *,
        timeout_s: float,
        max_retries: int = 4,
        retry_backoff_s: float = 0.5,
        on_retry: OnRetry | None = None,
    ) -> None:
        if not scenario.strip():
            raise ConfigError("the Reef scenario's name is blank; give one")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"the policy's timeout_s is {timeout_s!r}; seconds above 0 are needed")
        if not token.isascii() or not token.isprintable():
            raise ConfigError("the Reef token has characters that no HTTP header can carry")
        self._url = checked_base_url(service_url, "the Reef service URL")
        self._scenario = scenario
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._retry_backoff_s = retry_backoff_s
        self._on_retry = on_retry
        self._redact = Redactor([token])
        headers = {"authorization": f"Bearer {token}", SCENARIO_HEADER: scenario}
        self._client = new_http_client(self._url, timeout_s=timeout_s, headers=headers)

    async def aclose(self) -> None:
        """Release the connections."""
        await self._client.aclose()

    async def guide(
        self, messages: Sequence[ChatMessage], *, seed: int | None, model: str, max_tokens: int
    ) -> GuidanceReply:
        """Sample one guidance text; raises `PolicyUnavailable` (also when the reply carries no receipt)."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "max_completion_tokens": max_tokens,
            "chat_template_kwargs": {"enable_thinking": True},
            "stream": False,
        }
        if seed is not None:
            body["seed"] = seed
        exchange = await self._call("POST", "/v1/chat/completions", body, timeout_s=self._timeout_s, sampling=True)
        receipt = exchange.headers.get(RECEIPT_HEADER, "").strip()
        if not receipt:
            raise self._unavailable(f"a guidance reply came without its receipt (header {RECEIPT_HEADER})")
        choices = exchange.data.get("choices") if isinstance(exchange.data, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise self._unavailable(f"a guidance reply has no message: {body_words(repr(exchange.data)[:2000])}")
        content, finish = message.get("content"), choice.get("finish_reason")
        usage = exchange.data.get("usage")
        return GuidanceReply(
            receipt=receipt,
            # Anything but text is an answer without guidance, which the parser refuses: the candidate's fault.
            text=content if isinstance(content, str) else "",
            finish_reason=finish if isinstance(finish, str) else None,
            usage={key: value for key, value in usage.items() if type(value) is int} if isinstance(usage, dict) else {},
            elapsed_s=exchange.elapsed_s,
            attempts=exchange.attempts,
        )

    async def report(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Report one reward; repeating it with the same `agent_record_id` and body changes nothing.

        Raises ValueError without that id, and `PolicyUnavailable` when Reef refuses (409: the id has another body).
        """
        record_id = body.get("agent_record_id")
        if not isinstance(record_id, str) or not record_id.strip():
            raise ValueError("a report needs an agent_record_id, or repeating it would not be safe")
        exchange = await self._call("POST", "/reef/report", dict(body), timeout_s=_CONTROL_TIMEOUT_S)
        return self._object(exchange, "/reef/report")

    async def status(self) -> dict[str, Any]:
        """Reef's `/reef/status` object."""
        return self._object(await self._call("GET", "/reef/status", timeout_s=_CONTROL_TIMEOUT_S), "/reef/status")

    async def ensure_scenario(self, *, expected: bool = False, patience_s: float = 60.0) -> bool:
        """Create the scenario unless it is there; True when it is new.

        Reef answers before it has loaded the scenarios of an earlier run, and asking for one meanwhile collides with
        the loading.  `expected` says that there was an earlier run: its scenario is then waited for up to `patience_s`.
        """
        deadline = time.monotonic() + (patience_s if expected else 0.0)
        while True:
            status = await self.status()
            if self._scenario in (status.get("scenarios") or {}):
                return False
            if status.get("preload_errors") or time.monotonic() >= deadline:
                break
            await asyncio.sleep(_LOADING_POLL_S)
        path, limit_s = "/reef/scenarios", max(_CONTROL_TIMEOUT_S, self._timeout_s)
        return (await self._call("POST", path, {"name": self._scenario}, timeout_s=limit_s)).code == 201

    async def releases(self) -> list[dict[str, Any]]:
        """The scenario's releases, newest first."""
        path = f"/reef/scenarios/{quote(self._scenario, safe='')}/releases"
        rows = self._object(await self._call("GET", path, timeout_s=_CONTROL_TIMEOUT_S), path).get("releases")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._unavailable(f"{path} has no list of releases")
        return rows

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, timeout_s: float, sampling: bool = False
    ) -> _Exchange:
        """One exchange with retries; raises `PolicyUnavailable`."""
        started = time.monotonic()
        retried_codes = _RETRIED_CODES | {409} if sampling else _RETRIED_CODES
        attempt = 0
        while True:
            attempt += 1
            reason, wait_s = "", None
            try:
                async with asyncio.timeout(timeout_s):
                    response = await self._client.request(method, self._url + path, json=body)
            except (TimeoutError, httpx.ReadTimeout):
                reason = f"{method} {path}: no answer within {timeout_s:g} s"
                if sampling:
                    # Reef may still be at it; asking again would only add to its load.
                    raise self._unavailable(reason) from None
            except httpx.HTTPError as error:
                reason = f"{method} {path}: {error_words(error)}"
            else:
                if response.is_success:
                    data, elapsed_s = self._decoded(response, path), time.monotonic() - started
                    return _Exchange(data, response.status_code, response.headers, attempt, elapsed_s)
                reason = f"{method} {path}: HTTP {response.status_code}: {body_words(self._redact(response.text))}"
                if response.status_code not in retried_codes:
                    raise self._unavailable(reason)
                wait_s = retry_after_s(response.headers.get("retry-after"))
            if attempt > self._max_retries:
                raise self._unavailable(f"{reason} (after {attempt} attempts)")
            wait_s = backoff_s(self._retry_backoff_s, attempt - 1) if wait_s is None else wait_s
            if self._on_retry is not None:
                await self._on_retry(self._redact(reason), wait_s)
            await asyncio.sleep(wait_s)

    def _decoded(self, response: httpx.Response, path: str) -> Any:
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            words = body_words(self._redact(response.text))
            raise self._unavailable(f"{path} answered HTTP {response.status_code} without JSON: {words}") from None

    def _object(self, exchange: _Exchange, path: str) -> dict[str, Any]:
        if not isinstance(exchange.data, dict):
            raise self._unavailable(f"{path} answered a JSON {type(exchange.data).__name__}, not an object")
        return exchange.data

    def _unavailable(self, detail: str) -> PolicyUnavailable:
        return PolicyUnavailable(self._redact(f"Reef at {strip_url(self._url)}: {detail}"))
