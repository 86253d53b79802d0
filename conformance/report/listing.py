"""Lists of checks: for a terminal, for a pipe, as JSON, and the plan of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gradconform.report.lines import Line, count, heading, wrapped
from gradconform.version import CONTRACT_VERSION

if TYPE_CHECKING:
    from gradconform.check import Check
    from gradconform.plan import Plan
    from gradconform.targets import Target


def lines(checks: Sequence[Check], width: int, *, profile: str, manifest: int) -> list[Line]:
    """Return the list for a terminal, by area, with the requirement of each check."""
    found: list[Line] = []
    for area, group in groupby(checks, key=lambda check: check.area):
        of_area = list(group)
        found.append(heading(f"{area}: {count(len(of_area), 'check')}", width))
        for check in of_area:
            found += wrapped(f"{check.id}  {check.level}, {check.profile}, needs {needs(check)}", width, hanging=4)
            found += wrapped(check.requirement, width, indent=4, role="faint")
    total = f"{len(checks)} of {manifest} checks of contract {CONTRACT_VERSION}, profile {profile}"
    return [*found, *wrapped(total, width, role="heading")]


def rows(checks: Sequence[Check]) -> list[str]:
    """Return one line per check for a pipe: id, level, profile, needs and requirement, with tabs between."""
    return [
        "\t".join((check.id, check.level, check.profile, ",".join(sorted(check.needs)) or "-", check.requirement))
        for check in checks
    ]


def as_json(checks: Sequence[Check]) -> str:
    """Return the checks as JSON text."""
    return json.dumps({"contract": CONTRACT_VERSION, "checks": [_values(check) for check in checks]}, indent=2)


def _values(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "level": check.level,
        "profile": check.profile,
        "needs": sorted(check.needs),
        "requirement": check.requirement,
        "why": check.why,
        "catches": check.catches,
        "stages": sorted({case.name for trial in check.trials for case in trial.stages}),
        "programs": list(dict.fromkeys(trial.program for trial in check.trials)),
        "source": check.source,
        "seed": check.seed,
    }


def plan_lines(plan: Plan, target: Target, scope: str, width: int) -> list[Line]:
    """Return what a run would do: each check with what the target does not claim of its needs, and the counts."""
    found: list[Line] = []
    unclaimed = 0
    for item in plan.items:
        unmet = item.check.unmet(target.capabilities)
        unclaimed += bool(unmet)
        note = f"  not claimed: {', '.join(unmet)}" if unmet else ""
        found.append(Line(f"{item.name}  {item.check.level}{note}", "faint" if unmet else "plain"))
    told = f"; {unclaimed} ask for what {target.name} does not claim" if unclaimed else ""
    total = f"{len(plan.items)} of {plan.manifest} checks of {scope}, would run{told}"
    return [*found, *wrapped(total, width, role="heading")]


def needs(check: Check) -> str:
    """Return the capabilities that a check needs, for reading."""
    return ", ".join(sorted(check.needs)) or "nothing"
