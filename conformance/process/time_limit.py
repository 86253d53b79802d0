"""A time limit for work in this process: at its end the process prints its stacks and exits."""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

from gradconform.exits import EXIT_DOES_NOT
from gradconform.text.escaping import for_terminal

from .stacks import stack_lines

#: How many seconds later faulthandler ends a process whose work does not let Python run another thread.
_LATER = 2.0


@contextlib.contextmanager
def ends_after(seconds: float, text: str) -> Iterator[None]:
    """End this process with :data:`~gradconform.exits.EXIT_DOES_NOT` if the work is not done after ``seconds``.

    It prints ``text`` and the stacks of all threads to standard error.
    """
    timer = threading.Timer(seconds, _end, (text,))
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + _LATER, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


def _end(text: str) -> None:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        own = f"Current thread 0x{threading.get_ident():016x}"  # this one
        stacks = "\n\n".join(block for block in file.read().split("\n\n") if not block.startswith(own))
    lines = map(for_terminal, [text, *stack_lines(stacks)])
    print(*lines, sep="\n", file=sys.stderr, flush=True)  # noqa: T201 (the process ends here)
    inspect.unwrap(os._exit)(EXIT_DOES_NOT)  # not the command's own, which charges the target
