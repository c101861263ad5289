"""Docker or the local jail: decides once, before a trial is configured, and needs nothing of Harbor for it.

A container reaches this machine through the bridge's address, so a judge that listens on loopback only, as ours does,
is out of its reach; `auto` takes the jail then, whatever Docker says.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

from harness.errors import ConfigError
from harness.http_common import is_loopback

EnvironmentSetting = Literal["auto", "docker", "local"]

#: Where Harbor finds the jail.
LOCAL_ENVIRONMENT = "harness.local_environment:LocalEnvironment"

#: The judge as the tasks' graders name it, unless a task says otherwise.
DEFAULT_CONTAINER_JUDGE = "host.docker.internal:8081"

_DOCKER_TIMEOUT_S = 3.0


def choose_environment(
    setting: str,
    *,
    judge_url: str,
    container_judge: str = DEFAULT_CONTAINER_JUDGE,
    docker_answers: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """The `environment` fields of a Harbor trial: {} for Docker, else the local jail with a way to the judge.

    Args:
        setting: "docker", "local", or "auto" for Docker where a daemon answers within 3 s and the judge is not on
            loopback.
        judge_url: the judge as this machine reaches it, for example "http://127.0.0.1:8081".
        container_judge: "host:port" under which the task's grader looks for it (the host is on the task's allowlist).
        docker_answers: replaces the question to the daemon.

    Raises:
        ConfigError: an unknown setting, no daemon although "docker" was asked for, or an unusable judge URL.
    """
    if setting not in ("auto", "docker", "local"):
        raise ConfigError(f"the environment setting is {setting!r}; it may be 'auto', 'docker' or 'local'")
    wanted = setting == "docker" or (setting == "auto" and not is_loopback(judge_url))
    found = wanted and (docker_answers or docker_is_ready)()
    if setting == "docker" and not found:
        raise ConfigError(
            "the environment setting is 'docker', but no Docker daemon with the compose plug-in answers; "
            "start it, or choose 'local' (a bubblewrap jail on this machine)"
        )
    if found:
        return {}
    return {
        "import_path": LOCAL_ENVIRONMENT,
        "kwargs": {"forward": {container_judge: judge_endpoint(judge_url)}},
    }


def judge_endpoint(judge_url: str) -> str:
    """The "host:port" that a plain connection to this URL goes to.

    Raises:
        ConfigError: not an http URL with a host.
    """
    try:
        parts = urlsplit(judge_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or ":" in host or parts.scheme not in ("http", "https"):
        shown = judge_url.rpartition("@")[2]  # never the part that may hold a password
        raise ConfigError(
            f"the judge URL must look like http://127.0.0.1:8081 (host name or IPv4 address), got {shown!r}"
        )
    return f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def docker_is_ready() -> bool:
    """Whether a daemon answers and the compose plug-in that Harbor drives is there."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    questions = (["version", "--format", "{{.Server.Version}}"], ["compose", "version"])
    return all(_succeeds([docker, *question]) for question in questions)


def _succeeds(argv: list[str]) -> bool:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DOCKER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
