"""The front door of Guidance-TTT: command line, launcher, and the Python API `run`."""

from guidance_ttt.api import RunResult, run

__all__ = ["RunResult", "run"]
