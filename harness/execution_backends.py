"""Which executor is asked: the settings of a server and model, and the ready-made ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.errors import ConfigError
from harness.http_common import checked_base_url
from harness.prompts import Prompt
from harness.redaction import strip_url

REASONING_EFFORTS = ("low", "medium", "high")
OFFLINE_MODEL = "offline-catalogue"
_RESERVED_OPTIONS = frozenset({"model", "messages", "temperature", "max_tokens", "stream"})


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, in US dollars per million."""

    prompt_usd: float
    completion_usd: float

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of one call."""
        return (prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd) / 1e6


FREE = Price(0.0, 0.0)


@dataclass(frozen=True)
class ExecutionBackend:
    """Which executor is asked and within which limits; raises `ConfigError` for values that cannot work.

    `timeout_s` is the deadline of one whole call, with its retries and waits.  `concurrency` is for the caller to keep.
    None means "do not send this option".  `price` None: only the server can say what a call cost.
    """

    name: str
    model: str
    base_url: str = field(repr=False)
    api_key_env: str | None = None
    temperature: float | None = 1.0
    max_tokens: int | None = None
    timeout_s: float = 1200.0
    concurrency: int = 16
    max_retries: int = 3
    retry_backoff_s: float = 2.0
    request_options: Mapping[str, Any] = field(default_factory=dict)
    price: Price | None = None

    def __post_init__(self) -> None:
        for name in ("name", "model"):
            if not getattr(self, name).strip():
                raise ConfigError(f"executor {name} is blank; give one")
        object.__setattr__(self, "base_url", checked_base_url(self.base_url, f"the base URL of executor {self.name}"))
        if self.api_key_env is not None and not self.api_key_env.strip():
            raise ConfigError("executor api_key_env is blank; name an environment variable, or leave it out for no key")
        _require("temperature", self.temperature, self.temperature is None or _finite(self.temperature, 0.0))
        _require("max_tokens", self.max_tokens, self.max_tokens is None or _whole(self.max_tokens, 1))
        _require("timeout_s", self.timeout_s, _finite(self.timeout_s, 0.0) and self.timeout_s > 0)
        _require("concurrency", self.concurrency, _whole(self.concurrency, 1))
        _require("max_retries", self.max_retries, _whole(self.max_retries, 0))
        _require("retry_backoff_s", self.retry_backoff_s, _finite(self.retry_backoff_s, 0.0))
        clash = sorted(_RESERVED_OPTIONS & set(self.request_options))
        if clash:
            raise ConfigError(f"executor request_options may not set {', '.join(clash)}; use the backend's own fields")
        object.__setattr__(self, "request_options", dict(self.request_options))

    def request_body(self, prompt: Prompt) -> dict[str, Any]:
        """The chat request; an option that is None is absent, never null."""
        body: dict[str, Any] = {"model": self.model, "messages": prompt.to_list()}
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens, **self.request_options}
        body.update({key: value for key, value in optional.items() if value is not None})
        return body

    def safe_dict(self) -> dict[str, Any]:
        """All fields for logs and state: the key's variable name but never its value, the URL without credentials."""
        return {
            "name": self.name,
            "model": self.model,
            "base_url": strip_url(self.base_url),
            "api_key_env": self.api_key_env,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "timeout_s": self.timeout_s,
            "concurrency": self.concurrency,
            "max_retries": self.max_retries,
            "retry_backoff_s": self.retry_backoff_s,
            "request_options": dict(self.request_options),
        }


def offline_backend(base_url: str = "http://127.0.0.1:8000/v1", *, concurrency: int = 16) -> ExecutionBackend:
    """The bundled offline executor (a catalogue of mechanisms, not a language model)."""
    return ExecutionBackend(
        name="offline",
        model=OFFLINE_MODEL,
        base_url=base_url,
        temperature=0.0,
        timeout_s=120.0,
        concurrency=concurrency,
        max_retries=3,
        retry_backoff_s=0.5,
        price=FREE,
    )


def gpt_oss_120b_backend(
    *, base_url: str = "http://127.0.0.1:8000/v1", concurrency: int = 16, reasoning_effort: str = "high"
) -> ExecutionBackend:
    """gpt-oss-120b on a server of one's own."""
    if reasoning_effort not in REASONING_EFFORTS:
        raise ConfigError(f"reasoning effort {reasoning_effort!r} is not known; use {', '.join(REASONING_EFFORTS)}")
    return ExecutionBackend(
        name="gpt_oss_120b",
        model="openai/gpt-oss-120b",
        base_url=base_url,
        temperature=0.0,
        concurrency=concurrency,
        request_options={"reasoning_effort": reasoning_effort},
        price=FREE,
    )


def openrouter_glm_5_2_backend(*, concurrency: int = 16) -> ExecutionBackend:
    """GLM-5.2 through OpenRouter; needs OPENROUTER_API_KEY."""
    return ExecutionBackend(
        name="openrouter_glm_5_2",
        model="z-ai/glm-5.2",
        base_url="https://openrouter.ai/api/v1",
        api_key_env="OPENROUTER_API_KEY",
        temperature=1.0,
        concurrency=concurrency,
        max_retries=6,
        request_options={"reasoning": {"effort": "high", "exclude": False}},
    )


def openai_backend(
    base_url: str,
    model: str,
    key_env: str | None = None,
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
    timeout_s: float = 1200.0,
    concurrency: int = 16,
    max_retries: int = 3,
    request_options: Mapping[str, Any] | None = None,
) -> ExecutionBackend:
    """Any other OpenAI-compatible server; without `key_env` no key of the environment is used."""
    return ExecutionBackend(
        name="openai",
        model=model,
        base_url=base_url,
        api_key_env=key_env,
        temperature=temperature,
        max_tokens=max_tokens,
        timeout_s=timeout_s,
        concurrency=concurrency,
        max_retries=max_retries,
        request_options=request_options or {},
    )


def _finite(value: object, low: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= low


def _whole(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _require(name: str, value: object, usable: bool) -> None:
    if not usable:
        raise ConfigError(f"executor {name} is {value!r}, which is out of range")
