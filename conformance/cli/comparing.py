"""The command ``gradconform compare``."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import refuse, width, write, write_text
from gradconform.cli.parsing import EXIT_CODES
from gradconform.compare.expression import DEFAULT, NAMES, Expression, ExpressionError
from gradconform.results import EXIT_CONFORMS, EXIT_REGRESSED, Report

if TYPE_CHECKING:
    from gradconform.compare.comparison import Comparison

_LANGUAGE = """\
EXPR is a condition on counts: names, numbers, < <= > >= == !=, and, or, not
and parentheses; a name by itself holds where its count is not 0.

  {names}

  --fail-on 'new_failures or lost'                    the default
  --fail-on 'new_failures > 0 and not fixed'
  --fail-on 'failures >= 5 or headroom_drift or slower > 10'
"""


def add_compare(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    column = max(map(len, NAMES))
    names = "\n  ".join(f"{name:<{column}} {told}" for name, told in NAMES.items())
    one = found.add_parser(
        "compare",
        help="compare a run with the one before, and fail where it is worse",
        description=(
            "Compare the report of a new run with that of the one before: new failures, what was fixed, checks that "
            "were lost, errors that grew, slower checks, and what is different around them. Exit code 6 where the "
            "condition of --fail-on holds."
        ),
        epilog=f"{_LANGUAGE.format(names=names)}\n{EXIT_CODES}",
    )
    one.set_defaults(command=compare_reports, parser=one)
    one.add_argument("base", metavar="BASE.json", help="the report of the run before")
    one.add_argument("new", metavar="NEW.json", help="the report of the new run")
    one.add_argument(
        "--fail-on", type=_condition, default=DEFAULT, metavar="EXPR", help=f"see below (default: {DEFAULT!r})"
    )
    one.add_argument(
        "--intersection", action="store_true", help="look only at checks that both have; the contracts may differ"
    )
    one.add_argument(
        "--headroom-factor", type=_factor, default=2.0, metavar="F", help="how much an error may grow (default: 2)"
    )
    one.add_argument(
        "--slower-factor", type=_factor, default=2.0, metavar="F", help="how much longer a check may take (default: 2)"
    )
    one.add_argument(
        "--format",
        choices=("text", "markdown", "json"),
        default="text",
        help="text, markdown (fit for the summary of a CI job) or json (default: text)",
    )


def _condition(text: str) -> Expression:
    try:
        return Expression.parse(text)
    except ExpressionError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 <= factor < math.inf:
        msg = f"{text!r} is no factor; expected a number from 1"
        raise argparse.ArgumentTypeError(msg)
    return factor


def compare_reports(arguments: argparse.Namespace) -> int:
    """Compare two reports; return 6 where the condition holds, 0 where it does not."""
    from gradconform.compare.comparison import CompareError, compare  # noqa: PLC0415 (only this command needs it)
    from gradconform.schema.reading import ReportError  # noqa: PLC0415 (as above)

    try:
        base, new = Report.from_json(arguments.base), Report.from_json(arguments.new)
        found = compare(
            base,
            new,
            intersection=arguments.intersection,
            headroom_factor=arguments.headroom_factor,
            slower_factor=arguments.slower_factor,
        )
    except (ReportError, CompareError) as error:
        return refuse(error)
    _tell(found, arguments)
    return EXIT_REGRESSED if arguments.fail_on.holds(found.counts) else EXIT_CONFORMS


def _tell(found: Comparison, arguments: argparse.Namespace) -> None:
    from gradconform.report import comparison  # noqa: PLC0415 (only this command needs it)

    if arguments.format == "json":
        write_text(json.dumps(comparison.comparison_values(found, arguments.fail_on), indent=2))
    elif arguments.format == "markdown":
        write_text(comparison.comparison_markdown(found, arguments.fail_on))
    else:
        write(comparison.comparison_lines(found, arguments.fail_on, width()))
