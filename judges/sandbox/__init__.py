"""Runs untrusted programs with bounded time, memory, output and reach.

Owns namespaces, control groups and limits; knows nothing of any task, protocol or score.  Use it so:

    with open_sandbox() as sandbox:
        compiled = compile_cpp(sandbox, source)
        with sandbox.executable(compiled.binary) as program:
            result = sandbox.run(Command(argv=("/w/a",), binds=(Bind(program, "/w/a"),), limits=limits, stdin=b"..."))
"""

from judges.sandbox.cpp import Compiled, compile_cpp
from judges.sandbox.detect import open_sandbox
from judges.sandbox.model import MIB, Bind, Command, Limits, RunResult, Status, Tier
from judges.sandbox.sandbox import Sandbox

__all__ = [
    "MIB",
    "Bind",
    "Command",
    "Compiled",
    "Limits",
    "RunResult",
    "Sandbox",
    "Status",
    "Tier",
    "compile_cpp",
    "open_sandbox",
]
