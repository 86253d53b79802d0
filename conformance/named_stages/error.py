"""The error of a stage that somebody named, and that is none."""

from __future__ import annotations

from gradconform.exits import EXIT_ENVIRONMENT, UsageError


class StageError(UsageError):
    """A stage that cannot be found, built, fed or run."""


class StageNotInstalledError(StageError):
    """A stage of a library that is not installed: a matter of the environment, not of usage."""

    exit_code = EXIT_ENVIRONMENT
