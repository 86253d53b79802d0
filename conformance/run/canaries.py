"""Canaries: implementations with a known verdict, which show whether a process still judges correctly.

A library may patch torch, or the kit, when it is imported. So each process that judges a target also judges a few known
implementations, before, between and after its checks and by the same functions. One of them is right, the others are
wrong. If one gets another verdict, no result of that process counts. The reader of the process's results decides that,
from the results of its canaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gradconform.results import Result, Status


@dataclass(frozen=True, slots=True)
class Canary:
    """The description of a canary, to follow ``a backward``, and its expected verdict."""

    does: str
    status: Status = "failed"


_AREA = "canary"

#: Compares the process with its state before the target was imported, instead of judging a backward.
UNCHANGED = f"{_AREA}.unchanged"

#: The backwards that are judged, by the check id of their results.
BACKWARDS: Mapping[str, Canary] = MappingProxyType(
    {
        f"{_AREA}.right": Canary("that is right", "passed"),
        f"{_AREA}.zeros": Canary("that returns zeros as the gradient of a weight"),
        f"{_AREA}.doubled": Canary("that doubles the gradient of an input"),
        f"{_AREA}.one-element": Canary("with one element wrong by 5 %"),
        f"{_AREA}.missing": Canary("that leaves a weight without a gradient"),
        f"{_AREA}.none": Canary("that returns None as the gradient of an input"),
    }
)

#: The check ids of all results of one examination of the process.
CANARIES = frozenset({UNCHANGED, *BACKWARDS})


def disbelief(result: Result) -> str | None:
    """Return why a process cannot be trusted, by the result of one of its canaries; None if that is as expected.

    The text describes the process as one that has imported the target.
    """
    if result.check == UNCHANGED:
        return None if result.status == "passed" else result.message
    canary = BACKWARDS[result.check]
    if result.status == canary.status:
        return None
    if canary.status == "passed":
        reported = f" ({result.message})" if result.message else ""
        return f"with the target imported, a backward {canary.does} does not pass{reported}"
    return f"with the target imported, a backward {canary.does} is not failed, but {result.status.replace('_', ' ')}"


#: The reason to distrust a process that has not reported all its canaries.
SILENT = "with the target imported, the process did not report the results of the backwards that are known to be wrong"


def withdrawn(result: Result, reason: str) -> Result:
    """Return the replacement for a result that does not count."""
    return replace(
        result,
        status="error",
        kind="environment",
        message=f"no result of the process that judged this counts: {reason}",
        findings=(),
        error_ratio=None,
        bit_equal=None,
        repeats_bit_equal=None,
        memory=None,
        oracle_spread=None,
        imprecise=None,
        waiver=None,
    )
