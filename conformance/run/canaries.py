"""What shows whether a process that has imported a target still judges: canaries, of which it is known what comes.

A library may patch torch, or the kit, when it is imported. So each process that judges a target judges, before, amid
and after its checks and by the same functions, a few implementations of which all is known: one that is right, and some
that are wrong. Where one of them is judged otherwise, no result of that process counts. Whoever reads what the process
says decides that, from the results of its canaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gradconform.results import Result, Status


@dataclass(frozen=True, slots=True)
class Canary:
    """What a canary does, in words that follow ``a backward``, and what has to come of it."""

    does: str
    status: Status = "failed"


_AREA = "canary"

#: What is held against what the process was before the target was imported, in place of judging a backward.
UNCHANGED = f"{_AREA}.unchanged"

#: The backwards that are judged, by the check id of their results.
BACKWARDS: Mapping[str, Canary] = MappingProxyType(
    {
        f"{_AREA}.right": Canary("that is right", "passed"),
        f"{_AREA}.zeros": Canary("that gives zeros for the gradient of a weight"),
        f"{_AREA}.doubled": Canary("that doubles the gradient of an input"),
        f"{_AREA}.one-element": Canary("of which one element is wrong by 5 %"),
        f"{_AREA}.missing": Canary("that gives a weight no gradient"),
        f"{_AREA}.none": Canary("that gives None for the gradient of an input"),
    }
)

#: The check ids of all results that one look at the process gives.
CANARIES = frozenset({UNCHANGED, *BACKWARDS})


def disbelief(result: Result) -> str | None:
    """Return why a process cannot be believed, by the result of one of its canaries; None where that is as it must be.

    It speaks of the process as one that has imported the target.
    """
    if result.check == UNCHANGED:
        return None if result.status == "passed" else result.message
    canary = BACKWARDS[result.check]
    if result.status == canary.status:
        return None
    if canary.status == "passed":
        told = f" ({result.message})" if result.message else ""
        return f"with the target imported, a backward {canary.does} does not pass{told}"
    return f"with the target imported, a backward {canary.does} is not failed, but {result.status.replace('_', ' ')}"


#: Why a process cannot be believed that has not told of all its canaries.
SILENT = "with the target imported, the process does not tell what came of the backwards that the kit knows to be wrong"


def withdrawn(result: Result, reason: str) -> Result:
    """Return the result that takes the place of one that does not count."""
    return replace(
        result,
        status="error",
        kind="environment",
        message=f"no result of the process that judged this counts: {reason}",
        findings=(),
        headroom=None,
        bit_equal=None,
        repeats_bit_equal=None,
        memory=None,
        oracle_spread=None,
        imprecise=None,
        waiver=None,
    )
