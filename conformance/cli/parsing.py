"""Argument parsing for every command: the parser, the kinds of values, and the shared options.

Nothing here imports torch, so that a mistyped option is rejected at once.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import math
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradconform.run.options import OPTIONS
from gradconform.text.escaping import for_terminal
from gradconform.user_input.option import Option
from gradconform.user_input.values import count_read

EXIT_CODES = """\
exit codes:
  0    conforms
  1    does not conform; verify: the statement does not hold
  2    usage error: a bad target, option, pattern, device, dtype, report or
       waiver; no check ran, or a whole run of profile full has an unused waiver
  3    internal error of the kit
  4    error of the environment or of the device
  5    incomplete: nothing failed, but fewer checks ran than the profile has
  6    compare: the new run is worse than the base run
  7    error in the target's adapter
  130  interrupted by ctrl-C; the results so far are reported
  143  stopped by SIGTERM, 129 by SIGHUP; the results so far are reported
"""

TARGETS = """\
TARGET is one of
  a registered name       {registered}
  package.module          with torch's functions stage_backward,
                          stage_backward_input and stage_backward_weight, or
                          stage_backward alone
  package.module:object   an object with these functions, or an adapter, its
                          class or its factory
  path/to/file.py         a file with these functions
  path/to/file.py:object  an object in a file

gradconform searches the current folder first. Repeat --device, --dtype,
--checks and --exclude-checks, or separate their values with commas.
"""

EXAMPLES = """\
examples:
  gradconform run torch
  gradconform run mypackage.backward --dtype float32,bfloat16 --json out.json
  gradconform run backward.py:fused --checks 'split.*' --exclude-checks '*lstm'
  gradconform run torch --schedule zbv.csv
  gradconform explain split.gradients.lstm
