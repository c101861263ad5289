"""The HTTP protocol with a scripted judge: every bad request, every kind of result, back-pressure."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

import judges.server
from judges.dispatch import Dispatcher
from judges.errors import AddressInUse, JudgeError, SandboxStopped
from judges.protocol import BadSubmission, Submission, Verdict, verdict_result
from judges.server import bind, build_app
from judges.store import SubmissionStore
from judges.upload import BODY_BYTES, CODE_BYTES

BOUNDARY = "frontier"
GOOD = Verdict(valid=True, score=41.5, score_unbounded=41.5, artifacts={"cases": []})


class ScriptedJudge:
    """Answers with whatever the test says, and remembers what it was given."""

    name = "scripted"
    problems = ("0", "0-quick")

    def __init__(self) -> None:
        self.answer: Callable[[Submission], Verdict] = lambda _: GOOD
        self.seen: list[Submission] = []
        self.called = threading.Event()
        self.stopped = threading.Event()

    def language(self, lang: str) -> str:
        if lang.lower() not in ("cpp", "c++"):
            raise BadSubmission(f"unsupported lang {lang!r}", "send cpp")
        return "cpp"

    def describe(self) -> dict[str, Any]:
        return {"tier": "cgroup", "limits": {"cpu_s": 2.0}, "suite": "own", "suite_sha256": "ab"}

    def judge(self, submission: Submission) -> Verdict:
        self.seen.append(submission)
        self.called.set()
        return self.answer(submission)

    def stop(self) -> None:
        self.stopped.set()


class Served:
    """A running server, its judge, and a client for it."""

    def __init__(self, judge: ScriptedJudge, client: httpx.AsyncClient, port: int) -> None:
        self.judge = judge
        self.client = client
        self.port = port

    async def submit(self, code: bytes = b"int main() {}", pid: str = "0", lang: str = "cpp") -> httpx.Response:
        return await self.client.post("/submit", data={"pid": pid, "lang": lang}, files={"code": ("main.cpp", code)})

    async def final(self, sid: str) -> dict[str, Any]:
        for _ in range(500):
            answer = await self.client.get(f"/result/{sid}")
            assert answer.status_code == 200
            result: dict[str, Any] = answer.json()
            if result["status"] not in ("queued", "running"):
                return result
            await asyncio.sleep(0.01)
        raise AssertionError("no final result in time")

    async def raw(self, body: bytes, content_type: str = f"multipart/form-data; boundary={BOUNDARY}") -> httpx.Response:
        return await self.client.post("/submit", content=body, headers={"Content-Type": content_type})


@asynccontextmanager
async def serving(
    state: Path, judge: ScriptedJudge, *, workers: int = 1, queue_limit: int = 4
) -> AsyncIterator[Served]:
    store = SubmissionStore(state)
    dispatcher = Dispatcher(judge, store, workers=workers, queue_limit=queue_limit)
    await dispatcher.start()
    runner = web.AppRunner(build_app(judge, dispatcher, store), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    listener = bind("127.0.0.1", 0)
    await web.SockSite(runner, listener).start()
    port = listener.getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield Served(judge, client, port)
    finally:
        judge.stopped.set()
        await dispatcher.stop()
        await runner.cleanup()
        dispatcher.close()
        store.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, ScriptedJudge()) as running:
        yield running


def parts(*fields: tuple[str, bytes], close: bool = True) -> bytes:
    """A multipart body made by hand; each field is its headers' name parameter and its content."""
    body = b"".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in fields
    )
    return body + f"--{BOUNDARY}--\r\n".encode() if close else body


