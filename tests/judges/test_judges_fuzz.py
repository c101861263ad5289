"""Whatever a client sends, a real judge process answers in JSON with a sound status, and goes on working.

Requests are made of hypothesis' choices and sent over raw sockets, so that nothing between the test and the server
tidies them up.  What is not HTTP at all is answered by the HTTP library itself, with a plain 400.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judges_testkit import JudgeProcess, first_line

from judges.upload import BODY_BYTES, CODE_BYTES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ANSWER_TIMEOUT_S = 20.0
MEMORY_GROWTH_MB = 150

JUDGE = """
import sys
from judges.protocol import BadSubmission, Verdict
from judges.server import serve_alone

class Length:
    name = "length"
    problems = ("length",)
    def language(self, lang):
        if lang != "python":
            raise BadSubmission("unsupported lang", "send python")
        return lang
    def describe(self):
        return {"suite": "length"}
    def judge(self, submission):
        return Verdict(True, float(len(submission.code)), float(len(submission.code)))
    def stop(self):
        pass

sys.exit(serve_alone(Length(), sys.argv[1:], default_port=0))
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "judge.py").write_text(JUDGE)
    process = subprocess.Popen(
        [sys.executable, str(folder / "judge.py"), "--state-dir", str(folder / "state"), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr").open("w"),
        text=True,
        cwd=ROOT,
    )
    started = JudgeProcess(process, url="", banner=first_line(process))
    found = re.search(r"http://\S+", started.banner)
    assert found, started.banner
    started.url = found.group(0)
    yield started
    assert started.stop(signal.SIGTERM) == 0
    process.communicate()
    # Nothing that a client does is an error of the judge's own.
    assert "judges ERROR" not in (folder / "stderr").read_text()


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def mostly[T](usual: T, others: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Three times in four the usual value, because one thing wrong gets further in than everything wrong."""
    return st.sampled_from([True, True, True, False]).flatmap(lambda plain: st.just(usual) if plain else others)


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What came back; `body` is decoded JSON, or the text where it is none."""

    status: int
    body: Any
    is_json: bool


def exchange(port: int, request: bytes, *, half_close: bool = False) -> Answer | None:
    """Send bytes, read one response; None when the server only closed the connection."""
    with socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S) as connection:
        try:
            connection.sendall(request)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused while it was being sent: the answer may be there all the same
        response = http.client.HTTPResponse(connection)
        try:
            response.begin()
            data = response.read()
        except (http.client.HTTPException, ConnectionError):
            return None
    try:
        return Answer(response.status, json.loads(data), True)
    except ValueError:
        return Answer(response.status, data[:200], False)


def raw(method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: judge", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


BOUNDARY = "edge"
WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
HEADER_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
SEGMENT = st.one_of(
    st.sampled_from(["submit", "result", "problems", "health", "", "..", "%00", "%ff", "%2e%2e", "0" * 32, "a" * 300]),
    st.text(st.sampled_from("abz019%./~-_:@!$&'()*+,;="), max_size=40),
)
TARGETS = st.one_of(
    st.sampled_from(["/submit", "/health", "/problems", f"/result/{'0' * 32}", "/result/", "/result/1?short=1", "*"]),
    st.lists(SEGMENT, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)),
    st.tuples(SEGMENT, SEGMENT).map(lambda pair: f"/{pair[0]}?{pair[1]}"),
)
CONTENT_TYPES = st.one_of(
    st.sampled_from(
        [
            f"multipart/form-data; boundary={BOUNDARY}",
            f'multipart/form-data; boundary="{BOUNDARY}"',
            f"multipart/form-data; boundary={BOUNDARY}; charset=utf-16",
            f"multipart/form-data;boundary={BOUNDARY};boundary=other",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            f"multipart/form-data; boundary={'x' * 200}",
            f"multipart/mixed; boundary={BOUNDARY}",
            "application/json",
            "application/x-www-form-urlencoded",
            "text/plain; charset=no-such",
            "/",
            ";",
        ]
    ),
    HEADER_TEXT,
)
OTHER_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["X-Any", "Accept", "Cookie", "Accept-Encoding", "Range", "If-Match", "Authorization"]),
        HEADER_TEXT,
    ),
    max_size=3,
)
CONTENT = st.one_of(
    st.binary(max_size=200),
    st.just(b""),
    st.sampled_from([b"x" * (CODE_BYTES - 1), b"x" * (CODE_BYTES + 1), b"0" * 5000, b"\xff\xfe\x00", b"--edge\r\n"]),
)
PART_HEADERS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "Content-Type: text/plain; charset=utf-16",
                "Content-Type: multipart/mixed; boundary=inner",
                "Content-Type: " + "x" * 9000,
                "Content-Transfer-Encoding: base64",
                "Content-Transfer-Encoding: quoted-printable",
                "Content-Encoding: gzip",
                "Content-Length: 3",
                "Content-Length: -1",
                "no colon here",
                ": no name",
            ]
        ),
        HEADER_TEXT,
    ),
    max_size=2,
)


