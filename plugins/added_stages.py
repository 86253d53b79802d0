"""Checks on stages that a hook adds: full and split gradients, beside the contract and no part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gradconform.check import Check
from gradconform.contract import CHECKS
from gradconform.fixtures.programs import full_immediate, split_deferred
from gradconform.fixtures.stages.case import StageCase
from gradconform.plan import Item
from gradconform.plugins.options import Options
from gradconform.trial import Trial

#: Per kind of backward: the check of the contract that does the same on an MLP, the program, and the requirement.
_FORMS = {
    "full": (
        "full.gradients.mlp",
        full_immediate(2),
        "B MUST return every input gradient, and accumulate every parameter gradient, of plain autograd on",
    ),
    "split": (
        "split.gradients.mlp",
        split_deferred(2),
        "I MUST return every input gradient, and W accumulate every parameter gradient, of plain autograd on",
    ),
}


def added_items(stages: Sequence[StageCase], contract: Sequence[Item], options: Options) -> tuple[Item, ...]:
    """Return the items on ``stages``, on every device and dtype of ``contract``, as far as the globs take them."""
    cells = dict.fromkeys((item.device, item.dtype) for item in contract)
    checks = [check for case in stages for check in _checks(case) if _wanted(check.id, options)]
    return tuple(Item(check, device, dtype) for device, dtype in cells for check in checks)


def _checks(case: StageCase) -> Iterator[Check]:
    for kind, (like, program, requirement) in _FORMS.items():
        trial = Trial(stages=(case,), program=program)
        yield replace(
            CHECKS[like],
            id=f"added.{kind}.{case.name}",
            requirement=f"{requirement} {case.special}.",
            trials=(trial,),
            needs=trial.needs,
            seed=None,
        )


def _wanted(check: str, options: Options) -> bool:
    included = not options.checks or any(fnmatchcase(check, pattern) for pattern in options.checks)
    return included and not any(fnmatchcase(check, pattern) for pattern in options.exclude_checks)
