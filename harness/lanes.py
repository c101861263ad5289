"""Bounded lanes: how many calls of one kind are in flight, and how many wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Lane:
    """A semaphore that can say who holds it and who waits; `on_change` is called after every move."""

    def __init__(self, name: str, limit: int, on_change: Callable[[], None]) -> None:
        if limit < 1:
            raise ValueError(f"the {name} lane's limit is {limit}, at least 1 is needed")
        self.name = name
        self.active = 0
        self.waiting = 0
        self._semaphore = asyncio.Semaphore(limit)
        self._on_change = on_change

    async def __aenter__(self) -> Lane:
        self.waiting += 1
        self._on_change()
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        self._on_change()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.active -= 1
        self._semaphore.release()
        self._on_change()

    def __str__(self) -> str:
        return f"{self.name} {self.active}" + (f" (queue {self.waiting})" if self.waiting else "")
