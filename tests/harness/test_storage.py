"""State files: strict reading, atomic writing, kills and full disks, and the lock of a state directory."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import StateCorrupt, StateLocked, StateWriteFailed
from harness.storage import (
    AppendFile,
    StateLock,
    clean_stray_temp_files,
    copy_file,
    process_start_s,
    read_json_object,
    write_bytes,
    write_json,
    write_text,
)

REPO = Path(__file__).resolve().parents[2]


def run_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=REPO, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def limited_file_size() -> Iterator[int]:
    """Let no file of this process grow beyond 20 kB; CPython turns the signal into an error."""
    limit_bytes = 20_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield limit_bytes
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"[1]", "a list instead of an object"),
        (b"null", "a NoneType instead of an object"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": {"b": 1, "b": 2}}', "'b' appears twice"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": 1} {"b": 2}', "Extra data"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"a": ' + b"[" * 100_000 + b"}", "nested too deeply"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ('{"a": 1}'.encode("utf-16"), "utf-8"),
    ],
)
def test_a_file_that_is_not_strict_json_is_refused_with_its_path(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "library.json"
    path.write_bytes(data)
    with pytest.raises(StateCorrupt, match=reason) as caught:
        read_json_object(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused_with_the_path(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(StateCorrupt, match=str(path)):
            read_json_object(path)


# --- writing ----------------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_never_reach_a_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert read_json_object(path) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["state.json"]


def test_a_full_disk_keeps_the_old_file_and_names_path_and_free_space(tmp_path: Path, limited_file_size: int) -> None:
    path = tmp_path / "library.json"
    write_json(path, {"version": "old"})
    big = "x" * (2 * limited_file_size)
    with pytest.raises(StateWriteFailed, match=r"free space there: .* MB") as caught:
        write_json(path, {"version": big})
    assert str(path) in str(caught.value)
    with pytest.raises(StateWriteFailed):
        write_text(path, big)
    assert read_json_object(path) == {"version": "old"}
    assert [item.name for item in tmp_path.iterdir()] == ["library.json"]


def test_a_full_disk_during_a_copy_keeps_the_old_target(tmp_path: Path) -> None:
    write_bytes(tmp_path / "big", b"x" * 200_000)
    write_bytes(tmp_path / "target", b"old")
    code = """
import resource, sys
from pathlib import Path
from harness.errors import StateWriteFailed
from harness.storage import copy_file
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
folder = Path(sys.argv[1])
try:
    copy_file(folder / "big", folder / "target")
except StateWriteFailed as error:
    print(error)
"""
    result = run_child(code, str(tmp_path))
    assert "free space there" in result.stdout, result.stderr
    assert (tmp_path / "target").read_bytes() == b"old"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["big", "target"]


def test_a_folder_that_cannot_be_written_gives_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateWriteFailed, match=r"Not a directory|File exists"):
        write_json(tmp_path / "file" / "state.json", {})


def test_text_that_utf8_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateWriteFailed, match="not valid Unicode"):
        write_text(tmp_path / "best.cpp", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_copying_from_a_missing_file_leaves_the_target(tmp_path: Path) -> None:
    write_bytes(tmp_path / "target", b"old")
    with pytest.raises(StateCorrupt, match="cannot copy"):
        copy_file(tmp_path / "absent", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"old"


def test_json_files_are_sorted_indented_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    write_json(path, {"b": "ü\ud800", "a": [1.5, None, True]})
    text = path.read_text(encoding="utf-8")
    assert text.startswith('{\n  "a": [')
    assert text.endswith("}\n")
    assert read_json_object(path) == {"b": "ü\ud800", "a": [1.5, None, True]}


def test_text_bytes_and_copies_arrive_unchanged(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "line\r\nü\n")
    assert (tmp_path / "a").read_bytes() == "line\r\nü\n".encode()
    data = os.urandom(300_000)
    write_bytes(tmp_path / "b", data)
    copy_file(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == data
    copy_file(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b", "c"]


def test_only_stray_temp_files_are_cleaned(tmp_path: Path) -> None:
    stray = tmp_path / f".library.json.{'0' * 32}.tmp"
    stray.write_text("half")
    kept = ["library.json", ".library.json.tmp", ".library.json.abc.tmp", "x.tmp", f"library.json.{'0' * 32}.tmp"]
    for name in kept:
        (tmp_path / name).write_text("")
    (tmp_path / f".folder.{'0' * 32}.tmp").mkdir()
    assert clean_stray_temp_files(tmp_path) == [stray]
    assert {item.name for item in tmp_path.iterdir() if item.is_file()} == set(kept)
    assert clean_stray_temp_files(tmp_path / "absent") == []


def test_a_process_killed_while_saving_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    path = tmp_path / "library.json"
    code = """
