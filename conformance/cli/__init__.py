"""The command ``gradconform``. Arguments are read, and cheap mistakes refused, before torch is imported."""

from __future__ import annotations

import faulthandler
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import TextIO

from gradconform.exits import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_USAGE, SIGNAL, refusal
from gradconform.process.ends import end_seen
from gradconform.process.interrupts import endings_interrupt

from .arguments import parser
from .console import complain, give_output_back, keep_output_for_the_report, refuse_unwritable_outputs

__all__ = ["main"]

#: What a shell gives to a command whose reader went away.
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 conforms, 1 does not, 2 usage, 3 error of the kit, 4 environment, 5 incomplete, 6 worse than before,
    130 interrupted; 143 and 129 ended by SIGTERM and SIGHUP, with the same reports.
    """
    with endings_interrupt() as ended:
        try:
            code = _code(argv)
        finally:
            give_output_back()
    if code == EXIT_INTERRUPTED and ended.number is not None:
        code = SIGNAL + ended.number
    flushed = [_flushed(stream) for stream in (sys.stdout, sys.stderr)]
    return code if all(flushed) else code or EXIT_ENVIRONMENT


def _flushed(stream: TextIO) -> bool:
    """Tell whether all that was printed is where it was to go; what is not is dropped.

    Python would try once more at exit, and end with a code of its own.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def _ended(status: int) -> int:
    """Say that the process was ended by what it judges, and return the exit code of that."""
    words = f"the target ended the process of this command with os._exit({status}) before the verdict"
    complain(f"{words}; 'gradconform run' runs the target in separate processes")
    return EXIT_ENVIRONMENT


def _code(argv: Sequence[str] | None) -> int:
    """Run the command; return the exit code, whatever happens."""
    try:
        arguments = parser().parse_args(argv)
        refuse_unwritable_outputs(arguments)
        keep_output_for_the_report(arguments)
        if sys.__stderr__ is not None and not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__)  # where a signal ends this process, a target's code may be at fault
        with end_seen(_ended):
            return int(pkgutil.resolve_name(arguments.command)(arguments))
    except SystemExit as stop:  # argparse has said what is wrong, or printed the help
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        complain("interrupted; no check was judged")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, say) went away
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 (each has an exit code of its own, and none is taken for a verdict)
        message, code = refusal(error)
        complain(message)
        return code
