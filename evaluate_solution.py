"""Scores one program of a task, as often as wanted: `python evaluate_solution.py TASK --judge-url URL`.

Prints one JSON object a run.  Exit status: 0 all runs valid, 1 some invalid, 2 the judge or an argument is at fault.
"""

from __future__ import annotations

import sys

from guidance_ttt.evaluate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
