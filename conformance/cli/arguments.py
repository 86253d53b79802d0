"""The command's arguments. Nothing here imports torch, so that a mistyped option is refused at once."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from gradconform.cli import commands, fuzzing
from gradconform.cli.selftest import selftest
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

# As gradconform.check and gradconform.plan have them, which import torch; tests/cli holds both to be the same.
PROFILES = ("quick", "standard", "full")
DEFAULT_SEED = 20

COMMANDS = ("run", "list", "explain", "contract", "fuzz", "selftest")

_LARGEST_SEED = 2**32 - 1

_EXIT_CODES = """\
exit codes:
  0    conforms
  1    does not conform
  2    usage: a bad target, option, pattern, device or dtype; nothing was run
  3    error of the kit
  4    error of the environment
  5    incomplete: nothing failed, but fewer checks ran than the profile has
  130  interrupted by ctrl-C; what ran until then is reported
"""

_TARGETS = """\
TARGET is one of
  a registered name       {registered}
  package.module          with torch's functions stage_backward,
                          stage_backward_input and stage_backward_weight, or
                          stage_backward alone
  package.module:object   such a namespace, an adapter, its class or its factory
  path/to/file.py         as package.module
  path/to/file.py:object  as package.module:object

A module is looked for in the current folder first. --device, --dtype, --checks
and --exclude-checks may be given several times, or several values separated by
commas.
"""

_EXAMPLES = """\
examples:
  gradconform run torch
  gradconform run mypackage.backward --dtype float32,bfloat16 --json out.json
  gradconform run backward.py:fused --checks 'split.*' --exclude-checks '*lstm'
  gradconform run torch --schedule zbv.csv
  gradconform explain split.gradients.lstm
