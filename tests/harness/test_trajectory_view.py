"""`harbor view` over a Lab's directory shows the trial and its trajectory, receipts included."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from reef_eval import Lab
from support.jail_fixture import needs_jail
from support.toy_task import write_toy_task

from harness.environment_choice import choose_environment

pytestmark = [needs_jail, pytest.mark.slow]

QUIET = {"HARBOR_TELEMETRY": "off", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
AGENT = {"name": "support.toy_agent:ToyAgent", "model_name": "toy/model"}
START_TIMEOUT_S = 60


@pytest.fixture
def lab_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Lab in which one trial ran."""
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    environment = choose_environment("local", judge_url="http://127.0.0.1:1")
    task = str(write_toy_task(tmp_path))
    row = asyncio.run(Lab(tmp_path / "lab").run(task, AGENT, key="toy:1:1", environment=environment))
    assert row.rewards == {"reward": 1.0}
    return tmp_path / "lab"


@pytest.fixture
def viewer(lab_directory: Path) -> Iterator[httpx.Client]:
    """The viewer on a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    harbor = str(Path(sys.executable).with_name("harbor"))
    process = subprocess.Popen(
        [harbor, "view", str(lab_directory), "--jobs", "--no-build", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **QUIET},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _healthy(client):
                assert process.poll() is None, "the viewer ended by itself"
                assert time.monotonic() < deadline, "the viewer did not start"
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/api/health").status_code == 200
    except httpx.TransportError:
        return False


def test_the_viewer_shows_the_trial_and_every_receipt(viewer: httpx.Client) -> None:
    jobs = viewer.get("/api/jobs").raise_for_status().json()["items"]
    assert [job["name"] for job in jobs] == ["trials"]
    tasks = viewer.get("/api/jobs/trials/tasks").raise_for_status().json()["items"]
    assert [task["n_trials"] for task in tasks] == [1]
    trial = viewer.get("/api/jobs/trials/trials").raise_for_status().json()["items"][0]
    document = viewer.get(f"/api/jobs/trials/trials/{trial['name']}/trajectory").raise_for_status().json()
    assert document["schema_version"] == "ATIF-v1.7"
    assert document["steps"][1]["message"] == "Try 42."
    assert document["steps"][1]["extra"]["receipt"] == "receipt-1"
    assert document["steps"][-1]["tool_calls"][0]["function_name"] == "write_submission"
    assert "<html" in viewer.get("/").text
