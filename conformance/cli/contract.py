"""The commands that show the contract: ``gradconform list``, ``explain``, and ``contract``, which makes it as well."""

from __future__ import annotations

import argparse
import datetime as dt

from gradconform.contract import checks_of
from gradconform.contract.freezing import freeze
from gradconform.contract.frozen import file_of
from gradconform.contract.plan import make_plan
from gradconform.contract.space.rows import made_anew
from gradconform.covering.rows import text
from gradconform.exits import EXIT_CONFORMS
from gradconform.report.checks import as_json, explanation, lines, matching, rows
from gradconform.report.contract_page import contract_page
from gradconform.report.space_page import space_page

from .console import on_terminal, width, write, write_text

#: How many differences a freeze prints before it counts the others.
_MOST = 40


def list_checks(arguments: argparse.Namespace) -> int:
    """List the checks of the contract."""
    version = arguments.contract
    plan = make_plan(checks_of(version), profile=arguments.profile, include=arguments.checks)
    checks = [item.check for item in plan.items]
    if arguments.json:
        write_text(as_json(checks, version))
    elif on_terminal():
        write(lines(checks, width(), contract=version, profile=arguments.profile, manifest=plan.manifest))
    else:
        write_text("\n".join(rows(checks)))
    return EXIT_CONFORMS


def explain(arguments: argparse.Namespace) -> int:
    """Explain one check, or the few that a glob matches."""
    for check in matching(arguments.check, checks_of(arguments.contract)):
        write(explanation(check, width()))
    return EXIT_CONFORMS


def contract(arguments: argparse.Namespace) -> int:
    """Print docs/contract.md or docs/space.md, draw the rows of the space anew, or freeze the version."""
    if arguments.cover:
        return _cover()
    if arguments.freeze is not False:
        return _freeze(arguments.contract, arguments.freeze)
    write_text(space_page() if arguments.space else contract_page(arguments.contract))
    return EXIT_CONFORMS


def _cover() -> int:
    """Write the rows of the space, and say how many there are now."""
    for file, found in made_anew().items():
        file.write_text(text(found), encoding="utf-8")
        write_text(f"{file}: {', '.join(f'{len(some)} rows of {way}' for way, some in found.items())}")
    return EXIT_CONFORMS


def _freeze(version: str, released: dt.date | None) -> int:
    """Write the file of a version, and say what it has now that it had not."""
    frozen, differences = freeze(version, released)
    kinds = ("added", "gone", "changed")
    told = ", ".join(f"{sum(line.startswith(kind) for line in differences)} {kind}" for kind in kinds)
    final = "" if released is None else f"; released on {released}, it changes no more"
    shown = [*differences[:_MOST], *([f"and {len(differences) - _MOST} more"] if len(differences) > _MOST else [])]
    size = f"{len(frozen.checks)} checks on {len(frozen.stages)} stages"
    write_text("\n".join([*shown, f"{file_of(version)}: contract {version}, {size}; {told}{final}"]))
    return EXIT_CONFORMS
