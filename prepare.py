"""Says where a task's seed program is, or fetches the published one at its pinned commit: `python prepare.py TASK`.

Nothing that is fetched is ever run.  Exit status: 0 done, 1 failed (one line says why), 2 wrong arguments.
"""

from __future__ import annotations

import os
import sys

from guidance_ttt.prepare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
