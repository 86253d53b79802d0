"""Why there is no run, or no more of one: the message for a user, and the exit code of the command."""

from __future__ import annotations

import traceback

from gradconform.results import EXIT_ENVIRONMENT, EXIT_KIT


class RunRefusedError(Exception):
    """A run that cannot begin or go on; ``exit_code`` is what the command ends with."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Keep both."""
        super().__init__(message)
        self.exit_code = exit_code


def refusal(error: Exception) -> tuple[str, int]:
    """Return what is to be told of ``error``, and the exit code: its own ``exit_code`` where it has one."""
    code = getattr(error, "exit_code", None)
    if code is not None:
        return str(error), int(code)
    if isinstance(error, ImportError):
        advice = "Expected gradconform with its dependencies; install it again"
        return f"the environment cannot run the kit: {error}. {advice}", EXIT_ENVIRONMENT
    # A crash of the kit has an exit code of its own and is never taken for a verdict.
    told = "".join(traceback.format_exception(error))
    return f"error of the kit, no verdict on the target:\n{told}", EXIT_KIT
