"""Network policies: nothing, everything, or exactly the endpoints on the allowlist."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.jail_fixture import (
    NO_NETWORK,
    PUBLIC,
    allowlist,
    fetch,
    http_server,
    make_environment,
    needs_jail,
    output,
    running,
)

pytestmark = needs_jail

JUDGE = "host.docker.internal"


def test_an_allowlisted_host_without_a_forward_is_refused_at_construction(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"names api.example.com, which the environment kwarg forward leads nowhere"):
        make_environment(tmp_path, policy=allowlist("api.example.com"), forward={f"{JUDGE}:8081": "127.0.0.1:1"})


def test_an_allowlist_for_a_later_phase_is_checked_at_construction_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="forward leads nowhere"):
        make_environment(tmp_path, phase_network_policies=[allowlist(JUDGE)])


@pytest.mark.parametrize("entry", ["*.example.com", "10.0.0.5", "10.0.0.0/8"])
def test_kinds_of_allowlist_entries_that_cannot_be_enforced_are_refused(tmp_path: Path, entry: str) -> None:
    with pytest.raises(ValueError, match="is not supported by"):
        make_environment(tmp_path, policy=allowlist(entry), forward={"10.0.0.5:8080": "127.0.0.1:1"})


@pytest.mark.parametrize(
    "forward", [{"judge": "127.0.0.1:1"}, {"judge:0": "127.0.0.1:1"}, {"judge:8080": "[::1]:1"}, {"a b:1": "c:2"}]
)
def test_a_forward_that_is_not_host_and_port_is_refused(tmp_path: Path, forward: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected 'host:port'"):
        make_environment(tmp_path, forward=forward)


def test_a_forward_from_a_privileged_port_is_refused_because_nothing_could_listen_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a port of 1024 or above"):
        make_environment(tmp_path, forward={"judge:80": "127.0.0.1:8080"})


async def test_the_judge_on_the_allowlist_is_reached_and_everything_else_is_refused(tmp_path: Path) -> None:
    with http_server("judge") as judge, http_server("other") as other:
        forward = {f"{JUDGE}:8081": f"127.0.0.1:{judge}", "second.host:8081": f"127.0.0.1:{other}"}
        async with running(make_environment(tmp_path, policy=allowlist(JUDGE), forward=forward)) as environment:
            assert await output(environment, fetch(f"http://{JUDGE}:8081/")) == "judge"
            assert await output(environment, fetch("http://127.0.0.1:8081/")) == "judge"
            for url in (
                f"http://127.0.0.1:{judge}/",  # the judge's own port on the host
                f"http://127.0.0.1:{other}/",
                f"http://{JUDGE}:8082/",
                "http://second.host:8081/",  # a forward, but not on this task's allowlist
                "http://192.0.2.1/",
            ):
                assert await output(environment, fetch(url)) == "URLError"
            kinds = await output(environment, "stat -c %F /jail/*.sock")
            assert sorted(kinds.splitlines()) == ["regular empty file", "socket"]


async def test_large_bodies_exit_codes_and_streams_pass_through_the_relay(tmp_path: Path) -> None:
    with http_server("judge") as judge:
        forward = {f"{JUDGE}:8081": f"127.0.0.1:{judge}"}
        async with running(make_environment(tmp_path, policy=allowlist(JUDGE), forward=forward)) as environment:
            assert await output(environment, fetch(f"http://{JUDGE}:8081/", post_bytes=3_000_000)) == "3000000 bytes"
            result = await environment.exec("echo out; echo err >&2; exit 7")
            assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 7)
            assert (await environment.exec("kill -9 $$")).return_code == 137
            texts = await asyncio.gather(*(output(environment, fetch(f"http://{JUDGE}:8081/")) for _ in range(4)))
            assert texts == ["judge"] * 4


async def test_a_judge_that_is_down_looks_like_a_closed_connection(tmp_path: Path) -> None:
    with http_server("gone") as port:
        pass
    forward = {f"{JUDGE}:8081": f"127.0.0.1:{port}"}
    async with running(make_environment(tmp_path, policy=allowlist(JUDGE), forward=forward)) as environment:
        assert await output(environment, fetch(f"http://{JUDGE}:8081/")) in ("RemoteDisconnected", "URLError")


async def test_no_network_means_none_and_the_policy_follows_the_phase(tmp_path: Path) -> None:
    with http_server("judge") as judge:
        environment = make_environment(tmp_path, policy=NO_NETWORK, forward={f"{JUDGE}:8081": f"127.0.0.1:{judge}"})
        async with running(environment):
            assert await output(environment, fetch(f"http://{JUDGE}:8081/")) == "URLError"
            assert await output(environment, fetch(f"http://127.0.0.1:{judge}/")) == "URLError"
            await environment.set_network_policy(allowlist(JUDGE))
            assert await output(environment, fetch(f"http://{JUDGE}:8081/")) == "judge"
            await environment.set_network_policy(PUBLIC)
            assert await output(environment, fetch(f"http://127.0.0.1:{judge}/")) == "judge"
            assert await output(environment, fetch(f"http://{JUDGE}:{judge}/")) == "judge"