"""


class Parser(argparse.ArgumentParser):
    """A parser that names the nearest command or option for one that does not exist."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", Formatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> Any:
        """Print the error and how to get help, and exit with 2."""
        wrong = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if wrong is not None:
            commands = re.findall(r"[a-z-]+", message.partition("choose from")[2])
            near = difflib.get_close_matches(wrong[1], commands, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            message = f"unknown command {wrong[1]!r}{hint}; expected one of {', '.join(commands)}"
        self.exit(2, for_terminal(f"{self.prog}: {message}\nSee '{self.prog} --help'.\n"))

    # argparse types two overloads for this one behaviour.
    def parse_args(  # type: ignore[override] # as said above
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Reject text that no argument takes, and name the nearest option."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            owner: Parser = getattr(found, "parser", self)
            unknown = rest[0].partition("=")[0]
            near = difflib.get_close_matches(unknown, owner._option_string_actions, n=2)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            owner.error(f"unexpected argument {unknown!r}{hint}")
        return found


class Formatter(argparse.HelpFormatter):
    """Wraps a single paragraph, and leaves examples and tables unchanged."""

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size((80, 24)).columns, 100)
        super().__init__(prog, max_help_position=32, width=columns)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


#: Functions that add each command to the parsers in their argument.
COMMANDS: dict[str, Callable[[Any], None]] = {}


def command(name: str, work: str | None, **reported: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function that adds a command's arguments; see :func:`add_command` for the rest.

    The function's docstring is the help: its first line is for the list of commands, and the rest is shown above the
    command's options.
    """

    def register(add_arguments: Callable[[Any], None]) -> Callable[[Any], None]:
        summary, _, below = (inspect.getdoc(add_arguments) or "").partition("\n\n")
        listed = summary[:1].lower() + summary[1:].rstrip(".")
        texts = {"help": listed, "description": (below or summary).replace("\n", " "), **reported}
        COMMANDS[name] = lambda found: add_arguments(add_command(found, name, work, **texts))
        return add_arguments

    return register


def add_command(found: Any, name: str, work: str | None, **reported: Any) -> Any:
    """Add a command to the subparsers ``found``; its ``work``, ``module:function`` here, is imported late."""
    one = found.add_parser(name, **reported)
    if work is not None:
        one.set_defaults(command=f"{__package__}.{work}", parser=one)
    return one


def names_given(text: str) -> list[str]:
    """Return the comma-separated names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        msg = f"expected one name or several separated by commas, got an empty name in {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return names


def number_given(text: str, *, fits: Callable[[float], bool], expected: str) -> float:
    """Return a finite number that fits; argparse reports any other text, and the ``expected`` form."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and fits(number)):
        msg = f"expected {expected}, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration_given(text: str) -> float:
    """Return seconds from a number alone, or with a unit, such as ``90s``, ``10m`` or ``1.5h``."""
    unit = _SECONDS.get(text[-1:])
    try:
        seconds = float(text if unit is None else text[:-1]) * (unit or 1.0)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        msg = f"expected seconds or a number with a unit, such as 90, 90s, 10m or 1.5h; got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return seconds


#: An option that may be repeated, each time with one name or several.
SEVERAL: dict[str, Any] = {"action": "extend", "type": names_given, "default": None}

#: A switch; None if it is not given.
SWITCH: dict[str, Any] = {"action": "store_const", "const": True}

#: The argparse settings of each kind of option, except those with one value; an option that is not given is None.
_KINDS: dict[str, dict[str, Any]] = {
    "several": SEVERAL,
    "paths": {"action": "append"},
    "switch": SWITCH,
}


def add_option(  # noqa: PLR0913 (a command's settings of an option)
    one: Any,
    name: str | Option,
    *,
    default: Any = None,
    alone: bool = False,
    help: str | None = None,  # noqa: A002 (argparse's own word for it)
    unset: str | None = None,
) -> None:
    """Add an option, of a run if it is a name: ``arguments`` has its value under its name, None if it is not given.

    With ``alone``, or if the command has a ``default`` of its own, the option takes one value even if a run takes
    several. ``unset`` describes the command's replacement for a run's default.
    """
    option = OPTIONS[name] if isinstance(name, str) else name
    one_value = {"type": argument_type(option.read), "default": default}
    kind = one_value if alone or default is not None else _KINDS.get(option.kind, one_value)
    reported = {} if option.kind == "switch" else {"metavar": option.metavar}
    shown = "" if option.kind == "switch" or alone else f" (default: {default or unset or option.shown})"
    # argparse formats help texts, so % is escaped.
    one.add_argument(
        option.flag, dest=option.name, help=f"{help or option.help}{shown}".replace("%", "%%"), **reported, **kind
    )


def argument_type(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse type that uses ``read`` and reports the error message of ``read``."""

    def given(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return given


def add_count(
    one: Any,
    *flags: str,
    help: str,  # noqa: A002 (argparse's own word for it)
    default: int | None = None,
    metavar: str = "N",
) -> None:
    """Add an option that takes a count from 1; its help ends with the default if there is one."""
    shown = "" if default is None else f" (default: {default})"
    one.add_argument(*flags, type=argument_type(count_read), default=default, metavar=metavar, help=f"{help}{shown}")


def add_target(
    one: argparse.ArgumentParser,
    help: str,  # noqa: A002 (as above)
    *,
    optional: bool = False,
    metavar: str = "TARGET",
) -> None:
    """Add the code that the command loads; whether its file exists is tested before the command begins."""
    one.set_defaults(loads_target=True)
    one.add_argument("target", metavar=metavar, nargs="?" if optional else None, help=help)


def add_output(one: Any, *flags: str, metavar: str = "PATH", **reported: Any) -> None:
    """Add an option that names an output file; whether it is writable is tested before the command begins."""
    one.set_defaults(outputs=(*(one.get_default("outputs") or ()), flags[-1]))
    one.add_argument(*flags, metavar=metavar, **reported)


def add_report_files(one: argparse.ArgumentParser, json: Any = None) -> None:
    """Add the options that name files for the report; ``json`` is the group that contains ``--json``, if any."""
    add_output(one if json is None else json, "--json", help="write the report as JSON (- for standard output)")
    add_output(one, "--html", type=_file_given, help="write the report as an HTML page")
    add_output(one, "--junit", type=_file_given, help="write the report as JUnit XML, one test per check")


def _file_given(path: str) -> str:
    if path == "-":
        msg = "expected a file, got '-': standard output shows the run; 'gradconform report' can print a page later"
        raise argparse.ArgumentTypeError(msg)
    return path


def given_options(arguments: argparse.Namespace, options: Iterable[str] = OPTIONS) -> dict[str, Any]:
    """Return the options of a run, or of another command, that are set in the arguments."""
    found = {name: getattr(arguments, name, None) for name in options}
    return {name: value for name, value in found.items() if value is not None}


#: The output formats of a report; ``full`` is for people.
FORMATS = ("full", "concise", "json", "github")


def add_output_options(one: argparse.ArgumentParser, *, formats: bool = True) -> None:
    """Add the options for the amount and the format of output."""
    how_much = one.add_mutually_exclusive_group()
    how_much.add_argument(
        "-q", "--quiet", action="count", help="print less: one line per cause; twice: only the verdict"
    )
    how_much.add_argument(
        "-v", "--verbose", action="count", help="print more: the id of each check; twice: all findings of each check"
    )
    add_count(one, "--failures", help="show N failing checks of each cause (default: 1, the smallest)")
    if formats:
        one.add_argument(
            "--output-format",
            choices=FORMATS,
            help="print full text; concise: one line per failure, path:check: message; json: the report; or github: "
            "workflow annotations (default: full)",
        )
