"""The commands that show the contract: ``gradconform list``, ``explain``, and ``contract``, which also updates it."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Mapping
from fnmatch import fnmatchcase

from gradconform.contract.explanation_file import explained
from gradconform.contract.frozen import FrozenCheck, file_of, frozen
from gradconform.contract.selection import of_profile, selected
from gradconform.contract.space.rows import made_anew
from gradconform.covering.rows import text
from gradconform.exits import EXIT_CONFORMS
from gradconform.report.checks import as_json, explanation, explanation_beside, few, lines, rows, unknown
from gradconform.run.sources import checks_beside, options_selecting
from gradconform.sources.sharded import SHARDED
from gradconform.user_input.values import SelectionError

from .console import on_terminal, width, write, write_text

#: The most differences that a freeze prints; it counts the others.
_MOST = 40


def list_checks(arguments: argparse.Namespace) -> int:
    """List the checks of the contract."""
    version, profile = arguments.contract, arguments.profile
    known = _checks(version)
    checks = selected(known, profile, [*arguments.pattern, *(arguments.checks or ())])
    if arguments.json:
        write_text(as_json(checks, explained(version), version))
    elif on_terminal():
        manifest = len(of_profile(known, profile))
        write(lines(checks, width(), contract=version, profile=profile, manifest=manifest))
    else:
        write_text("\n".join(rows(checks)))
    return EXIT_CONFORMS


def _checks(version: str) -> Mapping[str, FrozenCheck]:
    found = frozen(version)
    return {} if found is None else found.checks


def explain(arguments: argparse.Namespace) -> int:
    """Explain one check, or the few that a glob matches: of the contract, or if it has none, those beside it."""
    pattern, known = arguments.check, _checks(arguments.contract)
    found = [check for name, check in known.items() if fnmatchcase(name, pattern)]
    for check in few(pattern, found, f"gradconform list '{pattern}' prints them all"):
        write(explanation(check, explained(arguments.contract), width()))
    if not found:
        _explain_beside(pattern, known)
    return EXIT_CONFORMS


def _explain_beside(pattern: str, known: Mapping[str, FrozenCheck]) -> None:
    """Explain the checks beside the contract that a glob matches; raise ``SelectionError`` if there is none."""
    every = dict(checks_beside())
    found = [check for check in every if fnmatchcase(check.id, pattern)]
    for check in few(pattern, found, "Use a longer glob"):
        write(explanation_beside(check, every[check], width()))
    if not found and (pattern.startswith(SHARDED) or any(options_selecting(pattern).values())):
        msg = f"{pattern!r} is a check beside the contract; 'gradconform replay {pattern} TARGET' runs it"
        raise SelectionError(msg)
    if not found:
        raise SelectionError(unknown(pattern, [*known, *(check.id for check in every)]))


def contract(arguments: argparse.Namespace) -> int:
    """Print docs/contract.md or docs/space.md, generate the rows of the space again, or freeze the version."""
    if arguments.cover:
        return _cover()
    if arguments.freeze is not False:
        return _freeze(arguments.contract, arguments.freeze)
    from gradconform.report.contract_page import contract_page  # noqa: PLC0415 (it imports torch, a list of checks does not)
    from gradconform.report.space_page import space_page  # noqa: PLC0415 (likewise)

    write_text(space_page() if arguments.space else contract_page(arguments.contract))
    return EXIT_CONFORMS


def _cover() -> int:
    """Write the rows of the space and the traits of the random stages, and print their numbers."""
    from gradconform.contract.freezing import traits_of_random_stages  # noqa: PLC0415 (it imports torch)
    from gradconform.fixtures.random_stages import TRAITS  # noqa: PLC0415 (likewise)

    for file, found in made_anew().items():
        file.write_text(text(found), encoding="utf-8")
        write_text(f"{file}: {', '.join(f'{len(some)} rows of {way}' for way, some in found.items())}")
    traits = traits_of_random_stages()
    TRAITS.write_text(traits, encoding="utf-8")
    write_text(f"{TRAITS}: traits of {traits.count(':')} random stages")
    return EXIT_CONFORMS


def _freeze(version: str, released: dt.date | None) -> int:
    """Write the files of a version, and print its differences from before."""
    from gradconform.contract.freezing import freeze  # noqa: PLC0415 (likewise)

    fixed, differences = freeze(version, released)
    kinds = ("added", "gone", "changed")
    reported = ", ".join(f"{sum(line.startswith(kind) for line in differences)} {kind}" for kind in kinds)
    final = "" if released is None else f"; released on {released}, it changes no more"
    shown = [*differences[:_MOST], *([f"and {len(differences) - _MOST} more"] if len(differences) > _MOST else [])]
    size = f"{len(fixed.checks)} checks on {len(fixed.stages)} stages"
    write_text("\n".join([*shown, f"{file_of(version)}: contract {version}, {size}; {reported}{final}"]))
    return EXIT_CONFORMS
