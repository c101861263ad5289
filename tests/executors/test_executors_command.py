"""The command line: start, refusal to start, and stop."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "executors", *options]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def refused(*options: str) -> str:
    process = start(*options)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    return err


def test_a_port_in_use_is_one_line_with_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = refused("--port", str(port))
    assert f"port {port} on 127.0.0.1 is in use" in message
    assert "--port" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "70000"], "70000 is not a port number"),
        (["--task", "trimul"], "'trimul' has no offline catalogue"),
        (["--catalogue", "/nowhere"], "catalogue.json cannot be read"),
        (["--task", "other", "--catalogue", "harbor/polyomino_packing/offline"], "catalogue of 'polyomino_packing'"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1:0"),
    ],
)
def test_what_cannot_start_says_why_and_ends_with_status_2(options: list[str], words: str) -> None:
    assert words in refused(*options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_on_a_free_port_and_stops_when_told(number: signal.Signals) -> None:
    process = start("--port", "0")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line)
        assert found is not None, line
        assert "not a language model" in line
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/health", timeout=10) as answer:
            assert json.load(answer)["ok"] is True
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_help_answers_without_loading_the_server() -> None:
    code = "import sys, executors.__main__ as m; m.parse_options([]); sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
