"""Files in and out: planted links stay in the jail, planted rewards do not count, hostile archives are refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from support.jail_fixture import make_environment, needs_jail, output, running

from harness.jail.transfer import unpack_file, unpack_tree

pytestmark = needs_jail


def _archive(*members: tarfile.TarInfo) -> io.BytesIO:
    spool = io.BytesIO()
    with tarfile.open(fileobj=spool, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    spool.seek(0)
    return spool


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, size
    return member


@pytest.mark.parametrize("name", ["/etc/passwd", "../out", "a/../../out"])
def test_an_archive_name_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RuntimeError, match="leads outside"):
        unpack_tree(_archive(_member(name, size=1)), tmp_path / "target")
    assert not (tmp_path / "out").exists()


def test_links_and_devices_of_an_archive_are_left_out(tmp_path: Path) -> None:
    hostile = _archive(
        _member("link", tarfile.SYMTYPE, "/etc"),
        _member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        _member("device", tarfile.CHRTYPE),
        _member("pipe", tarfile.FIFOTYPE),
        _member("plain", size=3),
    )
    assert unpack_tree(hostile, tmp_path) == ["link", "hard", "device", "pipe"]
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_a_download_never_writes_through_a_link_that_lies_at_the_target(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "target").symlink_to(victim)
    unpack_file(_archive(_member("f", size=2)), "f", tmp_path / "target")
    assert victim.read_text() == "untouched"
    assert (tmp_path / "target").read_text() == "xx"


@pytest.mark.parametrize("payload", [b"", b"not a tar at all" * 100])
def test_an_unreadable_archive_is_one_clear_error(tmp_path: Path, payload: bytes) -> None:
    with pytest.raises(RuntimeError, match=r"unreadable archive|not a plain file"):
        unpack_file(io.BytesIO(payload), "f", tmp_path / "target")


async def test_links_planted_in_the_jail_lead_nowhere_on_the_host(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sentinel")
    async with running(make_environment(tmp_path)) as environment:
        await environment.exec(
            f"mkdir d && cd d && ln -s {secret} leak && ln -s / all && ln -s /etc/passwd own && echo a > a && ln a b"
        )
        await environment.download_dir("/workspace/d", tmp_path / "got")
        assert sorted(path.name for path in (tmp_path / "got").iterdir()) == ["a", "b"]
        with pytest.raises(RuntimeError, match=r"download of /workspace/d/leak failed"):
            await environment.download_file("/workspace/d/leak", tmp_path / "leak")
        await environment.download_file("/workspace/d/own", tmp_path / "own")
        assert "agent:x:1000" in (tmp_path / "own").read_text()  # the jail's file, not the host's
        await environment.download_dir_with_exclusions(
            source_dir="/workspace/d", target_dir=tmp_path / "some", exclude=["a"]
        )
        assert [path.name for path in (tmp_path / "some").iterdir()] == ["b"]


async def test_an_upload_through_a_planted_link_lands_in_the_jail(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o777)
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (tmp_path / "up" / "run.sh").chmod(0o755)
    async with running(make_environment(tmp_path)) as environment:
        await environment.exec(f"mkdir -p {tmp_path} && ln -s {target} /tests")
        await environment.upload_dir(tmp_path / "up", "/tests")
        assert await output(environment, "/tests/run.sh") == "hi"
        await environment.upload_file(tmp_path / "up" / "run.sh", "/deep/er/name.sh")
        assert await output(environment, "sh /deep/er/name.sh") == "hi"
    assert not list(target.iterdir())


async def test_uploading_the_tests_removes_what_was_planted_beside_them_and_old_rewards(tmp_path: Path) -> None:
    for name in ("shared", "step"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.sh").write_text("true\n")
    async with running(make_environment(tmp_path)) as environment:
        await environment.exec("mkdir -p /tests /logs/verifier; echo evil > /tests/json.py")
        await environment.exec("echo '{\"reward\": 99}' > /logs/verifier/reward.json")
        await environment.upload_dir(tmp_path / "shared", "/tests")
        await environment.upload_dir(tmp_path / "step", "/tests")
        listing = await output(environment, "ls -A /tests /logs/verifier | xargs")
    assert listing == "/logs/verifier: /tests: shared.sh step.sh"


async def test_a_download_above_the_limit_is_stopped(tmp_path: Path) -> None:
    async with running(make_environment(tmp_path, max_transfer_bytes=100_000)) as environment:
        await environment.exec("truncate -s 50G huge")
        with pytest.raises(RuntimeError, match="/workspace/huge is larger than the limit of 100000 bytes"):
            await environment.download_file("/workspace/huge", tmp_path / "huge")
        assert await output(environment, "echo still works") == "still works"


async def test_a_writable_mount_is_shared_with_the_host_and_a_read_only_one_is_not(tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    mounts = [
        {"type": "bind", "source": str(tmp_path / "in"), "target": "/data/in", "read_only": True},
        {"type": "bind", "source": str(tmp_path / "out"), "target": "/data/out"},
    ]
    (tmp_path / "in" / "word").write_text("hello")
    async with running(make_environment(tmp_path, mounts=mounts)) as environment:
        text = await output(environment, "cat /data/in/word > /data/out/copy; touch /data/in/new")
    assert "Read-only" in text
    assert (tmp_path / "out" / "copy").read_text() == "hello"
