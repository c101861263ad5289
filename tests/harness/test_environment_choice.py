"""Docker or jail: the choice, and the way to the judge that goes with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.environment_choice import LOCAL_ENVIRONMENT, choose_environment, docker_is_ready
from harness.errors import ConfigError

JUDGE = "http://127.0.0.1:18081"


def _fake_docker(directory: Path, script: str) -> None:
    docker = directory / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'podman'; it may be 'auto', 'docker' or 'local'"):
        choose_environment("podman", judge_url=JUDGE)


def test_asking_for_docker_without_a_daemon_is_refused_with_both_cures() -> None:
    with pytest.raises(ConfigError, match=r"no Docker daemon .* start it, or choose 'local'"):
        choose_environment("docker", judge_url=JUDGE, docker_answers=lambda: False)


@pytest.mark.parametrize("url", ["127.0.0.1:8081", "ftp://host:1", "http://", "http://[::1]:8081", "http://host:99999"])
def test_a_judge_url_that_no_connection_can_be_made_to_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="judge URL must look like"):
        choose_environment("local", judge_url=url)


def test_a_password_in_a_bad_judge_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_environment("local", judge_url="ftp://me:hunter2@host:1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("setting", "judge"), [("auto", "http://judge.lan:8081"), ("docker", JUDGE)])
def test_docker_is_used_as_it_is_when_a_daemon_answers(setting: str, judge: str) -> None:
    assert choose_environment(setting, judge_url=judge, docker_answers=lambda: True) == {}


def test_a_judge_on_loopback_is_out_of_a_containers_reach_so_the_jail_is_taken() -> None:
    assert choose_environment("auto", judge_url=JUDGE, docker_answers=lambda: True) != {}


def test_without_a_daemon_the_jail_gets_a_forward_to_the_judge() -> None:
    chosen = choose_environment("auto", judge_url=JUDGE, docker_answers=lambda: False)
    assert chosen == {
        "import_path": LOCAL_ENVIRONMENT,
        "kwargs": {"forward": {"host.docker.internal:8081": "127.0.0.1:18081"}},
    }


def test_local_never_asks_docker_and_keeps_the_tasks_own_name_for_the_judge() -> None:
    def fail() -> bool:
        raise AssertionError("asked")

    url = "https://user:secret@judge.example.com/base"
    chosen = choose_environment(
        "local", judge_url=url, container_judge="host.docker.internal:8082", docker_answers=fail
    )
    assert chosen["kwargs"]["forward"] == {"host.docker.internal:8082": "judge.example.com:443"}


@pytest.mark.parametrize(
    ("script", "ready"),
    [
        ("exit 0", True),
        ("exit 1", False),
        ('[ "$1" = version ]', False),  # a client and a daemon, but no compose plug-in
        ("exec sleep 30", False),  # a daemon that hangs
    ],
)
def test_only_a_daemon_that_answers_in_time_with_compose_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, ready: bool
) -> None:
    _fake_docker(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert docker_is_ready() is ready


def test_no_docker_program_means_no_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker_is_ready() is False


def test_choosing_does_not_load_harbor() -> None:
    modules = "harness.environment_choice, harness.trajectory, harness.jail.machine"
    code = f"import sys, {modules}; print('harbor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
