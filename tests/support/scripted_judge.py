"""A judge of a few lines that speaks the protocol and answers what a test says; a real server on a real port."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Result = dict[str, Any]


def accepted(score: float, raw: float | None = None, **more: Any) -> Result:
    """The final result of a valid program."""
    raw = score if raw is None else raw
    return {"status": "done", "valid": True, "score": score, "scoreUnbounded": raw, "message": "accepted", **more}


def rejected(message: str) -> Result:
    """The final result of a program that is at fault."""
    return {"status": "error", "valid": False, "score": 0.0, "message": message, "failureDomain": "candidate"}


def broken(message: str) -> Result:
    """The final result when the judge is at fault."""
    return {"status": "environment_error", "valid": False, "score": 0.0, "message": message}


class ScriptedJudge(ThreadingHTTPServer):
    """`programs` holds what was submitted, each a dict of its three fields."""

    daemon_threads = True

    def __init__(self, problem: str, answer: Callable[[str], Result]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.problem = problem
        self.answer = answer
        self.programs: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedJudge

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = BytesParser(policy=HTTP).parsebytes(head + body)
        fields = {}
        for part in form.iter_parts():
            data = part.get_payload(decode=True)
            assert isinstance(data, bytes)
            fields[str(part.get_param("name", header="content-disposition"))] = data.decode()
        self.server.programs.append(fields)
        self._say(200, {"sid": f"{len(self.server.programs):032x}"})

    def do_GET(self) -> None:
        if self.path == "/problems":
            self._say(200, {"problems": [{"id": self.server.problem}]})
        elif self.path == "/health":
            self._say(200, {"ok": True, "running": 0})
        elif self.path.startswith("/result/"):
            number = int(self.path.rsplit("/", 1)[1], 16)
            self._say(200, self.server.answer(self.server.programs[number - 1]["code"]))
        else:
            self._say(404, {"error": "unknown endpoint"})

    def _say(self, status: int, value: Result) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def scripted_judge(problem: str, answer: Callable[[str], Result]) -> Iterator[ScriptedJudge]:
    """Serve one problem until the block ends; `answer` makes the result for a program's text."""
    server = ScriptedJudge(problem, answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
