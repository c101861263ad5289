"""What the three HTTP clients share: proxies, wait hints, back-off and the words for a failed call."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from harness.errors import ConfigError
from harness.summaries import one_line

MAX_RETRY_WAIT_S = 120.0
MAX_ERROR_BODY_CHARS = 300
CONNECT_TIMEOUT_S = 30.0

OnRetry = Callable[[str, float], Awaitable[None]]
"""Called before a wait with the reason and its length in seconds."""


def checked_base_url(url: str, name: str) -> str:
    """The URL without a trailing slash; raises `ConfigError` naming the setting when it is not an http(s) URL."""
    text = url.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{name} is not a usable http:// or https:// URL; give one such as http://127.0.0.1:8000")
    return text


class ClosingClient:
    """A client that is closed where its `async with` block ends."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release the connections."""
        raise NotImplementedError


def is_loopback(url: str) -> bool:
    """True for a URL on this machine, which is never reached through a proxy."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_http_client(url: str, *, timeout_s: float, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """A client for one service that never follows a redirect and uses a proxy only for hosts off this machine."""
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        follow_redirects=False,
        trust_env=not is_loopback(url),
    )


def retry_after_s(value: str | None, *, now: float | None = None) -> float | None:
    """Seconds to wait from a `Retry-After` header: a number or an HTTP date, capped; None for anything unusable."""
    if value is None or not value.strip():
        return None
    text = value.strip()
    try:
        wait_s = float(text)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(text).timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, OverflowError):
            return None
        wait_s = max(0.0, wait_s)
    if not math.isfinite(wait_s) or wait_s < 0:
        return None
    return min(wait_s, MAX_RETRY_WAIT_S)


def backoff_s(base_s: float, attempt: int) -> float:
    """The wait after attempt number `attempt` (from 0): doubled each time, capped."""
    return min(base_s * 2.0 ** min(attempt, 20), MAX_RETRY_WAIT_S)


def error_words(error: BaseException) -> str:
    """A transport error's kind and text on one bounded line."""
    cause = error.__cause__ if str(error) in ("", "Connection error.") and error.__cause__ is not None else error
    text = one_line(str(cause))
    kind = type(cause).__name__
    return f"{kind}: {text[:MAX_ERROR_BODY_CHARS]}" if text else kind


def body_words(body: str) -> str:
    """The start of an error body on one bounded line."""
    text = one_line(body[: 4 * MAX_ERROR_BODY_CHARS])
    if not text:
        return "(empty body)"
    return text if len(text) <= MAX_ERROR_BODY_CHARS else text[:MAX_ERROR_BODY_CHARS] + "..."