PID, LANG, CODE = ("pid", b"0"), ("lang", b"cpp"), ("code", b"int main() {}")


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (parts(LANG, CODE), 400, "missing field(s): pid"),
        (parts(), 400, "invalid multipart|missing field"),
        (parts(PID, LANG), 400, "missing field(s): code"),
        (parts(PID, LANG, ("code", b"")), 400, "code is empty"),
        (parts(PID, LANG, ("code", b" \n\t ")), 400, "code is empty"),
        (parts(("pid", b"999"), LANG, CODE), 400, "unknown pid '999'"),
        (parts(("pid", b" "), LANG, CODE), 400, "field pid is empty"),
        (parts(("pid", b"\xff"), LANG, CODE), 400, "field pid is not UTF-8"),
        (parts(("pid", b"0" * 5000), LANG, CODE), 413, "field pid is longer than 200 bytes"),
        (parts(PID, ("lang", b"rust"), CODE), 400, "unsupported lang 'rust'"),
        (parts(PID, LANG, CODE, CODE), 400, "field code is given twice"),
        (parts(PID, LANG, CODE, *[("extra", b"x")] * 8), 400, "more than 8 parts"),
        (parts(PID, LANG, ("code", b"x" * (CODE_BYTES + 1))), 413, f"field code is longer than {CODE_BYTES} bytes"),
        (parts(PID, LANG, ("code", b"x" * BODY_BYTES)), 413, "the request has"),
        (parts(PID, LANG, CODE, close=False), 400, "invalid multipart|cut off"),
        (parts(PID, LANG, CODE)[:-30], 400, "invalid multipart|cut off"),
        (b"no boundary at all", 400, "invalid multipart"),
        (b"", 400, "invalid multipart|missing field"),
    ],
)
async def test_bad_submissions_are_refused_with_a_reason_and_a_hint(
    served: Served, body: bytes, status: int, error: str
) -> None:
    answer = await served.raw(body)
    assert answer.status_code == status, answer.text
    assert any(part in answer.json()["error"] for part in error.split("|")), answer.text
    assert answer.json()["hint"]
    assert served.judge.seen == []
    assert (await served.submit()).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/mixed; boundary=x",
    ],
)
async def test_other_content_types_are_refused(served: Served, content_type: str) -> None:
    answer = await served.raw(b'{"pid": "0", "lang": "cpp", "code": "int main() {}"}', content_type)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "hint"}


async def test_encoded_and_nested_parts_are_refused(served: Served) -> None:
    for header in ("Content-Transfer-Encoding: base64", "Content-Encoding: gzip"):
        encoded = parts(PID, LANG, CODE).replace(b'name="code"', f'name="code"\r\n{header}'.encode())
        assert "encoding" in (await served.raw(encoded)).json()["error"]
    nested = parts(PID, LANG, CODE).replace(b'name="pid"', b'name="pid"\r\nContent-Type: multipart/mixed; boundary=y')
    assert (await served.raw(nested)).status_code == 400


async def test_an_unknown_problem_lists_the_known_ones(served: Served) -> None:
    assert (await served.submit(pid="1")).json()["hint"] == "known problems: 0, 0-quick"


