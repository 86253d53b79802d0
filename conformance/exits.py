"""How a command ends: its exit codes, and the errors that carry one."""

from __future__ import annotations

import errno
import traceback

#: Exit codes of the command.
EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_USAGE, EXIT_KIT, EXIT_ENVIRONMENT, EXIT_INCOMPLETE, EXIT_REGRESSED, EXIT_ADAPTER = (
    range(8)
)
#: What a shell gives to a command that ctrl-C ended.
EXIT_INTERRUPTED = 130
#: What a shell adds to the number of the signal that ended a command.
SIGNAL = 128
#: That of SIGTERM, which stands for SIGHUP too where exit codes are listed.
EXIT_TERMINATED = SIGNAL + 15

#: What the system says where a machine has no more room, memory, processes or open files, or cannot reach its disk.
_USED_UP = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
)


class UsageError(ValueError):
    """What was given cannot be used; ``exit_code`` is what the command ends with."""

    exit_code: int = EXIT_USAGE


class RunRefusedError(Exception):
    """A run that cannot begin or go on; ``exit_code`` is what the command ends with."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Keep both."""
        super().__init__(message)
        self.exit_code = exit_code


class RunStoppedError(Exception):
    """A run that was given up; what has a result is kept.

    ``exit_code`` is what the command ends with, None where the results decide that.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        """Keep both."""
        super().__init__(message)
        self.exit_code = exit_code


def refusal(error: Exception) -> tuple[str, int]:
    """Return what is to be told of ``error``, and the exit code: its own ``exit_code`` where it has one."""
    code = getattr(error, "exit_code", None)
    if code is not None:
        return str(error), int(code)
    if isinstance(error, ImportError):
        advice = "install gradconform and its dependencies again"
        return f"gradconform could not import its dependencies: {error}; {advice}", EXIT_ENVIRONMENT
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _USED_UP):
        return f"this machine ran out of a resource: {str(error) or 'memory'}", EXIT_ENVIRONMENT
    # A crash of the kit has an exit code of its own and is never taken for a verdict.
    told = "".join(traceback.format_exception(error))
    return f"internal error of the kit; there is no verdict on the target:\n{told}", EXIT_KIT
