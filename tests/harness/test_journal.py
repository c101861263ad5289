"""The rollout journal: torn lines, damage, full disks, group commit, and the replay of a step."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.errors import StateCorrupt, StateWriteFailed
from harness.journal import RolloutJournal, encode_record, journal_files, read_records
from harness.storage import AppendFile

REPO = Path(__file__).resolve().parents[2]


class SlowFile(AppendFile):
    """A disk that takes 0.2 s for each flush and counts them."""

    flushes = 0

    def append(self, data: bytes, *, durable: bool = True) -> None:
        self.flushes += 1
        time.sleep(0.2)
        super().append(data, durable=durable)


def lines_of(journal: RolloutJournal) -> list[Any]:
    return [record["i"] for record in journal.records()]


@pytest.mark.parametrize("tail", [b'{"v":1,"kind":"x"', b"\0\0\0\0", b'{"v":1,"kind":"x"}', b"\xff"])
def test_a_last_line_cut_short_by_a_crash_is_removed(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "step-000001.jsonl"
    whole = encode_record({"kind": "x", "i": 0})
    path.write_bytes(whole + tail)
    assert [record["i"] for record in read_records(path)] == [0]
    assert path.read_bytes() == whole + tail, "reading from outside changes nothing"
    with RolloutJournal(path) as journal:
        assert lines_of(journal) == [0]
        assert path.read_bytes() == whole
        journal.append_sync({"kind": "x", "i": 1})
        assert lines_of(journal) == [0, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"", "Expecting value"),
        (b"[]", "a list instead"),
        (b'{"kind":"x"}', "version is None"),
        (b'{"kind":"x","v":2}', "version is 2"),
        (b'{"kind":"x","v":true}', "version is True"),
        (b'{"v":1}', "no kind"),
        (b'{"v":1,"kind":"x","reward":NaN}', "NaN"),
        (b'{"v":1,"kind":"x","kind":"y"}', "twice"),
    ],
)
def test_damage_in_the_middle_is_refused_with_its_line_number(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "step-000001.jsonl"
    path.write_bytes(encode_record({"kind": "x"}) + line + b"\n" + encode_record({"kind": "x"}))
    before = path.read_bytes()
    with pytest.raises(StateCorrupt, match=f"line 2, .*{reason}") as caught:
        RolloutJournal(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "record", [{}, {"kind": ""}, {"kind": 3}, {"kind": "x", "v": 2}, {"kind": "x", "reward": float("inf")}]
)
async def test_a_record_that_could_not_be_read_back_is_not_written(tmp_path: Path, record: dict[str, Any]) -> None:
    async with RolloutJournal(tmp_path / "j.jsonl") as journal:
        with pytest.raises(ValueError, match=r"journal record|not JSON compliant"):
            await journal.append(record)
        with pytest.raises(ValueError, match=r"journal record|not JSON compliant"):
            journal.append_sync(record)
        assert journal.records() == []


async def test_a_full_disk_reaches_every_waiter_and_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with RolloutJournal(path) as journal:
        await journal.append({"kind": "x", "i": 0})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            results = await asyncio.gather(
                *(journal.append({"kind": "x", "i": i, "text": "y" * 5_000}) for i in range(1, 9)),
                return_exceptions=True,
            )
            assert sum(isinstance(result, StateWriteFailed) for result in results) >= 5
            assert all("free space" in str(result) for result in results if result is not None)
            with pytest.raises(StateWriteFailed):
                await journal.append({"kind": "x", "i": 9})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        durable = [0] + [i for i, result in enumerate(results, start=1) if result is None]
        assert lines_of(journal) == durable
    with RolloutJournal(path) as journal:
        assert lines_of(journal) == durable


def test_a_killed_writer_leaves_only_whole_records_and_all_that_it_was_told_are_durable(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from pathlib import Path
from harness.journal import RolloutJournal
async def main():
    journal = RolloutJournal(Path(sys.argv[1]))
    done = len(journal.records())
    async def one(i):
        await journal.append({"kind": "x", "i": i, "text": "z" * 3000})
    while True:
        await asyncio.gather(*(one(done + i) for i in range(8)))
        done += 8
        print(done, flush=True)
asyncio.run(main())
"""
    path = tmp_path / "j.jsonl"
    for round_number in range(4):
        child = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        acknowledged = int(child.stdout.readline())
        time.sleep(0.01 * round_number)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)
        acknowledged = max([acknowledged, *(int(line) for line in child.stdout.read().split())])
        child.stdout.close()
        with RolloutJournal(path) as journal:
            assert len(journal.records()) >= acknowledged


