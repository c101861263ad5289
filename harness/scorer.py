"""The judge's client: submits a program, waits for its verdict, and tells the judge's faults from the candidate's.

A candidate's fault is a verdict.  A fault of the judge is `JudgeUnavailable` with the submission's id and last status:
it stops the step.  Time in the judge's queue is not charged to the time limit as long as the judge works on others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from harness.bounded_json import MAX_KEPT_BYTES, BoundedJsonReader
from harness.contract import Language
from harness.errors import ConfigError, JudgeUnavailable
from harness.http_common import (
    MAX_ERROR_BODY_CHARS,
    ClosingClient,
    OnRetry,
    backoff_s,
    body_words,
    checked_base_url,
    error_words,
    new_http_client,
    retry_after_s,
)
from harness.redaction import strip_url
from harness.state import VerificationResult
from harness.verdicts import Inconclusive, ProtocolFault, is_final, read_verdict

_RETRIED_CODES = frozenset({429, 502, 503, 504})
_CALL_TIMEOUT_S = 30.0
_FIRST_POLL_S = 0.02
_SUBMIT_BACKOFF_S = 0.25
_QUEUE_FACTOR = 20.0
_MAX_BROKEN_SUBMITS = 3


class Scorer(Protocol):
    """What the search needs of a judge."""

    async def evaluate(self, code: str) -> VerificationResult:
        """The verdict on one program; raises `JudgeUnavailable` when the judge cannot say."""
        ...


class _Transient(Exception):
    """A call failed in a way that often heals by itself; `broken` when the other side may have acted on it."""

    def __init__(self, reason: str, *, wait_s: float | None = None, broken: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.broken = broken


@dataclass(frozen=True)
class _Answer:
    """One HTTP answer: its code, and its JSON value (None with a 4xx body that is not JSON)."""

    code: int
    value: Any
    read_bytes: int
    sha256: str
    cut: bool


class JudgeScorer(ClosingClient):
    """Scores programs of one problem at one judge; use as an async context manager or `aclose` it.

    `timeout_s` bounds the run (from when the judge says `running`), and the wait of a submission that stays queued at a
    judge that does nothing else; while others run, a submission may queue for `queue_timeout_s` (default: 20 times as
    long).  `submit_timeout_s` bounds the attempts to hand a program in, `outage_grace_s` the polling of a dead judge.
    """

    def __init__(
        self,
        judge_url: str,
        *,
        problem_id: str,
        language: str,
        timeout_s: float,
        queue_timeout_s: float | None = None,
        poll_interval_s: float = 0.5,
        submit_timeout_s: float = 60.0,
        outage_grace_s: float = 30.0,
        max_body_bytes: int = MAX_KEPT_BYTES,
        on_retry: OnRetry | None = None,
    ) -> None:
        if not problem_id.strip():
            raise ConfigError("the judge's problem id is blank; set judge_problem_id in the contract")
        for name, value in (("timeout_s", timeout_s), ("poll_interval_s", poll_interval_s)):
            if not 0 < value < float("inf"):
                raise ConfigError(f"the judge's {name} is {value!r}; seconds above 0 are needed")
        self._url = checked_base_url(judge_url, "the judge URL")
        self._problem_id = problem_id
        self._language = Language.parse(language)
        self._timeout_s = timeout_s
        self._queue_timeout_s = max(
            timeout_s, _QUEUE_FACTOR * timeout_s if queue_timeout_s is None else queue_timeout_s
        )
        self._poll_interval_s = poll_interval_s
        self._submit_timeout_s = min(submit_timeout_s, timeout_s)
        self._outage_grace_s = outage_grace_s
        self._max_body_bytes = max_body_bytes
        self._on_retry = on_retry
        self._in_flight: set[str] = set()
        self._client = new_http_client(self._url, timeout_s=_CALL_TIMEOUT_S)

    async def aclose(self) -> None:
        """Release the connections."""
        await self._client.aclose()

    async def health(self) -> dict[str, Any]:
        """The judge's `/health` object; raises `JudgeUnavailable`."""
        return await self._get_object("/health")

    async def problems(self) -> tuple[str, ...]:
        """The ids of the judge's problems; a judge without `/problems` is taken to have this scorer's problem."""
        answer = await self._get_answer("/problems")
        if answer.code == 404:
            return (self._problem_id,)
        items = self._object(answer, "/problems").get("problems")
        if not isinstance(items, list):
            raise self._unavailable("GET /problems has no list of problems")
        return tuple(str(item["id"]) for item in items if isinstance(item, dict) and "id" in item)

    async def evaluate(self, code: str) -> VerificationResult:
        """The verdict on one program; raises ValueError for a blank one and `JudgeUnavailable` for a judge's fault."""
        if not code.strip():
            raise ValueError("a blank program cannot be judged; refuse it before")
        attempt = 0
        while True:
            attempt += 1
            sid = await self._submit(code)
            with self._held(sid):
                answer = await self._await_final(sid)
            try:
                verdict = read_verdict(answer.value)
            except ProtocolFault as fault:
                status = answer.value.get("status")
                raise self._unavailable(f"{fault} (submission {sid}, last status {status!r})") from None
            if isinstance(verdict, Inconclusive):
                if attempt < verdict.attempts:
                    continue
                if verdict.fallback is None:
                    raise self._unavailable(f"{verdict.reason}, {attempt} times in a row (submission {sid})")
                verdict = verdict.fallback
            return self._with_origin(verdict, sid, attempt, answer)

    def _with_origin(self, verdict: VerificationResult, sid: str, attempt: int, answer: _Answer) -> VerificationResult:
        origin: dict[str, Any] = {"problem_id": self._problem_id, "submission_id": sid, "submissions": attempt}
        if answer.cut:
            origin |= {"answer_bytes": answer.read_bytes, "answer_sha256": answer.sha256}
        return replace(verdict, artifacts={**verdict.artifacts, **origin})

    @contextmanager
    def _held(self, sid: str) -> Iterator[None]:
        if sid in self._in_flight:
            raise self._unavailable(f"the judge gave submission id {sid} to two programs at once")
        self._in_flight.add(sid)
        try:
            yield
        finally:
            self._in_flight.discard(sid)

    # --- handing in ---------------------------------------------------------------------------------------------------

    async def _submit(self, code: str) -> str:
        deadline = time.monotonic() + self._submit_timeout_s
        attempt = broken = 0
        while True:
            try:
                return await self._submit_once(code, max(0.1, deadline - time.monotonic()))
            except _Transient as fault:
                wait_s = min(fault.wait_s if fault.wait_s is not None else backoff_s(_SUBMIT_BACKOFF_S, attempt), 5.0)
                attempt += 1
                broken += fault.broken
                if broken >= _MAX_BROKEN_SUBMITS:
                    raise self._unavailable(f"{fault} ({attempt} attempts)") from None
                if time.monotonic() + wait_s >= deadline:
                    limit = f"within {self._submit_timeout_s:g} s"
                    raise self._unavailable(f"nothing accepted {limit} ({attempt} attempts; last: {fault})") from None
                if self._on_retry is not None:
                    await self._on_retry(str(fault), wait_s)
                await asyncio.sleep(wait_s)

    async def _submit_once(self, code: str, budget_s: float) -> str:
        language = self._language
        part = (language.file_name, code.encode("utf-8"), f"{language.content_type}; charset=utf-8")
        fields = {"pid": self._problem_id, "lang": language.key}
        answer = await self._call("POST", "/submit", budget_s, data=fields, files={"code": part})
        sid = self._object(answer, "/submit").get("sid")
        if isinstance(sid, bool) or not (isinstance(sid, int) or (isinstance(sid, str) and sid.strip())):
            raise self._unavailable(f"POST /submit gave no usable submission id (sid is {sid!r:.80})")
        return str(sid).strip()

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _await_final(self, sid: str) -> _Answer:
        """Poll until the answer is final; a final one is read exactly once, because some judges forget it then."""
        patience = _Patience(self._timeout_s, self._queue_timeout_s, time.monotonic())
        status, pause_s = "submitted", min(_FIRST_POLL_S, self._poll_interval_s)
        failing_since: float | None = None
        while True:
            try:
                answer = await self._result(sid, status, patience.left_s(time.monotonic()))
            except _Transient as fault:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                if now - failing_since >= self._outage_grace_s:
                    raise self._lost(f"the judge does not answer ({fault})", sid, status) from None
            else:
                failing_since = None
                if answer is not None and is_final(answer.value):
                    return answer
                if answer is not None:
                    status = str(answer.value.get("status"))[:40]
            now = time.monotonic()
            if status == "running":
                patience.running(now)
            if patience.left_s(now) <= 0 and not (patience.may_queue_on(now) and await self._works_on_others()):
                limit = (
                    f"{self._timeout_s:g} s of running" if patience.is_running else f"{now - patience.started:.1f} s"
                )
                raise self._lost(f"no verdict within {limit}", sid, status)
            patience.extend(now)
            await asyncio.sleep(min(pause_s, max(0.01, patience.left_s(now))))
            pause_s = min(pause_s * 1.5, self._poll_interval_s)

    async def _result(self, sid: str, status: str, left_s: float) -> _Answer | None:
        """One poll; None while a judge that knows no `queued` answers "pending"."""
        answer = await self._call("GET", f"/result/{quote(sid, safe='')}", max(1.0, left_s))
        if answer.code == 404:
            if isinstance(answer.value, dict) and answer.value.get("status") == "pending":
                return None
            raise self._lost("the judge no longer knows the submission that it accepted", sid, status)
        if answer.code != 200 or not isinstance(answer.value, dict):
            raise self._lost(f"GET /result answered {_shown(answer)}", sid, status)
        return answer

    async def _works_on_others(self) -> bool:
        try:
            running = (await self.health()).get("running")
        except JudgeUnavailable:
            return False
        return isinstance(running, int) and not isinstance(running, bool) and running > 0

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, budget_s: float, **request: Any) -> _Answer:
        """One exchange; raises `_Transient`, or `JudgeUnavailable` for a 200 that is not JSON."""
        reader = BoundedJsonReader(max_kept_bytes=self._max_body_bytes)
        head = bytearray()
        try:
            async with (
                asyncio.timeout(min(_CALL_TIMEOUT_S, budget_s)),
                self._client.stream(method, self._url + path, **request) as response,
            ):
                code = response.status_code
                async for piece in response.aiter_bytes():
                    head += piece[: max(0, 4 * MAX_ERROR_BODY_CHARS - len(head))]
                    reader.feed(piece)
        except TimeoutError:
            limit = f"{min(_CALL_TIMEOUT_S, budget_s):.1f} s"
            raise _Transient(f"{method} {path} took more than {limit}", broken=True) from None
        except httpx.HTTPError as error:
            never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise _Transient(f"{method} {path}: {error_words(error)}", broken=not never_sent) from None
        except ValueError as error:
            raise self._unavailable(f"{method} {path}: {error}") from None
        words = body_words(head.decode("utf-8", "replace"))
        if code in _RETRIED_CODES or code >= 500:
            fault = f"{method} {path}: HTTP {code}: {words}"
            if code in _RETRIED_CODES:
                raise _Transient(fault, wait_s=retry_after_s(response.headers.get("retry-after")))
            raise self._unavailable(fault)
        try:
            value = reader.value()
        except ValueError as error:
            if code == 200:
                raise self._unavailable(f"{method} {path} answered no JSON ({error}): {words}") from None
            value = words
        return _Answer(code, value, reader.read_bytes, reader.sha256, reader.cut_strings > 0)

    async def _get_answer(self, path: str) -> _Answer:
        try:
            return await self._call("GET", path, min(10.0, self._timeout_s))
        except _Transient as fault:
            raise self._unavailable(str(fault)) from None

    async def _get_object(self, path: str) -> dict[str, Any]:
        return self._object(await self._get_answer(path), path)

    def _object(self, answer: _Answer, path: str) -> dict[str, Any]:
        if answer.code != 200 or not isinstance(answer.value, dict):
            raise self._unavailable(f"{path} answered {_shown(answer)}")
        return answer.value

    def _lost(self, detail: str, sid: str, status: str) -> JudgeUnavailable:
        return self._unavailable(f"{detail} (submission {sid}, last status {status!r})")

    def _unavailable(self, detail: str) -> JudgeUnavailable:
        return JudgeUnavailable(f"judge at {strip_url(self._url)}: {detail}")


