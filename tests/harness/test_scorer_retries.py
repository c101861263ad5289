"""Handing a program in again: bounded elsewhere, and told here."""

from __future__ import annotations

from aiohttp import web
from loopback import Seen
from test_scorer import judge, verdict


async def test_each_reason_to_submit_again_is_told_with_its_wait() -> None:
    answers = [web.Response(status=503, text="starting"), web.Response(status=429, headers={"Retry-After": "0"})]
    ready = judge({"status": "done", "score": 1.0, "valid": True})
    told: list[str] = []

    async def note(reason: str, delay_s: float) -> None:
        told.append(reason)

    async def handler(seen: Seen) -> web.Response:
        return answers.pop(0) if answers else await ready(seen)

    assert (await verdict(handler, on_retry=note)).valid
    assert [words in reason for words, reason in zip(("503", "429"), told, strict=True)] == [True, True]