async def test_records_that_wait_together_share_a_flush_and_keep_their_order(tmp_path: Path) -> None:
    opened: list[SlowFile] = []

    def open_file(path: Path) -> SlowFile:
        opened.append(SlowFile(path))
        return opened[-1]

    async with RolloutJournal(tmp_path / "deep" / "j.jsonl", open_file=open_file) as journal:
        await asyncio.gather(*(journal.append({"kind": "x", "i": i}) for i in range(128)))
        assert lines_of(journal) == list(range(128))
        assert opened[0].flushes <= 3
        assert all(record["v"] == 1 for record in journal.records())


async def test_the_event_loop_stays_free_while_the_disk_is_slow(tmp_path: Path) -> None:
    async with RolloutJournal(tmp_path / "j.jsonl", open_file=SlowFile) as journal:
        pending = asyncio.create_task(journal.append({"kind": "x", "i": 0}))
        ticks = 0
        while not pending.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks > 5


async def test_the_record_of_a_cancelled_caller_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = RolloutJournal(path)
    tasks = [asyncio.create_task(journal.append({"kind": "x", "i": i})) for i in range(4)]
    await asyncio.sleep(0)
    late = asyncio.create_task(journal.append({"kind": "x", "i": 4}))
    await asyncio.sleep(0)
    for task in [*tasks, late]:
        task.cancel()
    journal.close()
    results = await asyncio.gather(*tasks, late, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    with RolloutJournal(path) as journal:
        assert lines_of(journal) == [0, 1, 2, 3, 4]


async def test_a_closed_journal_takes_nothing_and_set_up_never_mixes_with_appends(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path / "j.jsonl")
    pending = asyncio.create_task(journal.append({"kind": "x", "i": 0}))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="under way"):
        journal.append_sync({"kind": "x", "i": 1})
    await journal.aclose()
    await pending
    await journal.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await journal.append({"kind": "x", "i": 1})
    with pytest.raises(RuntimeError, match="closed"):
        journal.append_sync({"kind": "x", "i": 1})
    assert [record["i"] for record in read_records(journal.path)] == [0]


def test_a_record_keeps_any_text(tmp_path: Path) -> None:
    text = 'line\nü\u2028\ud800\x00"'
    with RolloutJournal(tmp_path / "j.jsonl") as journal:
        journal.append_sync({"kind": "execution", "text": text})
        assert journal.records() == [{"v": 1, "kind": "execution", "text": text}]


def test_only_step_files_count_as_journals(tmp_path: Path) -> None:
    stray = ".DS_Store step-abc.jsonl step-000002.jsonl.bak step-000002.bak step-3.jsonl xstep-000004.jsonl"
    for name in stray.split():
        (tmp_path / name).write_text("")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "step-000005.jsonl").mkdir()
    for number in (1, 12):
        (tmp_path / f"step-{number:06d}.jsonl").write_text("")
    assert journal_files(tmp_path) == {n: tmp_path / f"step-{n:06d}.jsonl" for n in (1, 12)}
    assert journal_files(tmp_path / "absent") == {}
    with pytest.raises(StateCorrupt, match="cannot read"):
        read_records(tmp_path / "absent.jsonl")
