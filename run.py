"""One episode of the search: a Harbor trial of one task, recorded by reef-eval.

The services (judge, executor, Reef) must be running; `./run.sh` starts them and then this.  Exit status: 0 done or
already complete, 1 failed (one line says why), 130 interrupted; in every case the state directory can be resumed.
"""

from __future__ import annotations

import os
import sys

from harness.episode import main

if __name__ == "__main__":
    sys.exit(main(os.environ))
