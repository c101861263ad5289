"""`guidance-ttt doctor`, the parts that talk to something: sandbox, ports, executor, judge, trial."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from front_doctor import Server, context_of, levels

from guidance_ttt.doctor import environment, network, sandbox, services
from guidance_ttt.doctor.model import Context, Level
from guidance_ttt.doctor.probes import Probes
from guidance_ttt.ports import PortHolder
from guidance_ttt.services import ServiceSpec
from harness.errors import JudgeUnavailable
from judges.errors import JudgeError
from judges.sandbox import Tier, open_sandbox


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[Server] = []

    def start(answers: dict[str, tuple[int, Any]], port: int = 0) -> Server:
        running.append(Server(answers, port))
        return running[-1]

    yield start
    for server in running:
        server.close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- sandbox ----------------------------------------------------------------------------------------------------------


def reached(**changes: str) -> dict[str, str]:
    return {**dict.fromkeys(("file", "home", "loopback", "network", "socket", "process"), "0"), **changes}


@pytest.mark.parametrize(
    ("view", "expected", "words"),
    [
        (sandbox.SandboxView("cgroup", found=reached()), ["ok"], "reached no file"),
        (sandbox.SandboxView("rlimit", found=reached()), ["ok", "warning"], "tier rlimit"),
        (sandbox.SandboxView("cgroup", found=reached(file="1")), ["failure"], "read a file of this user"),
        (sandbox.SandboxView("cgroup", found=reached(loopback="1")), ["failure"], "reach a service on loopback"),
        (sandbox.SandboxView("cgroup", found=reached(process="1")), ["failure"], "see another process"),
        (sandbox.SandboxView("cgroup", found={}), ["failure"], "said nothing"),
        (sandbox.SandboxView(None, "no sandbox here:\n  cgroup: a\nInstall it"), ["failure"], "cannot be contained"),
    ],
)
def test_what_a_hostile_program_reached_decides(
    view: sandbox.SandboxView, expected: list[str], words: str
) -> None:
    found = list(sandbox.sandbox_findings(view))
    assert levels(found) == expected
    assert words in found[0].fact
    assert all(item.cure for item in found if item.level is not Level.OK)


@pytest.mark.slow
def test_the_hostile_program_reaches_everything_without_a_jail_and_nothing_inside_one() -> None:
    try:
        with open_sandbox(allow_unsafe=True, only=Tier.UNSAFE) as unjailed:
            free = sandbox._let_loose(unjailed)
    except JudgeError as error:
        pytest.skip(f"programs cannot even be compiled in a sandbox here: {error}")
    assert {name for name, value in free.items() if value == "1"} >= {"file", "loopback", "socket"}
    assert free.get("process", "1") == "1"
    view = sandbox.observe_sandbox()
    if view.tier is None:
        pytest.skip(f"no sandbox works here: {view.reason}")
    assert set(view.found.values()) == {"0"}
    assert set(view.found) >= {"file", "loopback", "network", "socket"}


def test_missing_control_groups_are_a_warning_with_the_reason() -> None:
    assert levels(sandbox.control_group_findings(2, "")) == ["ok"]
    (found,) = sandbox.control_group_findings(None, "cannot make control group /x: Read-only file system")
    assert (found.level, "Read-only file system" in found.fact) == (Level.WARNING, True)


def test_an_unsafe_judge_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "observe_sandbox", lambda: sandbox.SandboxView("cgroup", found=reached()))
    found = list(sandbox.check_sandbox(Context({"GUIDANCE_JUDGE_ARGS": "--workers 2 --unsafe"})))
    assert levels(found) == ["ok", "warning"]


# --- ports ------------------------------------------------------------------------------------------------------------

SPEC = ServiceSpec(
    name="judge",
    argv=("x",),
    env={},
    cwd=Path("/"),
    log_path=Path("/x"),
    health_url="http://127.0.0.1:8081/health",
    ready_timeout_s=1.0,
    port_setting="GUIDANCE_JUDGE_URL=http://127.0.0.1:9081",
    cure="x",
    identity='"problems"',
)
STRANGER = Probes(
    port_is_free=lambda host, port: False,
    port_holder=lambda port: PortHolder(77, "python -m http.server"),
    fetch=lambda url, timeout_s: (200, "<html>"),
)
OURS = replace(STRANGER, fetch=lambda url, timeout_s: (200, '{"problems": []}'))


def test_a_port_is_free_or_its_holder_is_named_with_the_way_out() -> None:
    free = Probes(port_is_free=lambda host, port: True)
    assert network.port_finding(SPEC, free, live=False, reuse=False).fact == "port 8081 (judge) is free"
    held = network.port_finding(SPEC, STRANGER, live=False, reuse=False)
    assert held.level is Level.FAILURE
    assert "held by process 77 (python -m http.server)" in held.fact
    assert "choose another port with GUIDANCE_JUDGE_URL=http://127.0.0.1:9081" in held.cure
    silent = replace(STRANGER, port_holder=lambda port: None, fetch=lambda url, timeout_s: None)
    assert "held by another process" in network.port_finding(SPEC, silent, live=False, reuse=False).fact


def test_a_judge_of_ours_on_the_port_is_no_failure() -> None:
    assert network.port_finding(SPEC, OURS, live=False, reuse=False).level is Level.WARNING
    assert network.port_finding(SPEC, OURS, live=False, reuse=True).level is Level.OK
    assert network.port_finding(SPEC, OURS, live=True, reuse=False).level is Level.OK
    holder = PortHolder(78, "/x/python -m judges polyomino --port 8081")
    starting = replace(STRANGER, port_holder=lambda port: holder, fetch=lambda url, timeout_s: None)
    spec = replace(SPEC, argv=("/x/python", "-m", "judges", "polyomino"))
    assert network.port_finding(spec, starting, live=False, reuse=False).level is Level.WARNING


def test_every_service_of_the_plan_is_looked_at(tmp_path: Path) -> None:
    probes = Probes(
        port_is_free=lambda host, port: port != 8000, port_holder=lambda port: None, fetch=lambda url, t: None
    )
    context = context_of(tmp_path, probes)
    found = list(network.check_ports(context))
    assert [item.level.value for item in found] == ["ok", "failure", "ok"]
    assert "port 8000 (executor)" in found[1].fact


# --- executor ---------------------------------------------------------------------------------------------------------

CHAT = "POST /v1/chat/completions"
REPLY = {
    "model": "m-2",
    "choices": [{"message": {"content": "ready"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 3, "cost": 0.0004},
}


def openai_context(tmp_path: Path, port: int, **more: str) -> Context:
    return context_of(
        tmp_path,
        GUIDANCE_EXECUTOR="openai",
        GUIDANCE_EXECUTOR_URL=f"http://127.0.0.1:{port}/v1",
        GUIDANCE_EXECUTOR_MODEL="m",
        **more,
    )


def test_a_limit_that_the_run_does_not_send_is_not_sent_either(tmp_path: Path, serve: Any) -> None:
    server = serve({CHAT: (200, REPLY)})
    (found,) = services.check_executor(openai_context(tmp_path, server.port))
    assert found.level is Level.OK
    assert "max_tokens" not in json.loads(server.asked[0][2])


def test_a_server_is_asked_once_with_few_tokens_and_its_answer_is_told(tmp_path: Path, serve: Any) -> None:
    server = serve({CHAT: (200, REPLY)})
    limit = {"GUIDANCE_EXECUTOR_MAX_TOKENS": "9000"}
    (found,) = services.check_executor(openai_context(tmp_path, server.port, **limit))
    assert found.level is Level.OK
    assert "m-2 answered in" in found.fact
    assert "23 tokens, $0.0004" in found.fact
    (asked,) = server.asked
    assert json.loads(asked[2])["max_tokens"] == services.CALL_TOKENS


def test_a_refused_key_is_named_and_never_shown(tmp_path: Path, serve: Any) -> None:
    server = serve({CHAT: (401, {"error": {"message": "bad key sk-sentinel"}})})
    key = {"GUIDANCE_EXECUTOR_KEY_ENV": "MY_API_KEY", "MY_API_KEY": "sk-sentinel"}
    (found,) = services.check_executor(openai_context(tmp_path, server.port, **key))
    assert found.level is Level.FAILURE
    assert found.cure == "the server refuses the key in MY_API_KEY: set another one"
    assert "sentinel" not in found.fact
    assert len(server.asked) == 1


@pytest.mark.parametrize(("code", "cure"), [(404, "does not know the model"), (429, "limit is reached"), (500, "runs")])
def test_each_kind_of_refusal_has_its_cure(tmp_path: Path, serve: Any, code: int, cure: str) -> None:
    server = serve({CHAT: (code, {"error": {"message": "no"}})})
    (found,) = services.check_executor(openai_context(tmp_path, server.port))
    assert (found.level, cure in found.cure) == (Level.FAILURE, True)
    assert len(server.asked) == 1


def test_a_reply_that_is_still_thinking_is_an_answer(tmp_path: Path, serve: Any) -> None:
    thinking = {"choices": [{"message": {"content": None, "reasoning": "hm"}, "finish_reason": "length"}]}
    server = serve({CHAT: (200, thinking)})
    (found,) = services.check_executor(openai_context(tmp_path, server.port))
    assert (found.level, "no final content (finish=length)" in found.fact) == (Level.OK, True)


def test_an_executor_that_does_not_run_is_fine_only_if_the_run_starts_it(tmp_path: Path) -> None:
    port = closed_port()
    (own,) = services.check_executor(context_of(tmp_path, GUIDANCE_EXECUTOR_URL=f"http://127.0.0.1:{port}/v1"))
    assert (own.level, "./run.sh starts it" in own.fact) == (Level.OK, True)
    (theirs,) = services.check_executor(openai_context(tmp_path, port))
    assert (theirs.level, "nothing listens at" in theirs.fact) == (Level.FAILURE, True)


def test_nothing_is_asked_offline_or_without_the_key(tmp_path: Path, serve: Any) -> None:
    server = serve({CHAT: (200, REPLY)})
    (offline,) = services.check_executor(replace(openai_context(tmp_path, server.port), offline=True))
    assert (offline.level, "(--offline)" in offline.fact) == (Level.WARNING, True)
    key = {"GUIDANCE_EXECUTOR_KEY_ENV": "MY_API_KEY"}
    (keyless,) = services.check_executor(openai_context(tmp_path, server.port, **key))
    assert (keyless.level, "MY_API_KEY is not set" in keyless.fact) == (Level.WARNING, True)
    assert server.asked == []


def test_the_catalogue_is_sent_a_whole_request(tmp_path: Path, serve: Any) -> None:
    server = serve({CHAT: (200, REPLY)})
    context = context_of(tmp_path, GUIDANCE_EXECUTOR_URL=f"http://127.0.0.1:{server.port}/v1")
    assert levels(services.check_executor(context)) == ["ok"]
    from executors.prompt_reader import read_request

    request = read_request(json.loads(server.asked[0][2])["messages"])
    assert "int main" in request.parent_code


# --- judge ------------------------------------------------------------------------------------------------------------

HEALTH = (200, {"ok": True, "suite": "own", "tier": "cgroup", "workers": 2, "queued": 0})
PROBLEMS = (200, {"problems": [{"id": "0"}, {"id": "0-quick"}]})
JUDGE = {"GET /health": HEALTH, "GET /problems": PROBLEMS}


def judge_context(tmp_path: Path, port: int, **more: str) -> Context:
    return context_of(tmp_path, GUIDANCE_JUDGE_URL=f"http://127.0.0.1:{port}", **more)


def test_a_running_judge_tells_of_itself(tmp_path: Path, serve: Any) -> None:
    (found,) = services.check_judge(judge_context(tmp_path, serve(JUDGE).port))
    assert found.level is Level.OK
    assert "problem 0-quick, suite own, tier cgroup, workers 2, queued 0" in found.fact


def test_a_judge_without_the_problem_or_without_isolation_is_told(tmp_path: Path, serve: Any) -> None:
    port = serve(JUDGE).port
    (found,) = services.check_judge(judge_context(tmp_path, port, GUIDANCE_SEARCH_PROBLEM="other"))
    assert "has no problem 'other' (it has: 0, 0-quick)" in found.fact
    unsafe = serve({**JUDGE, "GET /health": (200, {"tier": "unsafe"})}).port
    assert levels(services.check_judge(judge_context(tmp_path, unsafe))) == ["ok", "warning"]


def test_a_judge_that_is_starting_is_waited_for_with_a_countdown(tmp_path: Path, serve: Any) -> None:
    port = closed_port()
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            serve(JUDGE, port)

    context = replace(judge_context(tmp_path, port), tell=tell, wait_s=20.0)
    assert levels(services.check_judge(context)) == ["ok"]
    assert told[0] == "the judge does not answer yet; waiting 20 s more"


def test_the_wait_ends_at_its_bound_and_counts_down_to_it() -> None:
    now = 0.0
    told: list[str] = []

    def look() -> services.JudgeView:
        raise JudgeUnavailable("connection refused")

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    with pytest.raises(JudgeUnavailable):
        services.wait_for_judge(look, 2.0, told.append, clock=lambda: now, sleep=sleep)
    assert now == 2.0
    assert [line.split()[-3] for line in told] == ["2", "2", "1", "0"]


def test_a_judge_that_stays_silent_is_a_failure_unless_the_run_starts_one_there(tmp_path: Path, serve: Any) -> None:
    local = replace(judge_context(tmp_path, closed_port()), wait_s=0.0)
    (found,) = services.check_judge(local)
    assert (found.level, "./run.sh starts a judge there" in found.fact) == (Level.WARNING, True)
    stranger = serve({"GET /health": (200, "no object")})
    (found,) = services.check_judge(replace(judge_context(tmp_path, stranger.port), wait_s=0.0))
    assert found.level is Level.FAILURE


def test_the_default_judge_is_not_waited_for_when_nothing_is_there(tmp_path: Path) -> None:
    told: list[str] = []
    context = replace(context_of(tmp_path, Probes(port_is_free=lambda host, port: True)), tell=told.append)
    (found,) = services.check_judge(context)
    assert (found.level, "does not run yet; ./run.sh starts it" in found.fact) == (Level.OK, True)
    assert told == []


def test_a_deep_look_has_the_seed_scored_by_the_running_judge(tmp_path: Path, serve: Any) -> None:
    accepted = {"status": "done", "valid": True, "score": 28.5, "scoreUnbounded": 28.5, "message": "accepted"}
    answers = {**JUDGE, "POST /submit": (200, {"sid": "7"}), "GET /result/7": (200, accepted)}
    found = list(services.check_judge(replace(judge_context(tmp_path, serve(answers).port), deep=True)))
    assert levels(found) == ["ok", "ok"]
    assert "scored the seed: packing score 28.5" in found[1].fact
    rejected = {"status": "error", "valid": False, "message": "compile error", "failureDomain": "candidate"}
    answers = {**answers, "GET /result/7": (200, rejected)}
    found = list(services.check_judge(replace(judge_context(tmp_path, serve(answers).port), deep=True)))
    assert (found[1].level, "rejects the seed" in found[1].fact) == (Level.FAILURE, True)


# --- trial ------------------------------------------------------------------------------------------------------------


def test_the_trials_place_is_told_and_an_unusable_jail_is_a_failure() -> None:
    chosen = {"kwargs": {"forward": {"host.docker.internal:8081": "127.0.0.1:8081"}}}
    (held,) = environment.jail_findings(None, {}, chosen)
    assert "host.docker.internal:8081 leads to 127.0.0.1:8081" in held.fact
    weak = list(environment.jail_findings(None, {"memory": "no controller"}, chosen))
    assert levels(weak) == ["ok", "warning"]
    (broken,) = environment.jail_findings("bubblewrap cannot build a jail: no; allow namespaces", {}, chosen)
    assert (broken.level, broken.cure) == (Level.FAILURE, "allow namespaces")


def test_docker_that_does_not_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = environment.check_environment(context_of(tmp_path, GUIDANCE_ENVIRONMENT="docker"))
    assert (found.level, "no Docker daemon" in found.fact) == (Level.FAILURE, True)
