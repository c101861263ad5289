"""Scores a task's seed program once, through the judge that the settings name: `python smoke.py TASK`.

The judge must be running.  Exit status: 0 the seed is valid, 1 it is not, 2 the judge or a setting is at fault.
"""

from __future__ import annotations

import os
import sys

from guidance_ttt.smoke import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