"""


class _Parser(argparse.ArgumentParser):
    """A parser that names the nearest command or option for one that does not exist."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> Any:
        """Say what is wrong, where help is, and exit with 2."""
        wrong = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if wrong is not None:
            near = difflib.get_close_matches(wrong[1], COMMANDS, n=1)
            hint = f", did you mean {near[0]}?" if near else "."
            message = f"unknown command {wrong[1]!r}{hint} Expected one of {', '.join(COMMANDS)}"
        self.exit(2, f"{self.prog}: {message}\nSee '{self.prog} --help'.\n")

    # argparse types two overloads for this one behaviour.
    def parse_args(  # type: ignore[override] # as said above
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Refuse what no argument takes, with the nearest option."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            owner: _Parser = getattr(found, "parser", self)
            unknown = rest[0].partition("=")[0]
            near = difflib.get_close_matches(unknown, owner._option_string_actions, n=2)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            owner.error(f"unexpected argument {unknown!r}{hint}")
        return found


class _Formatter(argparse.HelpFormatter):
    """Wraps what is one paragraph, and leaves examples and tables as they are written."""

    def __init__(self, prog: str) -> None:
        columns = min(shutil.get_terminal_size((100, 24)).columns, 100)
        super().__init__(prog, max_help_position=32, width=columns)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command; ``command`` of what it parses is the function to call."""
    top = _Parser(
        prog="gradconform",
        description="Judge a stage backward: the backward pass of one pipeline-parallel stage, full or split.",
        epilog=f"{_EXAMPLES}\n{_EXIT_CODES}",
    )
    top.add_argument("--version", action="version", version=f"gradconform {KIT_VERSION}, contract {CONTRACT_VERSION}")
    found = top.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    _run(found, commands.run)
    _list(found, commands.list_checks)
    _explain(found, commands.explain)
    _contract(found, commands.contract)
    _fuzz(found, fuzzing.fuzz)
    _selftest(found, selftest)
    return top


def _run(found: Any, command: Callable[[argparse.Namespace], int]) -> None:
    names = sorted(entry.name for entry in importlib.metadata.entry_points(group="gradconform.adapters"))
    targets = _TARGETS.format(registered=", ".join(names))
    one = found.add_parser(
        "run",
        help="run the contract against a target and give a verdict",
        description="Run the contract against a target, tell what failed and why, and give a verdict.",
        epilog=f"{targets}\n{_EXAMPLES}\n{_EXIT_CODES}",
    )
    one.set_defaults(command=command, parser=one)
    one.add_argument("target", metavar="TARGET", help="what is judged, see below")
    one.add_argument("--device", **_SEVERAL, metavar="DEVICE", help="where it runs, as torch names it (default: cpu)")
    one.add_argument(
        "--dtype", **_SEVERAL, metavar="DTYPE", help="float64, float32, bfloat16 or float16 (default: float32)"
    )
    _selection(one, "standard")
    one.add_argument("--exclude-checks", **_SEVERAL, metavar="GLOB", help="leave out the checks whose id matches")
    one.add_argument(
        "--seed",
        type=_seed,
        default=DEFAULT_SEED,
        metavar="N",
        help=f"what all values are drawn from (default: {DEFAULT_SEED})",
    )
    one.add_argument("--strict", action="store_true", help="let a failed SHOULD decide the verdict as well")
    one.add_argument(
        "--probe", action="store_true", help="try also what the target does not claim; profile full always does"
    )
    one.add_argument(
        "--schedule",
        action="append",
        metavar="FILE.csv",
        help="judge the pipeline schedule of a CSV file in torch's format, a row per rank, in place of the contract; "
        "may be given several times",
    )
    only = one.add_mutually_exclusive_group()
    only.add_argument("--json", metavar="PATH", help="write the report there as JSON")
    only.add_argument("--list", action="store_true", help="print what would run, and run nothing")


def _fuzz(found: Any, command: Callable[[argparse.Namespace], int]) -> None:
    one = found.add_parser(
        "fuzz",
        help="try random stages and programs, and shrink what fails",
        description=(
            "Try random stages and programs that the target claims to support, against plain autograd, and go on after "
            "a failure; tell every distinct defect once, shrunk. Exit code 1 where a MUST failed."
        ),
    )
    one.set_defaults(command=command, parser=one)
    one.add_argument("target", metavar="TARGET", help="what is tried, as for 'gradconform run'")
    one.add_argument(
        "--max-examples", type=_count, default=1000, metavar="N", help="how many random examples (default: 1000)"
    )
    one.add_argument(
        "--time-budget", type=_count, default=60, metavar="SECONDS", help="stop after so many seconds (default: 60)"
    )
    one.add_argument("--device", default="cpu", metavar="DEVICE", help="where it runs (default: cpu)")
    one.add_argument("--dtype", default="float32", metavar="DTYPE", help="as for 'gradconform run' (default: float32)")
    one.add_argument(
        "--seed",
        type=_seed,
        default=DEFAULT_SEED,
        metavar="N",
        help=f"what the examples and all values are drawn from (default: {DEFAULT_SEED})",
    )
    one.add_argument("--reproduce", metavar="BLOB", help="try the one trial that an earlier run printed")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        msg = f"{text!r} is no count; expected a whole number from 1"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _list(found: Any, command: Callable[[argparse.Namespace], int]) -> None:
    one = found.add_parser(
        "list",
        help="list the checks of the contract",
        description=(
            "List the checks of the contract: id, level, profile, needs, requirement. "
            "When the output is no terminal, it is one line per check with tabs between the columns."
        ),
    )
    one.set_defaults(command=command, parser=one)
    _selection(one, "full")
    one.add_argument("--json", action="store_true", help="print JSON, with the reason and the programs of each check")


def _explain(found: Any, command: Callable[[argparse.Namespace], int]) -> None:
    one = found.add_parser(
        "explain",
        help="explain one check: requirement, reason, stage, program, how it is judged",
        description="Explain one check: requirement, reason, stage and its source, program, how it is judged.",
    )
    one.set_defaults(command=command, parser=one)
    one.add_argument("check", metavar="ID", help="a check id, or a glob that matches a few")


def _contract(found: Any, command: Callable[[argparse.Namespace], int]) -> None:
    one = found.add_parser(
        "contract",
        help="print the contract as Markdown (docs/contract.md)",
        description="Print the contract as Markdown: the numeric rule, the verdicts and every check.",
    )
    one.set_defaults(command=command, parser=one)


def _selftest(found: Any, command: Callable[[argparse.Namespace], int]) -> None:
    one = found.add_parser(
        "selftest",
        help="run the contract against known faults and right variants: does it find what it must here?",
        description=(
            "Run the contract against every fault and every right variant that the kit ships, on a device of yours, "
            "and print which check fails which fault. The exit code is 1 where a fault survives or a variant fails."
        ),
    )
    one.set_defaults(command=command, parser=one)
    one.add_argument("--device", default="cpu", metavar="DEVICE", help="where it runs (default: cpu)")
    one.add_argument("--dtype", default="float32", metavar="DTYPE", help="as for run (default: float32)")
    one.add_argument(
        "--profile", type=_profile, default="standard", metavar="PROFILE", help="as for run (default: standard)"
    )
    one.add_argument("--faults", metavar="GLOB", help="only the faults whose name matches (default: all)")
    one.add_argument("--html", metavar="PATH", help="write the matrix there as one HTML page")


def _selection(one: argparse.ArgumentParser, profile: str) -> None:
    one.add_argument(
        "--profile",
        type=_profile,
        default=profile,
        metavar="PROFILE",
        help=f"how much of the contract: quick, standard or full (default: {profile})",
    )
    one.add_argument("--checks", **_SEVERAL, metavar="GLOB", help="only the checks whose id matches")


def _profile(name: str) -> str:
    if name not in PROFILES:
        near = difflib.get_close_matches(name, PROFILES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        msg = f"unknown profile {name!r}; {hint}expected one of {', '.join(PROFILES)}"
        raise argparse.ArgumentTypeError(msg)
    return name


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _LARGEST_SEED:
        msg = f"{text!r} is no seed; expected an integer from 0 to {_LARGEST_SEED}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        msg = f"{text!r} holds an empty name; expected one name, or several separated by commas"
        raise argparse.ArgumentTypeError(msg)
    return names


#: An option that may be repeated, each time with one name or several.
_SEVERAL: dict[str, Any] = {"action": "extend", "type": _names, "default": None}
