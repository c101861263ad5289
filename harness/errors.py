"""Every error this project raises on purpose, as one tree.

A user meets these as one clear line, so each message names the thing, the value and the cure.  Two branches matter
most: `ServiceUnavailable` stops a step and never becomes a reward; everything a *candidate* did wrong is not an
exception at all but a verdict (see `harness.state.VerificationResult`).

To add one: put it under the branch that decides what the run does with it, and say in its docstring when it is raised.
"""

from __future__ import annotations


class GuidanceError(Exception):
    """Root of the tree: anything that ends a command with one line instead of a traceback."""


# --- before anything starts -------------------------------------------------------------------------------------------


class ConfigError(GuidanceError, ValueError):
    """A setting (environment, YAML, command line) is missing, unknown or out of range."""


class TaskInvalid(GuidanceError, ValueError):
    """A task directory's files break the task contract."""


class SeedRejected(GuidanceError):
    """The judge does not accept the seed program, so there is nothing to start a search from."""


# --- durable state ----------------------------------------------------------------------------------------------------


class StateError(GuidanceError):
    """Something about the state directory prevents going on."""


class StateMismatch(StateError, ValueError):
    """The state directory belongs to other settings, or its parts disagree about the step."""


class StateCorrupt(StateError, ValueError):
    """A state file cannot be read as what it claims to be."""


class StateLocked(StateError):
    """Another live process holds the state directory."""


class StateWriteFailed(StateError, OSError):
    """A state file could not be written (disk full, read-only, ...); the previous version is intact."""


class RunComplete(StateError):
    """The state already holds all the steps that were asked for; nothing is left to do."""


# --- services: the step stops, nothing is reported
# ---------------------------------------------------------------------


class ServiceUnavailable(GuidanceError):
    """A service failed in a way that says nothing about the candidate."""


class PolicyUnavailable(ServiceUnavailable):
    """Reef did not answer a guidance request or a report."""


class ExecutorUnavailable(ServiceUnavailable):
    """The executor did not produce an answer within its retries and its deadline."""


class JudgeUnavailable(ServiceUnavailable):
    """The judge did not produce a usable verdict."""


# --- training ---------------------------------------------------------------------------------------------------------


class TrainingFailed(GuidanceError):
    """Reef refused, dropped or failed the training step, or the step does not pass the qualification gate."""


class TrainingStalled(GuidanceError):
    """The training step was not committed before its deadline (deliberately not a builtin TimeoutError)."""


# --- stopping ---------------------------------------------------------------------------------------------------------


class RunCancelled(GuidanceError):
    """The user or Harbor stopped the run; the state is saved and can be resumed."""
