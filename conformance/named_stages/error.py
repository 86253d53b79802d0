"""The errors of named stages that cannot be used."""

from __future__ import annotations

from gradconform.exits import EXIT_ENVIRONMENT, UsageError


class StageError(UsageError):
    """A stage that cannot be found, built, fed or run."""


class StageNotInstalledError(StageError):
    """A stage of a library that is not installed: an error of the environment, not of usage."""

    exit_code = EXIT_ENVIRONMENT
