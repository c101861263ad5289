"""The judge's client over real loopback HTTP: verdicts, protocol faults, deadlines and retries."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from loopback import Handler, Seen, answer, refusing_url, serve, serve_closing

from harness.errors import ConfigError, JudgeUnavailable
from harness.scorer import JudgeScorer
from harness.state import VerificationResult

SID = "0123456789abcdef0123456789abcdef"
VALID = {
    "status": "done",
    "valid": True,
    "score": 81.5,
    "scoreUnbounded": 90.25,
    "message": "accepted",
    "artifacts": {},
}


def judge(*results: Any, sid: Any = SID, running: Any = None) -> Handler:
    """A judge that accepts everything and gives the results in turn (callables are called; the last one for ever)."""
    queue = list(results)

    async def handle(seen: Seen) -> web.StreamResponse:
        if seen.path == "/submit":
            return answer({"sid": sid})
        if seen.path == "/health":
            return answer({"ok": True} if running is None else {"ok": True, "running": running})
        result = queue.pop(0) if len(queue) > 1 else queue[0]
        return result() if callable(result) else answer(result)

    return handle


def scorer(url: str, **changes: Any) -> JudgeScorer:
    settings: dict[str, Any] = {
        "problem_id": "0",
        "language": "cpp",
        "timeout_s": 5.0,
        "poll_interval_s": 0.02,
        "submit_timeout_s": 1.0,
        "outage_grace_s": 0.3,
    }
    return JudgeScorer(url, **(settings | changes))


async def verdict(handler: Handler, code: str = "int main() {}", **changes: Any) -> VerificationResult:
    async with serve(handler) as server, scorer(server.url, **changes) as client:
        return await client.evaluate(code)


async def fault(handler: Handler, **changes: Any) -> str:
    with pytest.raises(JudgeUnavailable) as caught:
        await verdict(handler, **changes)
    return str(caught.value)


# --- answers that are no verdict ---


@pytest.mark.parametrize(
    "change",
    [
        {"score": True},
        {"score": "91.5"},
        {"score": [91]},
        {"score": -1},
        {"score": 10**400},
        {"score": {}},
        {"scoreUnbounded": "1"},
        {"scoreUnbounded": None},
        {"valid": "false"},
        {"valid": 1},
        {"valid": None},
        {"trainingRewardOnInvalid": "yes"},
        {"artifacts": []},
        {"failureDomain": "infrastructure"},
        {"status": "environment_error", "message": "sandbox broke"},
    ],
)
async def test_what_is_not_exactly_a_number_flag_or_object_is_the_judges_fault(change: dict[str, Any]) -> None:
    message = await fault(judge(VALID | change))
    assert f"submission {SID}" in message


async def test_a_missing_score_is_the_judges_fault() -> None:
    assert "score is missing" in await fault(judge({"status": "done", "valid": True}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>oops</html>", "no JSON"),
        ("[]", "GET /result answered"),
        ('{"status": "done", "score": NaN}', "NaN"),
        ('{"status": "done", "score": 1e999}', "not a finite number"),
        ("", "no JSON"),
        ("[" * 100_000, "nested"),
    ],
)
async def test_an_answer_that_is_no_strict_json_object_stops_at_once(text: str, words: str) -> None:
    started = time.monotonic()
    assert words in await fault(judge(lambda: web.Response(text=text)))
    assert time.monotonic() - started < 3


async def test_a_null_score_is_asked_for_once_more() -> None:
    async with serve(judge(VALID | {"score": None}, VALID)) as server, scorer(server.url) as client:
        result = await client.evaluate("x")
    assert (result.status, result.reward) == ("valid", 81.5)
    assert result.artifacts["submissions"] == 2
    assert sum(seen.path == "/submit" for seen in server.seen) == 2


async def test_a_candidate_that_always_gets_a_null_score_is_quarantined_visibly_and_never_valid() -> None:
    result = await verdict(judge(VALID | {"score": None}))
    assert (result.valid, result.status, result.reward, result.raw_score) == (False, "invalid", 0.0, None)
    assert result.message.startswith("quarantined:")
    assert result.artifacts["quarantined"] is True


# --- a judge that fails ---


async def test_a_judge_that_answers_503_is_unavailable_after_bounded_retries() -> None:
    async def unready(seen: Seen) -> web.Response:
        return web.Response(status=503, text="starting")

    message = await fault(unready)
    assert "nothing accepted within 1 s" in message
    assert "503: starting" in message


async def test_a_judge_that_closes_the_socket_or_refuses_is_unavailable() -> None:
    async with serve_closing() as server, scorer(server.url) as client:
        with pytest.raises(JudgeUnavailable, match="3 attempts"):
            await client.evaluate("x")
    assert len(server.seen) == 3
    async with scorer(refusing_url()) as client:
        with pytest.raises(JudgeUnavailable, match=r"judge at http://127\.0\.0\.1:1: nothing accepted"):
            await client.evaluate("x")


async def test_a_refused_submission_shows_the_judges_hint() -> None:
    async def refuse(seen: Seen) -> web.Response:
        return answer({"error": "unknown pid", "hint": "see /problems"}, 400)

    assert "HTTP 400: unknown pid see /problems" in await fault(refuse)


@pytest.mark.parametrize("sid", [None, True, "", " ", 1.5, [], {"a": 1}])
async def test_a_submission_without_a_usable_id_is_the_judges_fault(sid: Any) -> None:
    assert "no usable submission id" in await fault(judge(VALID, sid=sid))


async def test_a_judge_that_starts_late_is_waited_for() -> None:
    started = time.monotonic()

    async def late(seen: Seen) -> web.StreamResponse:
        if time.monotonic() - started < 0.5:
            return web.Response(status=503)
        return await judge(VALID)(seen)

    assert (await verdict(late, submit_timeout_s=5.0)).valid


async def test_a_short_outage_while_polling_is_survived_and_a_long_one_is_not() -> None:
    gone: Callable[[], web.Response] = lambda: web.Response(status=502)  # noqa: E731
    assert (await verdict(judge(gone, gone, VALID))).valid
    assert "does not answer" in await fault(judge(gone))


async def test_a_submission_that_the_judge_forgot_is_its_fault_and_never_a_zero() -> None:
    message = await fault(judge({"status": "queued"}, lambda: answer({"error": "not found"}, 404)))
    assert "no longer knows" in message
    assert "last status 'queued'" in message


async def test_pending_as_404_of_an_older_judge_means_waiting() -> None:
    pending: Callable[[], web.Response] = lambda: answer({"status": "pending"}, 404)  # noqa: E731
    assert (await verdict(judge(pending, pending, VALID))).valid


async def test_two_programs_with_one_submission_id_are_the_judges_fault() -> None:
    async with serve(judge({"status": "queued"}, {"status": "queued"}, VALID)) as server, scorer(server.url) as client:
        results = await asyncio.gather(client.evaluate("a"), client.evaluate("b"), return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, Exception)] == [JudgeUnavailable]


# --- deadlines ---


async def test_a_submission_that_stays_queued_is_given_up_after_the_time_limit() -> None:
    started = time.monotonic()
    message = await fault(judge({"status": "queued"}), timeout_s=1.0)
    assert 0.9 < time.monotonic() - started < 2.5
    assert f"submission {SID}" in message
    assert "last status 'queued'" in message


async def test_an_unknown_status_is_polled_on_until_the_deadline() -> None:
    assert (await verdict(judge({"status": "compiling"}, {}, VALID))).valid
    assert "last status 'compiling'" in await fault(judge({"status": "compiling"}), timeout_s=0.5)


async def test_queue_time_is_not_charged_while_the_judge_works_on_others() -> None:
    started = time.monotonic()

    def state() -> web.Response:
        return answer(VALID if time.monotonic() - started > 1.5 else {"status": "queued"})

    assert (await verdict(judge(state, running=1), timeout_s=0.5)).valid
    started = time.monotonic()
    assert "queued" in await fault(judge({"status": "queued"}, running=1), timeout_s=0.3, queue_timeout_s=0.9)
    assert 0.8 < time.monotonic() - started < 2.5


async def test_the_time_limit_begins_when_the_judge_says_running() -> None:
    started = time.monotonic()

    def state() -> web.Response:
        elapsed = time.monotonic() - started
        return answer({"status": "queued"} if elapsed < 0.8 else {"status": "running"} if elapsed < 1.6 else VALID)

    assert (await verdict(judge(state), timeout_s=1.2)).valid
    assert "within 0.4 s of running" in await fault(judge({"status": "running"}), timeout_s=0.4)


@pytest.mark.parametrize(("answers_after_s", "accepted"), [(0.5, True), (1.5, False)])
async def test_the_configured_time_limit_is_the_one_that_counts(answers_after_s: float, accepted: bool) -> None:
    started = time.monotonic()

    def state() -> web.Response:
        return answer(VALID if time.monotonic() - started > answers_after_s else {"status": "queued"})

    if accepted:
        assert (await verdict(judge(state), timeout_s=1.0)).valid
    else:
        assert "no verdict within" in await fault(judge(state), timeout_s=1.0)


async def test_a_judge_that_never_answers_a_poll_is_given_up_in_time() -> None:
    async def hang(seen: Seen) -> web.StreamResponse:
        if seen.path.startswith("/result"):
            await asyncio.sleep(60)
        return answer({"sid": SID})

    started = time.monotonic()
    assert "took more than" in await fault(hang, timeout_s=0.5, outage_grace_s=0.0)
    assert time.monotonic() - started < 5


# --- verdicts ---


async def test_a_valid_verdict_has_reward_raw_score_and_origin() -> None:
    result = await verdict(judge(VALID | {"artifacts": {"suite": "s"}, "queueSeconds": 1, "runSeconds": 2.5}))
    assert (result.valid, result.status, result.reward, result.raw_score) == (True, "valid", 81.5, 90.25)
    expected = {"suite": "s", "submission_id": SID, "problem_id": "0", "queue_seconds": 1, "run_seconds": 2.5}
    assert expected.items() <= result.artifacts.items()


@pytest.mark.parametrize(("partial", "reward"), [(False, 0.0), (True, 40.0)])
async def test_an_invalid_program_is_never_valid_and_earns_only_with_partial_reward(
    partial: bool, reward: float
) -> None:
    answered = {"status": "done", "valid": False, "score": 40, "scoreUnbounded": 3_600_000}
    result = await verdict(judge(answered | {"trainingRewardOnInvalid": partial}))
    assert (result.valid, result.status, result.reward) == (False, "invalid", reward)
    assert result.raw_score == 3_600_000
    assert (await verdict(judge(answered))).reward == 0.0


async def test_a_rejection_is_a_verdict_with_its_message_and_logs() -> None:
    rejected = {"status": "error", "valid": False, "message": "compile error", "stderr": "line 1"}
    result = await verdict(judge(rejected | {"artifacts": {"suite": "s"}}))
    assert result.artifacts["suite"] == "s"
    assert (result.status, result.reward, result.raw_score) == ("invalid", 0.0, None)
    assert (result.message, result.artifacts["judge_logs"]) == ("compile error", "line 1")


async def test_an_unbounded_score_defaults_to_the_score() -> None:
    assert (await verdict(judge({"status": "done", "valid": True, "score": 7}))).raw_score == 7.0


async def test_fifty_megabytes_of_judge_message_keep_their_end_and_a_hash_of_all() -> None:
    body = json.dumps(VALID | {"message": "spam " * 10_000_000 + "the end"})
    result = await verdict(judge(lambda: web.Response(text=body)), timeout_s=20.0)
    assert result.valid
    assert len(result.message) < 2_100
    assert "truncated" in result.message
    assert result.message.endswith("the end")
    assert result.artifacts["answer_bytes"] == len(body)
    assert len(result.artifacts["answer_sha256"]) == 64


async def test_an_answer_with_too_many_values_is_the_judges_fault() -> None:
    body = json.dumps(VALID | {"artifacts": {"cases": list(range(10_000))}})
    assert "needs more than 1000 bytes" in await fault(judge(lambda: web.Response(text=body)), max_body_bytes=1000)


# --- what is sent ---


async def test_the_program_travels_as_utf8_bytes_with_problem_and_language() -> None:
    code = "int main() { /* Größe 多 */ }"
    async with serve(judge(VALID)) as server, scorer(server.url, language="C++20", problem_id="0-quick") as client:
        await client.evaluate(code)
    submit = server.seen[0]
    assert submit.headers["content-type"].startswith("multipart/form-data")
    assert code.encode() in submit.body
    assert b'name="pid"\r\n\r\n0-quick' in submit.body
    assert b'name="lang"\r\n\r\ncpp' in submit.body
    assert b'filename="solution.cpp"' in submit.body
    assert b"charset=utf-8" in submit.body
    assert server.seen[1].path == f"/result/{SID}"


async def test_a_final_result_is_read_exactly_once() -> None:
    async with (
        serve(judge({"status": "queued"}, VALID, lambda: answer({}, 404))) as server,
        scorer(server.url) as client,
    ):
        assert (await client.evaluate("x")).valid
    assert sum(seen.path.startswith("/result") for seen in server.seen) == 2


async def test_integer_ids_and_odd_ids_become_safe_paths() -> None:
    async with serve(judge(VALID, sid=42)) as server, scorer(server.url) as client:
        await client.evaluate("x")
    assert server.seen[1].path == "/result/42"
    async with serve(judge(VALID, sid="../a b")) as server, scorer(server.url) as client:
        assert (await client.evaluate("x")).valid


async def test_a_blank_program_is_a_mistake_of_the_caller() -> None:
    async with scorer(refusing_url()) as client:
        with pytest.raises(ValueError, match="blank"):
            await client.evaluate(" \n")


@pytest.mark.parametrize(
    "change", [{"timeout_s": 0}, {"poll_interval_s": -1}, {"problem_id": " "}, {"timeout_s": float("nan")}]
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        scorer("http://127.0.0.1:1", **change)
    with pytest.raises(ConfigError, match="judge URL"):
        scorer("")


# --- health and problems ---


async def test_problems_are_listed_and_a_judge_without_the_list_is_taken_at_its_word() -> None:
    async def listing(seen: Seen) -> web.Response:
        return answer({"problems": [{"id": "0"}, {"id": "0-quick"}]})

    async def bare(seen: Seen) -> web.Response:
        return answer({"error": "unknown endpoint"}, 404)

    async with serve(listing) as server, scorer(server.url) as client:
        assert await client.problems() == ("0", "0-quick")
    async with serve(bare) as server, scorer(server.url) as client:
        assert await client.problems() == ("0",)


async def test_health_is_an_object_or_the_judge_is_unavailable() -> None:
    async with serve(judge(VALID, running=3)) as server, scorer(server.url) as client:
        assert await client.health() == {"ok": True, "running": 3}
    for bad in ("[]", "<html>"):

        async def broken(seen: Seen, text: str = bad) -> web.Response:
            return web.Response(text=text)

        async with serve(broken) as server, scorer(server.url) as client:
            with pytest.raises(JudgeUnavailable, match="/health"):
                await client.health()
    async with scorer(refusing_url()) as client:
        with pytest.raises(JudgeUnavailable, match=r"127\.0\.0\.1:1"):
            await client.health()
