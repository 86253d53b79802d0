"""Output of the command: lines to standard output, error messages to standard error."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gradconform.exits import EXIT_ENVIRONMENT, UsageError
from gradconform.files.user_files import replace_files
from gradconform.report.lines import Line, Role, with_own_indent
from gradconform.text.escaping import for_json, for_terminal, line_for_terminal

if TYPE_CHECKING:
    from rich.console import Console


_STYLES: dict[Role, str] = {
    "plain": "", "heading": "bold", "good": "bold green", "bad": "bold red", "warning": "yellow", "faint": "dim",
}  # fmt: skip

#: The width of output that is not for a terminal, and the largest readable width on one.
PIPED_WIDTH, WIDEST = 80, 120


@dataclass(slots=True)
class _Kept:
    """The standard output while only the command may print to it; else None."""

    output: TextIO | None = None


_KEPT = _Kept()


def keep_output_for_the_report(arguments: argparse.Namespace) -> None:
    """If a program reads the standard output, redirect the target's output to the standard error.

    :func:`give_output_back` ends the redirection.
    """
    form = getattr(arguments, "output_format", None) or "full"
    if _KEPT.output is None and (form != "full" or getattr(arguments, "json", None) == "-"):
        _KEPT.output, sys.stdout = sys.stdout, sys.stderr


def give_output_back() -> None:
    """End the redirection of the standard output."""
    if _KEPT.output is not None:
        sys.stdout, _KEPT.output = _KEPT.output, None


def _output() -> TextIO:
    return _KEPT.output or sys.stdout


def on_terminal() -> bool:
    """Return whether a person watches the standard output: no pipe, no CI, no dumb terminal."""
    return _output().isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Return the largest line width; the variable COLUMNS takes precedence."""
    return min(shutil.get_terminal_size((PIPED_WIDTH, 24)).columns, WIDEST)


def terminal() -> Console:
    """Return a rich console that prints text literally."""
    from rich.console import Console  # noqa: PLC0415 (only a terminal needs it)

    return Console(file=_output(), markup=False, highlight=False, emoji=False, soft_wrap=True)


def write(lines: Iterable[Line], console: Console | None = None) -> None:
    """Print lines, with colour on a terminal. Line breaks inside a line are escaped."""
    if not on_terminal():
        for line in lines:
            _print(line_for_terminal(line.text))
        return
    out = console or terminal()
    for line in lines:
        out.print(line_for_terminal(line.text), style=_STYLES[line.role] or None)


def write_text(text: str) -> None:
    """Print the kit's own text; foreign text inside it cannot break a line."""
    _print(for_terminal(text.rstrip("\n")))


def write_json(values: object) -> None:
    """Print values unchanged as JSON text."""
    _print(for_json(json.dumps(values, indent=2)))


def write_annotations(lines: Iterable[str]) -> None:
    """Print workflow commands of GitHub, whose texts are already escaped."""
    for line in lines:
        _print(line)


def complain(text: str) -> None:
    """Print one message of the command to the standard error, if possible: the exit code has the result.

    On a terminal, the message is wrapped; for a pipe, it is one line.
    """
    reported = for_terminal(f"gradconform: {text.rstrip()}")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        if sys.stderr is not None and sys.stderr.isatty():
            each = (with_own_indent(line, width(), hanging=4) or [Line("")] for line in reported.splitlines())
            reported = "\n".join(line.text for lines in each for line in lines)
        print(reported, file=sys.stderr, flush=True)  # noqa: T201 (command output)


def _print(text: str) -> None:
    output = _output()
    encoding = getattr(output, "encoding", None) or "utf-8"
    # A message may have characters that an old terminal cannot show, which must not crash the report.
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=output, flush=True)


class OutputFileError(UsageError):
    """No report can be written to the path."""


