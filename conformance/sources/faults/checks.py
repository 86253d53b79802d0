"""Known faults, each with checks that must find it: they show whether a passing run means anything there.

These are extra checks outside the contract. They judge the kit on a device in a dtype, not a target: a target may have
a fault that no check finds there, and pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradconform.contract import checks_of
from gradconform.contract.check import Check
from gradconform.contract.extra_ids import FAULTS as AREA
from gradconform.contract.extra_ids import FOUND, chosen
from gradconform.reference.faults import FAULTS, Fault
from gradconform.run.options import RunOptions
from gradconform.run.selection import Selected
from gradconform.user_input.values import PROFILES

from .known_faults import FaultCheck, KnownFaults


@dataclass(frozen=True, slots=True)
class OnFaults:
    """The selected checks on faults."""

    checks: tuple[Check, ...]

    @property
    def description(self) -> str:
        """Return the report's text on them before any check runs."""
        return f"{len(self.checks)}, each to be found by a check that names it"


def select(options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
    """Return the checks that must find the faults that the options name.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a name that no fault has.
    """
    del measured
    selected = select_checks(options.fault, checks_of(options.contract))
    return Selected(checks=selected.checks, lines=(f"known faults: {selected.description}",))


def engine(options: RunOptions, device: torch.device, dtype: torch.dtype) -> KnownFaults:
    """Return the judge of these checks."""
    return KnownFaults(device, dtype, options.seed)


def select_checks(patterns: Sequence[str], contract: Mapping[str, Check]) -> OnFaults:
    """Return the checks on the faults that ``patterns`` name: names, globs, or ``all``.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a pattern that names no fault.
    """
    return OnFaults(tuple(_check(fault, contract) for fault in chosen(patterns, FAULTS, "unknown fault {}")))


def _check(fault: Fault, contract: Mapping[str, Check]) -> FaultCheck:
    finders = [check for check in contract.values() if fault.names(check.id)]
    finders.sort(key=lambda check: (PROFILES.index(check.profile), len(check.trials), check.id))
    first = finders[0]
    return FaultCheck(
        id=f"{AREA}.{FOUND}.{fault.name}",
        level="MUST",
        profile="quick",
        requirement=f"A deliberately wrong backward MUST fail a check that names it: {fault.idea}",
        why="If a known fault passes on a device, a pass on this device means nothing.",
        catches="a device or dtype whose values are all equal or too inexact for the kit to see a mistake.",
        trials=first.trials,
        judge=first.judge,
        needs=frozenset(),
        source=f"{fault.make.__module__}:{fault.make.__qualname__}",
        dtypes=fault.dtypes or (),
        judges="a fault of the kit",
        fault=fault,
        finders=tuple(finders),
    )
