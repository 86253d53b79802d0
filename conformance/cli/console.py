"""Where the command writes: lines to the standard output, complaints to the standard error."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradconform.report.lines import Line, Role
from gradconform.results import EXIT_USAGE

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: dict[Role, str] = {
    "plain": "", "heading": "bold", "good": "bold green", "bad": "bold red", "warning": "yellow", "faint": "dim",
}  # fmt: skip

#: The width of what is not written to a terminal, and the widest that is comfortable to read on one.
PIPED_WIDTH, WIDEST = 100, 120


def on_terminal() -> bool:
    """Tell whether a person watches the standard output: no pipe, no CI, no dumb terminal."""
    return sys.stdout.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Return how wide lines may be; the variable COLUMNS wins."""
    return min(shutil.get_terminal_size((PIPED_WIDTH, 24)).columns, WIDEST)


def terminal() -> Console:
    """Return a rich console that prints text as it is given."""
    from rich.console import Console  # noqa: PLC0415 (only a terminal needs it)

    return Console(markup=False, highlight=False, emoji=False, soft_wrap=True)


def write(lines: Iterable[Line], console: Console | None = None) -> None:
    """Print lines, with colour on a terminal."""
    if not on_terminal():
        for line in lines:
            _print(line.text)
        return
    out = console or terminal()
    for line in lines:
        out.print(line.text, style=_STYLES[line.role] or None)


def write_text(text: str) -> None:
    """Print text as it is."""
    _print(text.rstrip("\n"))


def complain(text: str) -> None:
    """Print one message of the command to the standard error."""
    sys.stdout.flush()
    print(f"gradconform: {text.rstrip()}", file=sys.stderr, flush=True)  # noqa: T201 (a command talks)


def _print(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # A message may quote what an old terminal cannot show; a report that crashes over it would help nobody.
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)  # noqa: T201 (a command talks)


def refuse(problem: object) -> int:
    """Complain about what was asked for, and return the exit code that says so: the problem's own, else of usage."""
    complain(str(problem))
    return int(getattr(problem, "exit_code", EXIT_USAGE))