@st.composite
def multipart_bodies(draw: st.DrawFn) -> bytes:
    """Mostly parts with the right names, in any order and number, and anything that can be wrong with them."""
    body = draw(st.sampled_from([b"", b"preamble\r\n", b"\r\n"]))
    names = st.sampled_from(["pid", "lang", "code", "extra", "", 'co"de', "c\xf6de", "code; x=y"])
    good = {"pid": b"length", "lang": b"python", "code": b"x = 1"}
    for name in draw(st.one_of(st.permutations(["pid", "lang", "code"]), st.lists(names, max_size=10))):
        content = draw(mostly(good[name], CONTENT) if name in good else CONTENT)
        odd = [f"form-data; name*=utf-8''{name}", "form-data", f'attachment; name="{name}"', f"form-data; name={name}"]
        disposition = draw(mostly(f'form-data; name="{name}"; filename="a.py"', st.sampled_from(odd)))
        headers = [f"Content-Disposition: {disposition}", *draw(mostly([], PART_HEADERS))]
        edge = draw(mostly(BOUNDARY, st.sampled_from(["egde", BOUNDARY + "x", BOUNDARY])))
        body += f"--{edge}\r\n".encode() + "\r\n".join(headers).encode("latin-1", "replace") + b"\r\n\r\n"
        body += content + draw(st.sampled_from([b"\r\n"] * 5 + [b"\n", b""]))
    return body + draw(mostly(f"--{BOUNDARY}--\r\n".encode(), st.sampled_from([b"", f"--{BOUNDARY}".encode(), b"--"])))


BODIES = st.one_of(
    multipart_bodies(),
    multipart_bodies(),
    multipart_bodies(),
    st.binary(max_size=300),
    st.sampled_from([b"", b"{", b'{"pid": "length", "lang": "python", "code": "x"}', b"[" * 5000]),
    st.just(b"x" * (2 * BODY_BYTES)),
)
# Content-Length honest, absent, too small, too large, or no number; or the body in chunks, well formed or not.
FRAMINGS = st.sampled_from(["none", "short", "long", "bad", "chunked", "broken chunks", "both"])


