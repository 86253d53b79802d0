"""The error of a stage that somebody named, and that is none."""

from __future__ import annotations

from gradconform.exits import UsageError


class StageError(UsageError):
    """A stage that cannot be found, built, fed or run."""
