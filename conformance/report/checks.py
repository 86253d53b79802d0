"""Lists of checks for a terminal, a pipe or a program, the plan of a run, and the explanation of one check.

They are built from the frozen contract files, so that no command here has to import torch.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from gradconform.contract.explanation_file import Explained, ExplainedStage
from gradconform.contract.frozen import FrozenCheck
from gradconform.requirements.clause import Clause
from gradconform.text.counts import count
from gradconform.user_input.values import SelectionError, nearest

from .lines import Line, clause, heading, wrapped

if TYPE_CHECKING:
    from gradconform.contract.plan import Plan
    from gradconform.target.resolve import Target


def lines(checks: Sequence[FrozenCheck], width: int, *, contract: str, profile: str, manifest: int) -> list[Line]:
    """Return the list of checks for a terminal, by area, each with its requirement."""
    found: list[Line] = []
    for area, group in groupby(checks, key=lambda check: check.id.partition(".")[0]):
        of_area = list(group)
        found.append(heading(f"{area}: {count(len(of_area), 'check')}", width))
        for check in of_area:
            found += wrapped(f"{check.id}  {check.level}, {check.profile}, needs {_needs(check)}", width, hanging=4)
            found += wrapped(check.requirement, width, indent=4, role="faint")
    total = f"{len(checks)} of {manifest} checks of contract {contract}, profile {profile}"
    return [*found, *wrapped(total, width, role="heading")]


def rows(checks: Sequence[FrozenCheck]) -> list[str]:
    """Return one line per check for a pipe: id, level, profile, needs and requirement, with tabs between."""
    return [
        "\t".join((check.id, check.level, check.profile, ",".join(check.needs) or "-", check.requirement))
        for check in checks
    ]


def as_json(checks: Sequence[FrozenCheck], explained: Explained, contract: str) -> str:
    """Return the checks of a version of the contract as JSON text."""
    values = [_values(check, explained) for check in checks]
    return json.dumps({"contract": contract, "checks": values}, indent=2)


def _values(check: FrozenCheck, explained: Explained) -> dict[str, Any]:
    fixed, reported = asdict(check), asdict(explained.checks[check.id])
    names = ("id", "level", "profile", "since", "needs", "requirement")
    of_check = {name: fixed[name] for name in names} | {name: reported[name] for name in ("why", "catches")}
    return {
        **of_check,
        "stages": sorted(check.stages),
        "programs": check.programs,
        **{name: reported[name] for name in ("source", "seed")},
    }


def plan_lines(plan: Plan, target: Target, counted: str, width: int) -> list[Line]:
    """Return the plan of a run: each check with the required capabilities that the target lacks, and the counts."""
    found: list[Line] = []
    unclaimed = 0
    for item in plan.items:
        unmet = item.check.unmet(target.capabilities)
        unclaimed += bool(unmet)
        note = f"  not claimed: {', '.join(unmet)}" if unmet else ""
        found.append(Line(f"{item.name}  {item.check.level}{note}", "faint" if unmet else "plain"))
    reported = f"; {unclaimed} ask for what {target.name} does not claim" if unclaimed else ""
    total = f"{len(plan.items)} of {plan.manifest} {clause(counted)} would run{reported}"
    return [*found, *wrapped(total, width, role="heading")]


def _needs(check: FrozenCheck) -> str:
    """Return the capabilities that a check needs, as text."""
    return ", ".join(check.needs) or "nothing"


#: The most checks that one call may explain.
MOST = 3

_COLUMN = 13

#: A comma inside the name of a planned stage, such as ``inputs=one,outputs=dict``.
_COMMA = re.compile(r",(?=\S)")


def unknown(pattern: str, names: Collection[str]) -> str:
    """Return the message that no check has an id, with the nearest ones."""
    shown = textwrap.shorten(nearest(pattern, names), 300, placeholder=" ...")
    return f"no check has the id {pattern!r}; nearest: {shown}. 'gradconform list' prints every id of the contract"


Checked = TypeVar("Checked", FrozenCheck, Clause)


def few(pattern: str, found: list[Checked], advice: str) -> list[Checked]:
    """Return the checks that match, at most :data:`MOST`; raise ``SelectionError`` with ``advice`` for more."""
    if len(found) > MOST:
        first = ", ".join(check.id for check in found[:MOST])
        msg = f"{pattern!r} matches {len(found)} checks, expected {MOST} at most; the first: {first}. {advice}"
        raise SelectionError(msg)
    return found


def explanation(check: FrozenCheck, explained: Explained, width: int) -> list[Line]:
    """Return the explanation of a check."""
    reported = explained.checks[check.id]
    seed = f"{reported.seed} (torch, test/distributed/pipelining/test_backward.py)" if reported.seed else ""
    module, _, name = reported.source.partition(":")
    found = [
        heading(check.id, width),
        *_field("level", f"{check.level}, from profile {check.profile} on, since contract {check.since}", width),
        *_field("requirement", check.requirement, width),
        *_field("why", reported.why, width),
        *_field("catches", reported.catches, width),
        *_field("needs", _needs(check), width),
        *_field("seed suite", seed, width),
    ]
    for number, program in enumerate(reported.tried, 1):
        which = f"program {number}" if len(reported.tried) > 1 else "program"
        found += [*_field(which, program.text, width), *_field("", _breakable(program.fed), width)]
    found += [*_field("", reported.drawn, width), *_field("", reported.legend, width)]
    for number, text in enumerate(reported.judged):
        found += _field("" if number else "judged", text, width)
    found += _field("source", f"{module.replace('.', '/')}.py, {name}", width)
    for stage in reported.stages:
        found += [Line(), *_stage(stage, explained.stages[stage], width)]
    return [*found, Line(), Line(f"try it: gradconform run TARGET --checks {check.id}", "faint"), Line()]


def explanation_beside(check: Clause, command: str, width: int) -> list[Line]:
    """Return the explanation of a check beside the contract, which ``command`` runs."""
    return [
        heading(check.id, width),
        *_field("level", check.level, width),
        *_field("requirement", check.requirement, width),
        *_field("why", check.why, width),
        *_field("values", check.tried, width),
        Line(),
        Line(f"try it: {command}", "faint"),
        Line(),
    ]


def _field(name: str, text: str, width: int) -> list[Line]:
    lines = wrapped(text, width, indent=_COLUMN)
    return [Line(name.ljust(_COLUMN) + lines[0].text[_COLUMN:]), *lines[1:]] if lines else []


def _breakable(reported: str) -> str:
    """Return text with stage names in which the long name of a planned stage can wrap after each of its words."""
    return _COMMA.sub(", ", reported)


def _stage(name: str, stage: ExplainedStage, width: int) -> Iterator[Line]:
    yield from _field("stage", f"{_breakable(name)}: {stage.special}", width)
    yield from _field("fed with", stage.fed or "nothing", width)
    for text in stage.source.splitlines():
        yield Line(f"    {text}".rstrip(), "faint")