class _Patience:
    """The deadlines of one submission (monotonic seconds)."""

    def __init__(self, timeout_s: float, queue_timeout_s: float, now: float) -> None:
        self.started = now
        self._timeout_s = timeout_s
        self._deadline = now + timeout_s
        self._queue_deadline = now + queue_timeout_s
        self.is_running = False

    def running(self, now: float) -> None:
        """The judge says that the program runs: its own time limit begins, once."""
        if not self.is_running:
            self.is_running = True
            self._deadline = now + self._timeout_s

    def may_queue_on(self, now: float) -> bool:
        """True while a queued submission may wait longer."""
        return not self.is_running and now < self._queue_deadline

    def extend(self, now: float) -> None:
        """Grant a queued submission, whose deadline has passed, another span."""
        if now >= self._deadline:
            self._deadline = min(now + self._timeout_s, self._queue_deadline)

    def left_s(self, now: float) -> float:
        """Seconds until the deadline."""
        return self._deadline - now


def _shown(answer: _Answer) -> str:
    value = answer.value
    if isinstance(value, dict) and isinstance(value.get("error"), str):
        value = " ".join(str(value[key]) for key in ("error", "hint") if isinstance(value.get(key), str))
    return f"HTTP {answer.code}: {body_words(value if isinstance(value, str) else repr(value)[:2000])}"