import sys
from pathlib import Path
from harness.storage import write_json
path, version = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    version += 1
    write_json(path, {"version": version, "body": [str(version) * 50] * 4000})
"""
    draw = random.Random(5)
    version = 0
    write_json(path, {"version": 0, "body": ["0" * 50] * 4000})
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code, str(path), str(version)], cwd=REPO, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.001, 0.1))
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)
        child.stdout.close()
        state = read_json_object(path)
        assert state["version"] >= version
        version = state["version"]
        assert state["body"] == [str(version) * 50] * 4000
        clean_stray_temp_files(tmp_path)
        assert [item.name for item in tmp_path.iterdir()] == ["library.json"]
    assert version > 0


# --- appending --------------------------------------------------------------------------------------------------------


def test_a_failed_append_takes_back_its_part_and_nothing_more_is_accepted(
    tmp_path: Path, limited_file_size: int
) -> None:
    log = AppendFile(tmp_path / "log")
    log.append(b"kept\n")
    for data in (b"x" * 2 * limited_file_size, b"small\n"):
        with pytest.raises(StateWriteFailed, match="free space"):
            log.append(data)
    assert log.read() == (tmp_path / "log").read_bytes() == b"kept\n"
    log.close()


def test_appending_goes_on_where_the_file_ended(tmp_path: Path) -> None:
    for data in (b"a\n", b"b\n"):
        log = AppendFile(tmp_path / "log")
        log.append(data)
        log.append(b"-\n", durable=False)
        log.close()
        log.close()
    assert (tmp_path / "log").read_bytes() == b"a\n-\nb\n-\n"
    with pytest.raises(StateWriteFailed):
        log.append(b"c\n")


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_second_lock_is_refused_with_the_holders_pid_and_the_cure(tmp_path: Path) -> None:
    with (
        StateLock(tmp_path),
        pytest.raises(StateLocked, match=rf"process {os.getpid()} on .*kill {os.getpid()}.*GUIDANCE_STATE_DIR"),
    ):
        StateLock(tmp_path).acquire()
    with StateLock(tmp_path):
        pass


def test_another_process_holds_the_lock_until_it_dies_even_by_sigkill(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from harness.storage import StateLock
StateLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=REPO, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StateLocked, match=f"process {child.pid} "):
            StateLock(tmp_path).acquire()
    finally:
        child.kill()
        child.wait(timeout=10)
        child.stdout.close()
    with StateLock(tmp_path) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


def test_a_lock_file_left_with_nonsense_does_not_block(tmp_path: Path) -> None:
    lock = StateLock(tmp_path / "new")
    lock.directory.mkdir()
    lock.path.write_bytes(b"\xff nonsense")
    with lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()
        with pytest.raises(RuntimeError, match="already holds"):
            lock.acquire()
    lock.release()


def test_a_holder_that_has_not_named_itself_is_still_refused(tmp_path: Path) -> None:
    with StateLock(tmp_path) as lock:
        lock.path.write_bytes(b"{}")
        with pytest.raises(StateLocked, match="does not name it"):
            StateLock(tmp_path).acquire()


def test_the_start_of_this_process_lies_in_the_past() -> None:
    started = process_start_s(os.getpid())
    assert started is None or time.time() - 86_400 * 30 < started < time.time() + 2
    assert process_start_s(-1) is None
