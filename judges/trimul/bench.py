"""Checks and times a candidate that runs in another process.

Owns the clock, the inputs, the reference results and the decision.  How a run is timed, and why so:

* The clock is on this side.  It starts when the inputs are in place, before the weights are; every result depends on
  every weight, so nothing that matters can be computed before the clock runs.
* It stops when a copy of the result has been made by this side.  A candidate that says "done" too early gains nothing:
  its result is either waited for or incomplete.
* Every run has new inputs, and every result is checked in full, so that results kept from earlier calls are wrong.
* What a call costs without a kernel was measured in the same way before the candidate's module was imported, and is
  subtracted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from judges.trimul import timing
from judges.trimul.blobs import DTYPES, BadDescription, CudaBlob, FileBlob, described_shape, open_cuda
from judges.trimul.cases import Case, Rules
from judges.trimul.formula import GLOBAL_SEED, make_inputs, make_weights, make_x_and_mask, mismatch, reference
from judges.trimul.wire import Link, LinkBroken, LinkTimeout

SEED_STEP = 13
ECHO_RUNS = 12
_ECHO_WARM_UP = 3
_WARM_UP_S = 0.01
_MESSAGE_CHARS = 2000
_MAX_ITEM_BYTES = 8

Blob = FileBlob | CudaBlob


class CandidateFault(Exception):
    """The candidate is wrong, broken or too slow; the text says how."""


@dataclass
class Session:
    """One candidate's process, from its start to its last result.

    `deadline` is a `time.monotonic()` moment.  Before `load` the peer runs none of the candidate's code, and what goes
    wrong is `LinkBroken`; afterwards it is a `CandidateFault`.
    """

    link: Link
    device: str
    shared: Path
    deadline: float
    rules: Rules
    _weights_generator: torch.Generator | None = field(init=False, default=None)
    _loaded: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.rules.quirks:
            self._weights_generator = torch.Generator(device=self.device).manual_seed(GLOBAL_SEED)

    # --- talking ------------------------------------------------------------------------------------------------------

    def expect_ready(self) -> None:
        """Wait until the process can be asked for something."""
        if self.link.receive(deadline=self.deadline).header.get("ready") is not True:
            raise LinkBroken("the program that runs candidates did not start as it should")

    def load(self) -> None:
        """Let the process import the candidate's module."""
        self._loaded = True
        self._ask({"do": "load"}, 0)

    def _ask(self, header: dict[str, Any], max_payload: int) -> tuple[dict[str, Any], bytearray]:
        try:
            self.link.send(header)
            reply = self.link.receive(max_payload=max_payload, deadline=self.deadline)
        except LinkTimeout as error:
            raise self._fault("it did not answer within the time limit") from error
        except LinkBroken as error:
            raise self._fault(f"it broke off: {error}") from error
        if "error" in reply.header:
            raise self._fault(str(reply.header["error"])[:_MESSAGE_CHARS])
        return reply.header, reply.payload

    def _fault(self, text: str) -> Exception:
        return CandidateFault(text) if self._loaded else LinkBroken(text)

    def _result(self, header: dict[str, Any], max_elements: int) -> Tensor:
        """One call's result, as a tensor that the other process cannot change any more."""
        reply, payload = self._ask(header, max_elements * _MAX_ITEM_BYTES)
        try:
            shape, dtype, size = described_shape(reply)
            if self.device == "cpu":
                if len(payload) != size:
                    raise BadDescription(f"the result has {len(payload)} bytes, its shape needs {size}")
                if size == 0:
                    return torch.empty(shape, dtype=DTYPES[dtype])
                return torch.frombuffer(payload, dtype=DTYPES[dtype]).view(shape)
            if not isinstance(reply.get("cuda"), dict) or reply["cuda"].get("bytes") != size:
                raise BadDescription("the result's memory does not fit its shape")
            # The copy waits for what the other process has queued on the GPU, or shows that it is not there yet.
            return open_cuda(reply["cuda"]).clone().view(DTYPES[dtype]).view(shape)
        except (BadDescription, RuntimeError) as error:
            raise self._fault(f"the result cannot be read: {error}") from error

    def _call(self, blob: Blob, weights_blob: Blob, weights: Mapping[str, Tensor], **more: Any) -> tuple[Tensor, float]:
        """One call with fresh weights: its result, and the microseconds from the weights to the copied result."""
        header = {"do": "run", "inputs": blob.describe(), "weights": weights_blob.describe(), **more}
        elements = blob.tensors["x"].numel()
        self._synchronize()
        started = time.perf_counter()
        weights_blob.fill(weights)
        self._synchronize()
        result = self._result(header, elements)
        self._synchronize()
        return result, (time.perf_counter() - started) * 1e6

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _blob(self, tensors: Mapping[str, Tensor]) -> Blob:
        return FileBlob(self.shared, tensors) if self.device == "cpu" else CudaBlob(self.device, tensors)

    # --- correctness --------------------------------------------------------------------------------------------------

    def check_all(self, cases: Sequence[Case]) -> None:
        """Run every case once; `CandidateFault` names the first that is wrong."""
        for number, case in enumerate(cases, start=1):
            inputs = make_inputs(
                case, self.rules, seed=case.seed, device=self.device, shared=self._weights_generator
            )
            want = reference(inputs)
            blob = self._blob({"x": inputs.x, "mask": inputs.mask})
            weights_blob = self._blob(inputs.weights)
            try:
                self._checked(f"test {number}", case, want, blob, weights_blob, inputs.weights, fresh=True)
            finally:
                blob.close()
                weights_blob.close()

    def _checked(
        self,
        what: str,
        case: Case,
        want: Tensor,
        blob: Blob,
        weights_blob: Blob,
        weights: Mapping[str, Tensor],
        **more: Any,
    ) -> float:
        """One call whose result must be right; its microseconds."""
        try:
            got, elapsed_us = self._call(blob, weights_blob, weights, **more)
            if got.dtype != torch.float32 and not (self.rules.quirks and got.dtype.is_floating_point):
                raise CandidateFault(f"the result is of {got.dtype}, expected torch.float32")
            wrong = mismatch(got, want)
        except CandidateFault as fault:
            raise CandidateFault(f"{what} ({case.spec}): {fault}") from fault
        if wrong is not None:
            raise CandidateFault(f"{what} ({case.spec}): {wrong}")
        return elapsed_us

    # --- timing -------------------------------------------------------------------------------------------------------

    def overheads_us(self, cases: Sequence[Case]) -> list[float]:
        """What a call of each case costs without a kernel; only meaningful before `load`."""
        found = []
        for case in cases:
            inputs = make_inputs(case, self.rules, seed=case.seed, device=self.device)
            blob, weights_blob = self._blob({"x": inputs.x, "mask": inputs.mask}), self._blob(inputs.weights)
            shape = list(inputs.x.shape)
            samples = [
                self._call(blob, weights_blob, inputs.weights, do="echo", shape=shape, fresh=run == 0)[1]
                for run in range(ECHO_RUNS)
            ]
            found.append(statistics.median(samples[_ECHO_WARM_UP:]))
            blob.close()
            weights_blob.close()
        return found

    def time_all(self, cases: Sequence[Case], overheads: Sequence[float], base_seed: int) -> list[dict[str, Any]]:
        """Time every case; one report each.  `CandidateFault` for the first wrong result."""
        warm_up_ends = time.monotonic() + _WARM_UP_S
        reports: list[dict[str, Any]] = []
        for number, (case, overhead) in enumerate(zip(cases, overheads, strict=True), start=1):
            timed = self._time_case(f"benchmark {number}", case, overhead, base_seed + case.seed, warm_up_ends)
            reports.append(
                {"benchmark": number, "spec": case.spec, **timed.artifact(), "overhead_us": round(overhead, 3)}
            )
            reports[-1]["mean_us"] = timed.mean_us
        return reports

    def _time_case(
        self, what: str, case: Case, overhead_us: float, seed: int, warm_up_ends: float
    ) -> timing.Timing:
        inputs = make_inputs(case, self.rules, seed=seed, device=self.device, shared=self._weights_generator)
        blob, weights_blob = self._blob({"x": inputs.x, "mask": inputs.mask}), self._blob(inputs.weights)
        started = time.monotonic()
        samples: list[float] = []
        run = 0
        try:
            while not timing.is_enough(samples, time.monotonic() - started):
                x, mask = make_x_and_mask(case, self.rules, seed=seed + SEED_STEP * run, device=self.device)
                weights = inputs.weights if run == 0 else self._fresh_weights(case, seed + SEED_STEP * run)
                want = reference(type(inputs)(x, mask, weights))
                blob.fill({"x": x, "mask": mask})
                elapsed_us = self._checked(what, case, want, blob, weights_blob, weights, fresh=run == 0)
                run += 1
                # The first call compiles, and the first case also warms the device up; neither is counted.
                if run > 1 and time.monotonic() >= warm_up_ends:
                    samples.append(max(elapsed_us - overhead_us, 1e-3))
        finally:
            blob.close()
            weights_blob.close()
        return timing.summarize(samples)

    def _fresh_weights(self, case: Case, seed: int) -> dict[str, Tensor]:
        generator = self._weights_generator
        if generator is None:
            generator = torch.Generator(device=self.device).manual_seed(seed + 2**40)
        return make_weights(case.dim, generator)
