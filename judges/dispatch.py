"""The bounded queue between the HTTP side and the judge, and the workers that empty it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from judges.errors import SandboxStopped
from judges.protocol import BadSubmission, Judge, Submission, fault_result, verdict_result
from judges.store import SubmissionStore

RETRY_AFTER_S = 5
_LOG = logging.getLogger("judges")


class Dispatcher:
    """Accepts submissions up to a bound and judges them first in, first out, a fixed number at a time.

    Judging happens in threads of its own that live as long as the dispatcher: a jail dies with the thread that started
    it, so short-lived threads would kill runs.
    """

    def __init__(self, judge: Judge, store: SubmissionStore, *, workers: int, queue_limit: int) -> None:
        self._judge = judge
        self._store = store
        self._worker_count = workers
        self._queue_limit = queue_limit
        # None tells one worker to end.
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._judging = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="judge")
        self._storing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._tasks: list[asyncio.Task[None]] = []
        self._adding = 0
        self._stopping = False
        self.running = 0

    @property
    def queued(self) -> int:
        """Submissions that wait for a worker, those being stored included."""
        return self._queue.qsize() + self._adding

    @property
    def workers(self) -> int:
        """How many submissions are judged at the same time."""
        return self._worker_count

    @property
    def queue_limit(self) -> int:
        """How many submissions may wait."""
        return self._queue_limit

    async def start(self) -> None:
        """Queue again what an earlier judge left, then start the workers."""
        for sid in await self.stored(self._store.recover):
            self._queue.put_nowait(sid)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._worker_count)]

    async def stored[T](self, call: Callable[..., T], *arguments: Any) -> T:
        """Run one store call off the event loop, because it waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._storing, call, *arguments)

    async def submit(self, pid: str, lang: str, code: bytes) -> str:
        """Accept a submission and return its id; raises `BadSubmission` (429) when the queue is full."""
        if self._stopping:
            raise BadSubmission("the judge is shutting down", "submit again once it runs", status=503)
        if self.queued >= self._queue_limit:
            raise BadSubmission(
                f"the queue is full ({self._queue_limit} submissions wait)", "submit again later", status=429
            )
        submission = Submission(sid=uuid.uuid4().hex, pid=pid, lang=lang, code=code)
        self._adding += 1
        try:
            await self.stored(self._store.add, submission)
        finally:
            self._adding -= 1
        self._queue.put_nowait(submission.sid)
        return submission.sid

    async def _work(self) -> None:
        while (sid := await self._queue.get()) is not None:
            self.running += 1
            try:
                await self._judge_one(sid)
            except Exception:
                # Only a failing disk gets here; the store still has the submission and queues it at the next start.
                _LOG.exception("could not store the outcome of submission %s", sid)
            finally:
                self.running -= 1

    async def _judge_one(self, sid: str) -> None:
        submission = await self.stored(self._store.start, sid)
        loop = asyncio.get_running_loop()
        try:
            verdict = await loop.run_in_executor(self._judging, self._judge.judge, submission)
            result = verdict_result(verdict)
        except SandboxStopped:
            await self.stored(self._store.requeue, sid)
            return
        except Exception as error:
            _LOG.exception("judging submission %s failed", sid)
            result = fault_result(f"{type(error).__name__}: {error}")
        try:
            await self.stored(self._store.finish, sid, result)
        except (TypeError, ValueError) as error:
            await self.stored(self._store.finish, sid, fault_result(f"the verdict is not strict JSON: {error}"))

    async def stop(self) -> None:
        """Kill the running candidates, put their submissions back into the queue, end the workers.

        Results can still be read until `close`.
        """
        self._stopping = True
        self._judge.stop()
        while not self._queue.empty():
            # These stay queued in the store; a stopped judge would only hand them back.
            self._queue.get_nowait()
        for _ in self._tasks:
            self._queue.put_nowait(None)
        await asyncio.gather(*self._tasks)

    def close(self) -> None:
        """End the threads; call it when no request can come any more."""
        self._judging.shutdown(wait=True)
        self._storing.shutdown(wait=True)
