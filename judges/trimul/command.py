"""The `trimul` judge on the command line: its options, and the judge they describe."""

from __future__ import annotations

import argparse
import os

from judges.protocol import Judge
from judges.sandbox import Sandbox


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is judged, and how strictly."""
    parser.add_argument(
        "--correctness-only",
        action="store_true",
        help="do not time; for machines without a GPU, where small cases are checked on the CPU",
    )
    parser.add_argument(
        "--reference-quirks",
        action="store_true",
        help="judge as the public evaluator did: masks are never applied, weights do not depend on the case",
    )
    parser.add_argument(
        "--max-seqlen",
        type=int,
        default=None,
        metavar="N",
        help="leave out larger correctness cases (default: none on a GPU, 64 on a CPU; needs --correctness-only)",
    )


def open_judge(options: argparse.Namespace, sandbox: Sandbox) -> Judge:
    """The judge for this machine; without a GPU it only checks, and only when asked to."""
    # Threads that spin while they wait slow the candidate on the same cores down.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from judges.errors import JudgeError
    from judges.trimul.cases import Rules, cases_up_to
    from judges.trimul.jail import PythonRuntime, has_gpu, open_python_sandbox, probe_runtime
    from judges.trimul.judge import CPU_MAX_SEQLEN, Mode, TriMulJudge

    if options.max_seqlen is not None and not options.correctness_only:
        raise JudgeError("--max-seqlen leaves cases out, so it needs --correctness-only")
    if not cases_up_to(options.max_seqlen):
        raise JudgeError(f"--max-seqlen {options.max_seqlen} leaves no case; the smallest is 32")
    gpu = has_gpu()
    runtime = PythonRuntime.of_this_process(headers=gpu)
    rules = Rules(quirks=options.reference_quirks)
    if not gpu and not options.correctness_only:
        # It serves all the same, so that every submission says what is missing instead of "connection refused".
        return TriMulJudge(None, runtime, Mode(rules=rules, device=None), {})
    own = open_python_sandbox(sandbox, runtime, gpu=gpu)
    try:
        about = probe_runtime(own, runtime)
        if gpu and about["gpu"] is None:
            raise JudgeError("this machine has an NVIDIA driver, but torch finds no GPU in the sandbox")
    except BaseException:
        own.close()
        raise
    max_seqlen = options.max_seqlen
    if max_seqlen is None and not gpu:
        max_seqlen = CPU_MAX_SEQLEN
    mode = Mode(
        correctness_only=options.correctness_only,
        rules=rules,
        max_seqlen=max_seqlen,
        device="cuda:0" if gpu else "cpu",
        in_jail=gpu,
    )
    return TriMulJudge(own, runtime, mode, about)
