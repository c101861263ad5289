"""Imported by every Python process of a test's `reef serve`: the one that serves listens for faults.

Nothing else starts here; see `support.faults`.
"""

import os
import sys

if "FAULT_FIFO" in os.environ:
    os.environ.setdefault("FAULT_ROOT", str(os.getpid()))  # the first process, `reef serve`, is the top of the tree
    if "reef.service" in sys.orig_argv:
        from support.faults import listen

        listen()
