"""The exit codes of a command, and the errors that carry one."""

from __future__ import annotations

import errno
import traceback

#: Exit codes of the command.
EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_USAGE, EXIT_KIT, EXIT_ENVIRONMENT, EXIT_INCOMPLETE, EXIT_REGRESSED, EXIT_ADAPTER = (
    range(8)
)
#: The exit code that a shell reports for a command stopped by ctrl-C.
EXIT_INTERRUPTED = 130
#: A shell adds this to the number of the signal that ended a command.
SIGNAL = 128
#: The exit code of SIGTERM, which also represents SIGHUP in lists of exit codes.
EXIT_TERMINATED = SIGNAL + 15

#: The system's error numbers when a machine has no memory, processes, disk space or open files left, or cannot reach
#: its disk.
_USED_UP = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
)


class UsageError(ValueError):
    """The input cannot be used; ``exit_code`` is the exit code of the command."""

    exit_code: int = EXIT_USAGE


class RunRefusedError(Exception):
    """A run cannot begin or continue; ``exit_code`` is the exit code of the command."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Create the error with its message and exit code."""
        super().__init__(message)
        self.exit_code = exit_code


class RunStoppedError(Exception):
    """A run was stopped early; finished results are kept.

    ``exit_code`` is the exit code of the command, None if the results decide it.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        """Create the error with its message and exit code."""
        super().__init__(message)
        self.exit_code = exit_code


def refusal(error: Exception) -> tuple[str, int]:
    """Return the message to report for ``error``, and the exit code: its own ``exit_code`` if it has one."""
    code = getattr(error, "exit_code", None)
    if code is not None:
        return str(error), int(code)
    if isinstance(error, ImportError):
        advice = "install gradconform and its dependencies again"
        return f"gradconform could not import its dependencies: {error}; {advice}", EXIT_ENVIRONMENT
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _USED_UP):
        return f"this machine ran out of a resource: {str(error) or 'memory'}", EXIT_ENVIRONMENT
    # A crash of the kit has its own exit code and is never reported as a verdict.
    reported = "".join(traceback.format_exception(error))
    return f"internal error of the kit; there is no verdict on the target:\n{reported}", EXIT_KIT
