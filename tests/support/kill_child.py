"""A run in a process of its own that ends itself with SIGKILL at one chosen durable operation.

    python -m support.kill_child RUN_DIR STEPS MOMENT before|after

The services are the scripted ones; what they know survives the process in a file, as a real service's knowledge would.
A moment that never comes ends the run normally.  The number of durable operations is printed.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.fake_services import FakeReef
from support.search_fixture import World

import harness.storage
from harness.grid import Grid

GRID = Grid(2, 2)


class LastingReef(FakeReef):
    """A scripted Reef that writes down every report before it answers."""

    def __init__(self, grid: Grid, path: Path) -> None:
        super().__init__(grid)
        self.path = path
        if path.exists():
            self.load, self.completed, self.reports = pickle.loads(path.read_bytes())

    async def report(self, body: Mapping[str, Any]) -> None:
        await super().report(body)
        self.path.write_bytes(pickle.dumps((self.load, self.completed, self.reports)))


class Trigger:
    """Counts durable operations and kills the process at one of them."""

    def __init__(self, moment: int, *, after: bool) -> None:
        self.moment = moment
        self.after = after
        self.seen = 0

    def around(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            due = self.seen == self.moment
            if due and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = operation(*args, **kwargs)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return guarded


def world_at(folder: Path) -> World:
    """The world of one state directory, with a Reef that remembers."""
    folder.mkdir(parents=True, exist_ok=True)
    world = World(folder / "run", GRID)
    world.reef = LastingReef(GRID, folder / "reef.pickle")
    return world


def main() -> None:
    folder, steps, moment, when = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    trigger = Trigger(moment, after=when == "after")
    harness.storage.AppendFile.append = trigger.around(harness.storage.AppendFile.append)  # type: ignore[method-assign]
    os.replace = trigger.around(os.replace)
    asyncio.run(world_at(folder).run(steps))
    print(trigger.seen)


if __name__ == "__main__":
    main()