async def test_requests_that_are_not_http_do_not_stop_the_server(served: Served) -> None:
    for text in (b"\x00\xff\x16\x03 nonsense\r\n\r\n", b"POST /submit HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(text)
        await writer.drain()
        assert b"400" in await asyncio.wait_for(reader.read(4096), 5)
        writer.close()
    # A client that goes away in the middle of its upload.
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"POST /submit HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    writer.write(head.encode() + b"Content-Length: 500\r\n\r\n" + parts(PID, LANG, CODE)[:60])
    await writer.drain()
    writer.close()
    assert (await served.client.get("/health")).json()["ok"] is True


async def test_unknown_paths_and_methods_answer_in_json(served: Served) -> None:
    for method, path, status in [("GET", "/", 404), ("GET", "/submit", 405), ("DELETE", "/health", 405)]:
        answer = await served.client.request(method, path)
        assert answer.status_code == status
        assert "endpoints:" in answer.json()["hint"]


async def test_unknown_results_are_404(served: Served) -> None:
    for sid in ("0" * 32, "1", "..%2f..%2fetc", "x" * 3000, "%00"):
        answer = await served.client.get(f"/result/{sid}")
        assert (answer.status_code, answer.json()["status"]) == (404, "unknown")


async def test_code_reaches_the_judge_byte_for_byte(served: Served) -> None:
    code = "// größer ≤ 猫 \r\n\tint main() {}".encode() + bytes(range(256)) + b"\r\n--frontie"
    sid = (await served.submit(code, pid="0-quick", lang="C++")).json()["sid"]
    await served.final(sid)
    assert served.judge.seen == [Submission(sid=sid, pid="0-quick", lang="cpp", code=code)]


async def test_code_of_the_largest_size_is_accepted(served: Served) -> None:
    assert (await served.submit(b"x" * CODE_BYTES)).status_code == 200


async def test_a_plain_text_field_serves_as_code_too(served: Served) -> None:
    sid = (await served.raw(parts(PID, LANG, CODE))).json()["sid"]
    assert (await served.final(sid))["status"] == "done"


async def test_a_final_result_has_every_field_and_can_be_read_again(served: Served) -> None:
    sid = (await served.submit()).json()["sid"]
    assert len(sid) == 32
    first = await served.final(sid)
    assert first == (await served.client.get(f"/result/{sid}")).json()
    times = {name: first.pop(name) for name in ("queueSeconds", "runSeconds")}
    assert all(isinstance(value, float) and value >= 0 for value in times.values())
    assert first == {
        "status": "done",
        "valid": True,
        "trainingRewardOnInvalid": False,
        "score": 41.5,
        "scoreUnbounded": 41.5,
        "message": "accepted",
        "artifacts": {"cases": []},
        "failureDomain": None,
    }


async def test_a_rejected_candidate_is_an_error_of_its_own(served: Served) -> None:
    served.judge.answer = lambda _: Verdict(False, 0.0, 12.5, "case 3: overlap", failure_domain="candidate")
    result = await served.final((await served.submit()).json()["sid"])
    assert (result["status"], result["valid"], result["score"], result["scoreUnbounded"]) == ("error", False, 0.0, 12.5)
    assert (result["message"], result["failureDomain"]) == ("case 3: overlap", "candidate")


async def test_partial_reward_makes_an_invalid_candidate_done(served: Served) -> None:
    served.judge.answer = lambda _: Verdict(False, 1.2, 3.6e6, training_reward_on_invalid=True)
    result = await served.final((await served.submit()).json()["sid"])
    assert (result["status"], result["valid"], result["trainingRewardOnInvalid"]) == ("done", False, True)


async def test_a_judge_that_raises_is_an_infrastructure_fault_and_keeps_working(served: Served) -> None:
    def fail(_: Submission) -> Verdict:
        raise RuntimeError("disk on fire")

    served.judge.answer = fail
    result = await served.final((await served.submit()).json()["sid"])
    assert (result["status"], result["failureDomain"], result["score"]) == ("environment_error", "infrastructure", 0.0)
    assert "disk on fire" in result["message"]
    served.judge.answer = lambda _: GOOD
    assert (await served.final((await served.submit()).json()["sid"]))["status"] == "done"


async def test_artifacts_that_are_not_strict_json_are_an_infrastructure_fault(served: Served) -> None:
    served.judge.answer = lambda _: Verdict(True, 1.0, 1.0, artifacts={"x": math.nan})
    assert (await served.final((await served.submit()).json()["sid"]))["status"] == "environment_error"
    served.judge.answer = lambda _: Verdict(True, 1.0, 1.0, artifacts={"x": {1, 2}})
    assert (await served.final((await served.submit()).json()["sid"]))["status"] == "environment_error"


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, True, "1"])
def test_impossible_scores_never_become_rewards(score: Any) -> None:
    result = verdict_result(Verdict(True, score, 0.0))
    assert (result["status"], result["score"], result["valid"]) == ("environment_error", 0.0, False)


def test_messages_are_bounded() -> None:
    assert len(verdict_result(Verdict(False, 0.0, 0.0, "x" * 10**6))["message"]) <= 4000


