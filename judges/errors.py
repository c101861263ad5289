"""Every error the judges raise on purpose.

A candidate that does something wrong never meets these: its fault is a verdict.  An error here means that the judge
itself cannot do its work, so its message names the thing, the value and the cure, and a submission that meets one
becomes an `environment_error`, never a score.
"""

from __future__ import annotations


class JudgeError(Exception):
    """Root of the tree: anything that ends the command with one line instead of a traceback."""


class SandboxUnavailable(JudgeError):
    """No way of containing candidate programs works on this machine, so the judge does not start."""


class SandboxFault(JudgeError):
    """One run could not be started, measured or cleaned up; it says nothing about the candidate."""


class SandboxStopped(JudgeError):
    """The judge is shutting down; the run was killed and its submission goes back to the queue."""


class SuiteError(JudgeError):
    """The case data is missing, changed or not what it claims to be."""


class StoreError(JudgeError):
    """The judge's state directory cannot be used (unwritable, corrupt, or held by another judge)."""


class AddressInUse(JudgeError):
    """The port the judge should listen on cannot be bound."""