#: The arguments that name files which a command reads or continues, and their names in messages.
_READ = {
    "report": "", "reports": "", "base": "", "new": "", "what": "", "target": "", "waivers": "--waivers",
    "ndjson": "--ndjson", "resume": "--resume", "schedule": "--schedule", "stage": "--stage", "sign": "--sign",
    "skip_operations": "--skip-operations",
}  # fmt: skip


def refuse_unwritable_outputs(arguments: argparse.Namespace) -> None:
    """Raise :class:`OutputFileError` for the first output file that cannot be written.

    A file that is also another output, or is read by the command, would be lost.
    """
    named = {option: getattr(arguments, _argument(option)) for option in getattr(arguments, "outputs", ())}
    given = {option: path for option, path in named.items() if path is not None}
    for option, path in given.items():
        if path != "-":  # the standard output
            refuse_unwritable(path, option)
    uses = dict(_read_by(arguments))
    for option, path in given.items():
        place = _place(path)
        if place in uses:
            raise OutputFileError(_taken(option, path, uses[place]))
        uses[place] = option


def _place(path: str) -> str:
    """Return the common form of two names of one file; text that is no file's path is returned unchanged."""
    return path if path == "-" or "\0" in path else os.path.realpath(path)


def _taken(option: str, path: str, other: str) -> str:
    """Return the message that ``path`` is already used: ``other`` is the option that names it, if any."""
    if path == "-":
        return f"{other} and {option} both go to standard output; name a file for one of them"
    if other:
        return f"{other} and {option} name the same file, {path!r}; change one of the paths"
    return f"{option} {path!r} is a file that this command reads; choose another path"


def _argument(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _read_by(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the places of the files that a command reads or continues, and the option that names each."""
    for name, option in _READ.items():
        values = getattr(arguments, name, None)
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str):
                path = value.partition("#")[0] if name == "what" else value
                if name in {"target", "stage"}:  # a name that is no file cannot be overwritten
                    path = path.rpartition(".py:")[0] + ".py" if ".py:" in path else path
                    if not path.endswith(".py"):
                        continue
                yield _place(path), option


def refuse_unwritable(path: str, option: str) -> None:
    """Raise :class:`OutputFileError` if ``path``, which ``option`` names, cannot be written."""
    try:
        problem = _problem_of(path)
    except OSError as error:
        problem = f" cannot be written: {error.strerror}; choose another path"
    if problem:
        msg = f"{option} {path!r}{problem}"
        raise OutputFileError(msg)


def _problem_of(path: str) -> str:
    """Return why a file cannot be written, to follow its name; empty if it can."""
    real = Path(path).resolve()
    if not path.strip() or real.is_dir():
        return " is a folder; name a file in it"
    if not real.parent.is_dir():
        return f": the folder {str(real.parent)!r} does not exist; create it first"
    if real.exists() and not real.is_file():
        return " is not a regular file; choose another path"
    if not os.access(real.parent, os.W_OK | os.X_OK) or (real.exists() and not os.access(real, os.W_OK)):
        return " cannot be written; choose another path or change its permissions"
    return ""


def hand_over_all(contents: Mapping[str, str | bytes], *, code: int, what: str) -> int:
    """Write the files of a command, all or none; if that fails, return the environment's exit code."""
    return code if written(contents, what=what) else EXIT_ENVIRONMENT


def kept(files: Mapping[str, tuple[str, str]]) -> list[Line] | None:
    """Write the files of a command, each with its name and content by path; return the lines that report them.

    None if they could not be written, which has been reported then; of several, all are written or none.
    """
    whole = written({path: content for path, (_, content) in files.items()}, what="report")
    return [Line(f"{name}: {path}") for path, (name, _) in files.items()] if whole else None


def written(contents: Mapping[str, str | bytes], *, what: str) -> bool:
    """Write files, all or none, and return whether that worked; report a failure."""
    try:
        replace_files(contents)
    except OSError as error:
        complain(f"cannot write the {what} to {', '.join(map(repr, contents))}: {error}")
        return False
    return True