def framed(framing: str, body: bytes) -> tuple[list[tuple[str, str]], bytes]:
    size = len(body)
    chunked = f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n"
    return {
        "length": ([("Content-Length", str(size))], body),
        "none": ([], body),
        "short": ([("Content-Length", str(size // 2))], body),
        "long": ([("Content-Length", str(size + 100))], body),
        "bad": ([("Content-Length", "many")], body),
        "chunked": ([("Transfer-Encoding", "chunked")], chunked),
        "broken chunks": ([("Transfer-Encoding", "chunked")], b"zz\r\n" + body),
        "both": ([("Transfer-Encoding", "chunked"), ("Content-Length", str(size))], chunked),
    }[framing]


@pytest.fixture(scope="module")
def port(judge: JudgeProcess) -> int:
    return int(judge.url.rsplit(":", 1)[1])


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(
    method=mostly("POST", METHODS),
    target=mostly("/submit", TARGETS),
    content_type=mostly(f"multipart/form-data; boundary={BOUNDARY}", CONTENT_TYPES),
    headers=mostly([], OTHER_HEADERS),
    body=BODIES,
    framing=mostly("length", FRAMINGS),
)
def test_any_request_gets_a_sound_json_answer(
    judge: JudgeProcess,
    port: int,
    method: str,
    target: str,
    content_type: str,
    headers: list[tuple[str, str]],
    body: bytes,
    framing: str,
) -> None:
    lengths, framed_body = framed(framing, body)
    request = raw(method, target, [("Content-Type", content_type), *headers, *lengths], framed_body)
    # A request that announces more than it brings would be waited for, so its sender hangs up.
    answer = exchange(port, request, half_close=framing != "length")
    assert judge.process.poll() is None
    if answer is None:
        assert framing != "length", "an honest request was dropped"
        return
    assert answer.status < 500 or answer.status == 503, answer
    if not answer.is_json:
        assert (method, answer.status) != ("POST", 200)
        assert answer.status == 400, answer
        assert not answer.body.startswith(b"<")
    elif answer.status >= 400:
        assert answer.body["error"]
    elif target.startswith("/submit"):
        assert re.fullmatch(r"[0-9a-f]{32}", answer.body["sid"])


def test_the_server_is_healthy_and_small_after_all_that(judge: JudgeProcess, port: int) -> None:
    before = memory_mb(judge.process.pid)
    huge = b"x" * (2 * BODY_BYTES)
    for _ in range(30):
        answer = exchange(port, raw("POST", "/submit", [("Content-Type", "multipart/form-data; boundary=e")], huge))
        assert answer is None or answer.status in (400, 413)
    # Uploads that are begun, announced large and never finished.
    stalled = []
    for _ in range(60):
        connection = socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S)
        headers = [("Content-Type", f"multipart/form-data; boundary={BOUNDARY}"), ("Content-Length", str(CODE_BYTES))]
        connection.sendall(raw("POST", "/submit", headers, b"--edge\r\nContent-Disposition: form-data"))
        stalled.append(connection)
    form = {"pid": "length", "lang": "python"}
    sid = httpx.post(f"{judge.url}/submit", data=form, files={"code": b"x = 1"}).json()["sid"]
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while (result := httpx.get(f"{judge.url}/result/{sid}").json())["status"] != "done":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert result["score"] == 5.0
    assert httpx.get(f"{judge.url}/health").json()["ok"] is True
    for connection in stalled:
        connection.close()
    assert memory_mb(judge.process.pid) < before + MEMORY_GROWTH_MB


async def test_two_hundred_clients_at_once_each_get_their_own_verdict(judge: JudgeProcess) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=judge.url, timeout=60, limits=limits) as client:

        async def one(number: int) -> float:
            code = b"#" * number
            while True:
                answer = await client.post("/submit", data={"pid": "length", "lang": "python"}, files={"code": code})
                if answer.status_code == 200:
                    break
                # More clients than the server takes at once are told to come again.
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
                await asyncio.sleep(0.1)
            sid = answer.json()["sid"]
            while True:
                poll = await client.get(f"/result/{sid}")
                assert poll.status_code == 200
                if poll.json()["status"] == "done":
                    return float(poll.json()["score"])
                await asyncio.sleep(0.3)

        assert await asyncio.gather(*(one(number) for number in range(1, 201))) == [float(n) for n in range(1, 201)]
        health = (await client.get("/health")).json()
        assert (health["queued"], health["running"]) == (0, 0)


def test_a_file_judge_explains_wrong_options_and_a_port_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = JUDGE.replace("sys.exit(serve_alone(", "start = lambda words: (serve_alone(")
    source = source.replace("sys.argv[1:]", "words")
    names: dict[str, Any] = {}
    exec(source, names)
    state = tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert names["start"](["--port", str(port), "--state-dir", str(state)]) == 2
    assert f"port {port} on 127.0.0.1 is already in use" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        names["start"](["--workers", "0"])
    assert "must be at least 1" in capsys.readouterr().err
    state.write_text("a file")
    assert names["start"](["--port", "0", "--state-dir", str(state)]) == 1
    assert str(state) in capsys.readouterr().err
