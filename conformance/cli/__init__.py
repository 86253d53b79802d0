"""The command ``gradconform``. It parses arguments and rejects simple mistakes before it imports torch."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TextIO

from gradconform.exits import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_USAGE, SIGNAL, refusal
from gradconform.process.imports import imports_shared, imports_uncollected
from gradconform.process.interrupts import endings_interrupt
from gradconform.target.lookup import Named, refuse_missing_file

from .arguments import parser
from .console import complain, give_output_back, keep_output_for_the_report, refuse_unwritable_outputs


@contextlib.contextmanager
def _end_seen(instead: Callable[[int], int]) -> Iterator[None]:
    """Make ``os._exit`` in this process call ``instead`` with its code and exit with the returned code.

    Processes that this one forks exit normally.
    """
    own, end = os.getpid(), os._exit

    @functools.wraps(end)
    def ended(status: int) -> NoReturn:
        end(instead(status) if os.getpid() == own else status)

    os._exit = ended
    try:
        yield
    finally:
        os._exit = end


__all__ = ["main"]

#: A shell's exit code for a command whose reader closed the pipe.
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 conforms, 1 does not, 2 usage, 3 error of the kit, 4 environment, 5 incomplete, 6 worse than before, 130
    interrupted. 143 and 129 are the codes for SIGTERM and SIGHUP, with the same reports.
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
    """Flush a stream and return whether that worked; otherwise drop its contents.

    Python would retry at exit, and exit with a code of its own.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def _ended(status: int) -> int:
    """Report that the target ended the process, and return the exit code for that."""
    words = f"the target ended the process of this command with os._exit({status}) before the verdict"
    complain(f"{words}; 'gradconform run' runs the target in separate processes")
    return EXIT_ENVIRONMENT


def _refuse_missing_file(arguments: argparse.Namespace) -> None:
    """Raise ``TargetError`` for a target in a file that does not exist, before a command imports torch."""
    target = getattr(arguments, "target", None)
    if target is None or not getattr(arguments, "loads_target", False) or "\0" in target:
        return
    named = Named(target, target)
    if named.parts[0].endswith(".py"):
        refuse_missing_file(named.parts[0], named)


def _code(argv: Sequence[str] | None) -> int:
    """Run the command; return the exit code in every case."""
    try:
        arguments = parser().parse_args(argv)
        refuse_unwritable_outputs(arguments)
        _refuse_missing_file(arguments)
        keep_output_for_the_report(arguments)
        if sys.__stderr__ is not None and not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__)  # a target's code may be the reason for a fatal signal
        with _end_seen(_ended), imports_shared():
            with imports_uncollected():
                command = pkgutil.resolve_name(arguments.command)
            return int(command(arguments))
    except SystemExit as stop:  # argparse has printed the error or the help
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    except KeyboardInterrupt:
        complain("interrupted; no check was judged")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (for example, head) has closed the pipe
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 (each has its own exit code, never a verdict's)
        message, code = refusal(error)
        complain(message)
        return code
