"""Settings, contexts and an HTTP server for the tests of the doctor."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from guidance_ttt.doctor.model import Context, Finding
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.peek import peek_config

SETTINGS = """
reef: {port: "${GUIDANCE_REEF_PORT:?}", token: "${GUIDANCE_REEF_TOKEN:?}"}
recipe: {config: {groups-per-step: 2, rollouts-per-group: 4}}
training:
  config: {steps: 3, max_tokens: 64, seq_length: 1024, lora_rank: 32}
  options: {learning-rate: "2e-4", kl-coef: "0.1"}
"""


def environ_of(folder: Path, **more: str) -> dict[str, str]:
    (folder / "settings.yaml").write_text(SETTINGS)
    names = {"CONFIG": "settings.yaml", "STATE_DIR": "state", "MODEL_PATH": "model"}
    return {**{f"GUIDANCE_{name}": str(folder / value) for name, value in names.items()}, **more}


def context_of(folder: Path, probes: Probes | None = None, **more: str) -> Context:
    environ = environ_of(folder, **more)
    config = peek_config(environ)
    return Context(environ=environ, config=config, profile=config.profile, probes=probes or Probes())


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level.value for finding in findings]


class Server:
    """An HTTP server whose answers are a table `"METHOD path" -> (code, JSON value or bytes)`."""

    def __init__(self, answers: dict[str, tuple[int, Any]], port: int = 0) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.asked.append((f"{self.command} {self.path}", dict(self.headers), body))
                code, value = answers.get(f"{self.command} {self.path}", (404, {}))
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
