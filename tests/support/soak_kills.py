"""Cuts the power of a real main job many times, at random moments, and checks that no update is lost or made twice.

    PYTHONPATH=tests python -m support.soak_kills --kills 20 --seed 1
    PYTHONPATH=tests python -m support.soak_kills --kills 3 --seed 1 --real-model --folder work/soak

Run by hand; it goes on until it has made all its cuts, adding updates when the run would end before.  With `--folder`
it can be run in pieces: `--unfinished` leaves out the last, undisturbed launch and the checks after it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from support.guide_model import build_guide_model
from support.main_job import MainJob
from support.power_cuts import Moment, check_finished, run_until

PROJECT_ROOT = Path(__file__).resolve().parents[2]
FIRST_STEPS = 4
NEVER = Moment("line", 0.0, lines=10**9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, required=True, help="power cuts to make")
    parser.add_argument("--seed", type=int, required=True, help="decides their moments")
    parser.add_argument("--steps", type=int, default=FIRST_STEPS, help="updates in all; more when the cuts need them")
    parser.add_argument("--real-model", action="store_true", help="the profile's own model instead of a tiny one")
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on with what is here")
    parser.add_argument("--unfinished", action="store_true", help="stop after the last cut")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return soak(options, options.folder.resolve())
    with tempfile.TemporaryDirectory(prefix="soak-kills-") as folder:
        return soak(options, Path(folder))


def soak(options: argparse.Namespace, folder: Path) -> int:
    """Make the cuts and, unless told otherwise, finish and check the run; returns the exit code."""
    model = None if options.real_model else folder / "model"
    if model is not None and not (model / "config.json").exists():
        build_guide_model(model)
    temporary_dir = Path(tempfile.mkdtemp(prefix="soak-kills-tmp-"))
    temporary_dir.chmod(0o755)  # jails need a folder that every user can enter
    settings = {"TMPDIR": str(temporary_dir)}
    if model is None:
        settings["GUIDANCE_MODEL_PATH"] = str(PROJECT_ROOT / "work/models/SmolLM2-135M-Instruct")
    try:
        return cut_and_check(options, MainJob(folder, model, settings))
    finally:
        print(f"left in the folder for temporary files: {sorted(path.name for path in temporary_dir.iterdir())}")
        shutil.rmtree(temporary_dir, ignore_errors=True)


def cut_and_check(options: argparse.Namespace, job: MainJob) -> int:
    """The launches."""
    draw = random.Random(options.seed)
    steps, made = options.steps, 0
    while made < options.kills:
        moment = Moment.draw(draw, train_s=20.0 if options.real_model else 1.5)
        started = time.monotonic()
        cut, output = run_until(job, moment, GUIDANCE_STEPS=str(steps))
        made += cut
        took = time.monotonic() - started
        print(f"{made:3} of {options.kills}: {moment} after {took:.0f} s, {job.progress()} journal lines", flush=True)
        if not cut:
            if f"step {steps}/{steps}" not in output and "already complete" not in output:
                print(f"a launch failed:\n{output}")
                return 1
            steps += 2
    if options.unfinished:
        return 0
    code, output = run_until(job, NEVER, GUIDANCE_STEPS=str(steps))
    print(output)
    if code != 0:
        return 1
    check_finished(job, steps)
    print(f"{made} power cuts, {steps} updates: each committed once, no receipt trained twice, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
