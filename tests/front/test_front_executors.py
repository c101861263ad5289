"""docs/executors.md: every recipe loads and means what it says; servers that answer like the real ones are accepted."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from front_doctor import Server, context_of, levels

from guidance_ttt.doctor import services
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.execution import Price
from harness.execution_backends import FREE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/executors.md").read_text(encoding="utf-8")
KEY = "sk-sentinel"


def recipes() -> list[tuple[str, dict[str, str]]]:
    """The section and the variables of each fenced `./run.sh` command; `...` of an export is a key."""
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        for block in re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            words = shlex.split(block.replace("\\\n", " "))
            assert words[-1] == "./run.sh"
            pairs = [word.partition("=")[::2] for word in words[:-1] if word != "export"]
            found.append((section.splitlines()[0], {name: KEY if value == "..." else value for name, value in pairs}))
    return found


RECIPES = recipes()
EXPECTED: list[tuple[str, str, str, str, str | None, float, int, Price | None]] = [
    ("The offline catalogue", "offline", "offline-catalogue", "http://127.0.0.1:8000/v1", None, 120, 4, FREE),
    ("The offline catalogue", "offline", "offline-catalogue", "http://127.0.0.1:9000/v1", None, 120, 4, FREE),
    ("Ollama", "openai", "qwen2.5-coder:14b", "http://127.0.0.1:11434/v1", None, 3600, 2, FREE),
    ("vLLM", "openai", "Qwen/Qwen2.5-Coder-32B-Instruct", "http://127.0.0.1:8001/v1", None, 1200, 16, FREE),
    ("vLLM", "gpt_oss_120b", "openai/gpt-oss-120b", "http://127.0.0.1:8000/v1", None, 1200, 4, FREE),
    ("llama.cpp server", "openai", "qwen2.5-coder-14b-q4", "http://127.0.0.1:8080/v1", None, 3600, 2, FREE),
    (
        "OpenRouter",
        "openrouter_glm_5_2",
        "z-ai/glm-5.2",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        1200,
        4,
        None,
    ),
    ("OpenRouter", "openai", "qwen/qwen3-coder", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", 1200, 4, None),
    (
        "Any other server with a key",
        "openai",
        "gpt-4.1-mini",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        1200,
        4,
        Price(0.4, 1.6),
    ),
]


def loaded(environ: dict[str, str], tmp_path: Path) -> RunConfig:
    return RunConfig.load({**environ, "GUIDANCE_STATE_DIR": str(tmp_path)}, root=ROOT)


def test_each_recipe_leads_to_the_settings_that_it_promises(tmp_path: Path) -> None:
    found = []
    for section, environ in RECIPES:
        backend = loaded(environ, tmp_path).backend
        found.append(
            (
                section,
                backend.name,
                backend.model,
                backend.base_url,
                backend.api_key_env,
                backend.timeout_s,
                backend.concurrency,
                backend.price,
            )
        )
        assert KEY not in repr(backend)
    assert found == EXPECTED


@pytest.mark.parametrize("number", range(len(RECIPES)))
def test_a_recipe_without_one_of_its_keys_is_refused_by_name(tmp_path: Path, number: int) -> None:
    environ = RECIPES[number][1]
    for name in [name for name, value in environ.items() if value == KEY]:
        with pytest.raises(ConfigError, match=f"needs a key: set {name}"):
            loaded({key: value for key, value in environ.items() if key != name}, tmp_path)


def test_the_cost_of_the_pages_example_is_right(tmp_path: Path) -> None:
    price = loaded(RECIPES[-1][1], tmp_path).backend.price
    assert price is not None
    assert f"${price.cost_usd(6000, 3000):.4f}" in PAGE


def test_a_budget_without_a_known_price_is_refused_as_the_page_says(tmp_path: Path) -> None:
    environ = {name: value for name, value in RECIPES[-1][1].items() if name != "GUIDANCE_EXECUTOR_PRICE"}
    with pytest.raises(ConfigError, match="GUIDANCE_EXECUTOR_PRICE"):
        loaded(environ, tmp_path)


# --- servers that answer like the real ones ---------------------------------------------------------------------------

USAGE = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}


def chat(message: dict[str, Any], usage: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion", "created": 1, "choices": [choice], "usage": usage, **more}


SERVERS: dict[str, dict[str, Any]] = {
    "Ollama": chat({"content": "ready"}, USAGE, model="qwen2.5-coder:14b", system_fingerprint="fp_ollama"),
    "vLLM": chat(
        {"content": None, "reasoning_content": "hm", "tool_calls": [], "refusal": None},
        {**USAGE, "prompt_tokens_details": None},
        finish="length",
        model="served",
        prompt_logprobs=None,
        service_tier=None,
    ),
    "llama.cpp server": chat({"content": "ready"}, USAGE, model="m.gguf", timings={"prompt_n": 20}),
    "OpenRouter": chat(
        {"content": "ready", "reasoning": None, "refusal": None},
        {**USAGE, "cost": 0.0004, "is_byok": False, "cost_details": {"upstream_inference_cost": None}},
        model="z-ai/glm-5.2",
        provider="Someone",
    ),
    "Any other server with a key": chat(
        {"content": "ready", "refusal": None, "annotations": []},
        {**USAGE, "completion_tokens_details": {"reasoning_tokens": 0}},
        model="gpt-4.1-mini-2025-04-14",
        system_fingerprint=None,
    ),
}


@pytest.mark.parametrize("number", [n for n, (section, _) in enumerate(RECIPES) if section in SERVERS])
def test_the_doctor_accepts_a_server_that_answers_like_the_recipes(tmp_path: Path, number: int) -> None:
    section, environ = RECIPES[number]
    models = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]}
    answers = {"GET /v1/models": (200, models), "POST /v1/chat/completions": (200, SERVERS[section])}
    server = Server(answers)
    try:
        context = context_of(tmp_path, **environ)
        here = replace(context.settings.backend, base_url=f"http://127.0.0.1:{server.port}/v1")
        context = replace(context, config=replace(context.settings, backend=here))
        (found,) = services.check_executor(context)
    finally:
        server.close()
    assert found.level.value == "ok", found.fact
    assert "(23 tokens" in found.fact
    ((_, headers, body),) = server.asked
    assert json.loads(body)["model"] == here.model
    bearer = {name.lower(): value for name, value in headers.items()}["authorization"]
    assert (bearer == f"Bearer {KEY}") == (here.api_key_env is not None)


@pytest.mark.parametrize(
    ("code", "answer", "message"),
    [
        (401, {"error": "no"}, "HTTP 401: ..."),
        (404, {"error": "model not found"}, "HTTP 404: ..."),
        (400, {"error": "max_tokens"}, "HTTP 400: ..."),
        (402, {"error": "credit"}, "HTTP 402: ..."),
        (429, {"error": "slow down"}, "HTTP 429: ..."),
        (307, {}, "HTTP 307: a redirect, which is not followed"),
        (200, b"<html>", "the reply is not JSON: ..."),
        (200, {"answer": 1}, "the reply has no choice: ..."),
        (0, None, "no connection (...)"),
    ],
)
def test_each_refusal_reads_as_the_page_says(tmp_path: Path, code: int, answer: Any, message: str) -> None:
    assert f"`{message}`" in PAGE
    server = Server({"POST /v1/chat/completions": (code, answer)})
    if code == 0:
        server.close()
    environ = {
        "GUIDANCE_EXECUTOR": "openai",
        "GUIDANCE_EXECUTOR_MODEL": "m",
        "GUIDANCE_EXECUTOR_URL": f"http://127.0.0.1:{server.port}/v1",
    }
    context = context_of(tmp_path, **environ)
    if code == 0:
        context = replace(context, probes=replace(context.probes, port_is_free=lambda host, port: False))
    found = list(services.check_executor(context))
    if code != 0:
        server.close()
    assert levels(found) == ["failure"]
    pattern = re.escape(message).replace(re.escape("..."), ".*")
    assert re.search(pattern, found[0].fact), found[0].fact
