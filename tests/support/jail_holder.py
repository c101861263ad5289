"""A program that starts a local environment, says where, and runs a long command in it until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from support.jail_fixture import make_environment


async def hold(directory: Path, seconds: str) -> None:
    """Print the environment's directory and then sleep in its jail."""
    environment = make_environment(directory)
    await environment.start(force_build=False)
    assert environment._machine is not None
    print(environment._machine.path, flush=True)
    await environment.exec(f"sleep {seconds} & sleep {seconds}")


if __name__ == "__main__":
    asyncio.run(hold(Path(sys.argv[1]), sys.argv[2]))