async def test_waiting_and_running_submissions_say_so_and_a_full_queue_pushes_back(served: Served) -> None:
    release = threading.Event()

    def wait(_: Submission) -> Verdict:
        release.wait(20)
        return GOOD

    served.judge.answer = wait
    running = (await served.submit()).json()["sid"]
    assert await asyncio.to_thread(served.judge.called.wait, 10)
    waiting = [(await served.submit()).json()["sid"] for _ in range(4)]
    full = await served.submit()
    assert (full.status_code, full.headers["Retry-After"]) == (429, "5")
    assert "the queue is full" in full.json()["error"]
    health = (await served.client.get("/health")).json()
    assert (health["queued"], health["running"], health["workers"]) == (4, 1, 1)
    assert (await served.client.get(f"/result/{running}")).json()["status"] == "running"
    assert (await served.client.get(f"/result/{waiting[0]}")).json()["status"] == "queued"
    await asyncio.sleep(0.5)
    release.set()
    first, last = await served.final(running), await served.final(waiting[-1])
    assert first["runSeconds"] >= 0.5
    assert first["queueSeconds"] < first["runSeconds"]
    assert last["queueSeconds"] >= 0.5


async def test_more_uploads_than_memory_is_meant_for_are_told_to_come_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges.server, "MAX_UPLOADS", 1)
    _, stalled = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"POST /submit HTTP/1.1\r\nHost: judge\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    stalled.write(head.encode() + b"Content-Length: 1000\r\n\r\n--frontier\r\n")
    await stalled.drain()
    for _ in range(200):
        answer = await served.submit()
        if answer.status_code != 200:
            break
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "being sent already" in answer.json()["error"]
    stalled.close()
    for _ in range(200):
        answer = await served.submit()
        if answer.status_code == 200:
            break
        await asyncio.sleep(0.02)
    assert answer.status_code == 200, "a client that hung up still counts"


async def test_many_submissions_at_once_get_ids_and_results_of_their_own(tmp_path: Path) -> None:
    judge = ScriptedJudge()
    judge.answer = lambda submission: Verdict(True, float(submission.code), 0.0)
    async with serving(tmp_path, judge, workers=4, queue_limit=200) as served:
        answers = await asyncio.gather(*(served.submit(str(number).encode()) for number in range(128)))
        sids = [answer.json()["sid"] for answer in answers]
        assert len(set(sids)) == 128
        assert [(await served.final(sid))["score"] for sid in sids] == [float(number) for number in range(128)]


async def test_a_stopped_server_keeps_its_queue_for_the_next_one(tmp_path: Path) -> None:
    judge = ScriptedJudge()

    def until_stopped(_: Submission) -> Verdict:
        judge.stopped.wait(20)
        raise SandboxStopped("stopping")

    judge.answer = until_stopped
    async with serving(tmp_path, judge) as served:
        sids = [(await served.submit(f"code {number}".encode())).json()["sid"] for number in range(3)]
        assert await asyncio.to_thread(judge.called.wait, 10)
    async with serving(tmp_path, ScriptedJudge()) as served:
        assert [(await served.final(sid))["status"] for sid in sids] == ["done"] * 3
        assert [submission.code for submission in served.judge.seen] == [b"code 0", b"code 1", b"code 2"]


async def test_health_and_problems_describe_the_judge(served: Served) -> None:
    health = (await served.client.get("/health")).json()
    assert health["ok"] is True
    expected = {"judge": "scripted", "tier": "cgroup", "suite": "own", "suite_sha256": "ab", "queued": 0, "running": 0}
    assert expected.items() <= health.items()
    assert (await served.client.get("/problems")).json() == {"problems": [{"id": "0"}, {"id": "0-quick"}]}


def test_a_port_in_use_is_named_with_the_cure() -> None:
    listener = bind("127.0.0.1", 0)
    try:
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"port {port} on 127.0.0.1 is already in use.*--port"):
            bind("127.0.0.1", port)
    finally:
        listener.close()
    for host, port in (("127.0.0.1", 70000), ("192.0.2.1", 0), ("not a host", 0)):
        with pytest.raises(JudgeError):
            bind(host, port)
