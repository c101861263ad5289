"""The process that runs a candidate: takes inputs, calls `custom_kernel`, hands back what it returned.

It runs inside the jail and shares a process with the candidate, so nothing it says is believed: the other side holds
the clock, keeps its own inputs and checks every number of every result.  Start it with `host_argv`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from judges.trimul.wire import Link, LinkBroken, adopt, connect

if TYPE_CHECKING:
    from torch import Tensor

ERROR_CHARS = 2000
_BOOT = "import sys; sys.path[:0] = sys.argv[1].split(':'); from judges.trimul.{module} import main; main(sys.argv[2:])"


def boot_argv(python: str, module: str, code_root: str, site: tuple[str, ...], *options: str) -> tuple[str, ...]:
    """Command line of a module of this package in an interpreter that reads no environment and no `site`."""
    return (python, "-I", "-S", "-c", _BOOT.format(module=module), ":".join((code_root, *site)), *options)


def prepare_environment(device: str) -> None:
    """Settings that must be there before torch and Triton are imported."""
    os.environ.update(
        HOME="/tmp",
        USER="candidate",
        TMPDIR="/tmp",
        TRITON_CACHE_DIR="/tmp/triton",
        TORCHINDUCTOR_CACHE_DIR="/tmp/inductor",
        OMP_WAIT_POLICY="PASSIVE",
    )
    if device == "cpu":
        # Triton kernels run in its interpreter, on ordinary tensors.
        os.environ["TRITON_INTERPRET"] = "1"


def main(arguments: list[str]) -> None:
    """Serve until the other side closes the connection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link", type=Path)
    parser.add_argument("--descriptor", type=int)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--device", required=True)
    options = parser.parse_args(arguments)
    link = connect(options.link) if options.link is not None else adopt(options.descriptor)
    serve(link, options.shared, options.submission, options.device)
    sys.stdout.flush()
    # Not waiting for threads that the candidate may have left.
    os._exit(0)


def serve(link: Link, shared: Path, submission: Path, device: str) -> None:
    """Answer requests until the other side closes the connection; only this imports torch."""
    prepare_environment(device)
    _Host(link, shared, submission, device).serve()


def serve_socket(connection: socket.socket, shared: Path, submission: Path, device: str) -> None:
    """The same over a connected socket, for a process that was forked."""
    serve(Link(connection), shared, submission, device)


class _Host:
    def __init__(self, link: Link, shared: Path, submission: Path, device: str) -> None:
        import torch

        from judges.trimul.blobs import BlobReader

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
        self._link = link
        self._reader = BlobReader(shared)
        self._submission = submission
        self._device = device
        self._kernel: Callable[[Any], Any] | None = None
        self._last: Tensor | None = None
        if device != "cpu":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            torch.cuda.set_device(torch.device(device))

    def serve(self) -> None:
        self._link.send({"ready": True})
        while True:
            try:
                message = self._link.receive().header
            except LinkBroken:
                return
            try:
                if message["do"] == "load":
                    self._kernel = load_kernel(self._submission)
                    self._link.send({"loaded": True})
                else:
                    self._run(message)
            except LinkBroken:
                return
            except BaseException as error:
                self._link.send({"error": explain(error)})

    def _run(self, message: dict[str, Any]) -> None:
        if message.get("fresh"):
            self._reader.forget()
        inputs = self._reader.open(message["inputs"])
        weights = self._reader.open(message["weights"])
        if message["do"] == "echo":
            result = self._empty(message)
        else:
            assert self._kernel is not None
            config = {"dim": inputs["x"].shape[-1], "hidden_dim": weights["left_proj.weight"].shape[0]}
            result = self._kernel((inputs["x"], inputs["mask"], dict(weights), config))
        self._hand_back(result)

    def _empty(self, message: dict[str, Any]) -> Tensor:
        """A result without a kernel, kept from call to call: what a call costs before any kernel runs."""
        import torch

        shape = tuple(message["shape"])
        if self._last is None or self._last.shape != shape:
            self._last = torch.empty(shape, device=self._device)
        return self._last

    def _hand_back(self, result: Any) -> None:
        import torch

        from judges.trimul.blobs import DTYPES, dtype_name, export_cuda

        if not isinstance(result, torch.Tensor):
            raise TypeError(f"custom_kernel returned {type(result).__name__}, not a tensor")
        if result.dtype not in DTYPES.values():
            raise TypeError(f"custom_kernel returned a tensor of {result.dtype}, not torch.float32")
        if result.device.type != torch.device(self._device).type:
            raise TypeError(f"custom_kernel returned a tensor on {result.device}, not on {self._device}")
        result = result.detach().contiguous()
        header = {"shape": list(result.shape), "dtype": dtype_name(result.dtype)}
        if self._device == "cpu":
            payload = result.reshape(-1).view(torch.uint8).numpy().data if result.numel() else b""
            self._link.send(header, payload)
            return
        torch.cuda.synchronize()
        # Kept until the next call, because the other side reads it from this process's memory.
        self._last = result
        self._link.send({**header, "cuda": export_cuda(result)})


def load_kernel(path: Path) -> Callable[[Any], Any]:
    """Import a candidate's module and return its `custom_kernel`."""
    spec = importlib.util.spec_from_file_location("submission", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    kernel = getattr(module, "custom_kernel", None)
    if not callable(kernel):
        raise AttributeError("the module defines no function custom_kernel")
    found: Callable[[Any], Any] = kernel
    return found


def explain(error: BaseException) -> str:
    """The end of a traceback, without this module's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return text.strip()[-ERROR_CHARS:]
