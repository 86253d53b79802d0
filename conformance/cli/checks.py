"""The commands that show the contract: ``gradconform list``, ``explain`` and ``contract``."""

from __future__ import annotations

import argparse
from typing import Any

from gradconform.cli.console import on_terminal, refuse, width, write, write_text
from gradconform.cli.parsing import add_selection
from gradconform.results import EXIT_CONFORMS


def add_contract_commands(found: Any) -> None:
    """Add the three commands to the parsers that ``found`` makes."""
    _list(found)
    _explain(found)
    _contract(found)


def _list(found: Any) -> None:
    one = found.add_parser(
        "list",
        help="list the checks of the contract",
        description=(
            "List the checks of the contract: id, level, profile, needs, requirement. "
            "When the output is no terminal, it is one line per check with tabs between the columns."
        ),
    )
    one.set_defaults(command=list_checks, parser=one)
    add_selection(one, "full")
    one.add_argument("--json", action="store_true", help="print JSON, with the reason and the programs of each check")


def _explain(found: Any) -> None:
    one = found.add_parser(
        "explain",
        help="explain one check: requirement, reason, stage, program, how it is judged",
        description="Explain one check: requirement, reason, stage and its source, program, how it is judged.",
    )
    one.set_defaults(command=explain, parser=one)
    one.add_argument("check", metavar="ID", help="a check id, or a glob that matches a few")


def _contract(found: Any) -> None:
    one = found.add_parser(
        "contract",
        help="print the contract as Markdown (docs/contract.md)",
        description="Print the contract as Markdown: the numeric rule, the verdicts and every check.",
    )
    one.set_defaults(command=contract, parser=one)


def list_checks(arguments: argparse.Namespace) -> int:
    """List the checks of the contract."""
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.plan import make_plan  # noqa: PLC0415 (it imports torch)
    from gradconform.report.listing import as_json, lines, rows  # noqa: PLC0415 (it imports torch)

    try:
        plan = make_plan(CHECKS, profile=arguments.profile, include=arguments.checks)
    except SelectionError as error:
        return refuse(error)
    checks = [item.check for item in plan.items]
    if arguments.json:
        write_text(as_json(checks))
    elif on_terminal():
        write(lines(checks, width(), profile=arguments.profile, manifest=plan.manifest))
    else:
        write_text("\n".join(rows(checks)))
    return EXIT_CONFORMS


def explain(arguments: argparse.Namespace) -> int:
    """Explain one check, or the few that a glob matches."""
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.report.explanation import explanation, matching  # noqa: PLC0415 (it imports torch)

    try:
        checks = matching(arguments.check, CHECKS)
    except SelectionError as error:
        return refuse(error)
    for check in checks:
        write(explanation(check, width()))
    return EXIT_CONFORMS


def contract(arguments: argparse.Namespace) -> int:
    """Print docs/contract.md."""
    from gradconform.report.contract_page import contract_page  # noqa: PLC0415 (it imports torch)

    del arguments
    write_text(contract_page())
    return EXIT_CONFORMS
