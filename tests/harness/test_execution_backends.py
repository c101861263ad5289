"""Executor settings: what is refused, the ready-made ones, and what may be stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.execution import gpt_oss_120b_backend, offline_backend, openai_backend, openrouter_glm_5_2_backend


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": " "}, "name is blank"),
        ({"model": ""}, "model is blank"),
        ({"base_url": ""}, "not a usable"),
        ({"base_url": "ftp://host"}, "not a usable"),
        ({"base_url": "http://"}, "not a usable"),
        ({"base_url": "http://host:99999"}, "not a usable"),
        ({"api_key_env": " "}, "api_key_env is blank"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_retries": -1}, "max_retries"),
        ({"retry_backoff_s": -1.0}, "retry_backoff_s"),
        ({"request_options": {"model": "x", "stream": True}}, "may not set model, stream"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(offline_backend(), **changes)


def test_an_empty_url_never_falls_back_to_a_public_service() -> None:
    with pytest.raises(ConfigError, match="base URL of executor openai"):
        openai_backend("", "gpt-x")


def test_the_ready_made_executors() -> None:
    offline, gpt, glm = offline_backend(), gpt_oss_120b_backend(), openrouter_glm_5_2_backend()
    assert (offline.base_url, offline.api_key_env) == ("http://127.0.0.1:8000/v1", None)
    assert (gpt.model, gpt.temperature, gpt.max_tokens) == ("openai/gpt-oss-120b", 0.0, None)
    assert gpt.request_options == {"reasoning_effort": "high"}
    assert gpt_oss_120b_backend(reasoning_effort="low").request_options == {"reasoning_effort": "low"}
    assert (glm.model, glm.api_key_env, glm.max_retries) == ("z-ai/glm-5.2", "OPENROUTER_API_KEY", 6)
    with pytest.raises(ConfigError, match="'extreme' is not known"):
        gpt_oss_120b_backend(reasoning_effort="extreme")


def test_stored_settings_hold_no_credentials() -> None:
    backend = openai_backend("https://user:hunter2@host:8443/v1?key=hunter2", "m", "MY_KEY")
    stored = json.dumps(backend.safe_dict())
    assert "hunter2" not in stored
    assert "hunter2" not in repr(backend)
    assert backend.safe_dict()["base_url"] == "https://host:8443/v1"
    assert backend.safe_dict()["api_key_env"] == "MY_KEY"
