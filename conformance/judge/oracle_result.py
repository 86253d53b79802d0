"""The result of an oracle that needs no second device, for one sample of an operation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding

#: Samples with larger arguments take minutes on a CPU in 16 bits, and show no more.
LARGEST = 2**18
TOO_LARGE = f"more than {LARGEST:,} elements"

#: Why a kernel is not judged whose results change on the CPU, too, if its arguments are made contiguous.
WRONG_ON_CPU = "torch's CPU kernel is wrong in this layout"

#: Why a value that differs is not judged: the kit knows it, or gave the kernel's arguments, by such a copy only.
COPIED_WRONG = "the device's own copies are wrong (see its pre-flight)"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleResult:
    """The finding, if any; how many values were ``compared``, of which kernels or samples (``tried``).

    ``not_tried`` names those that were not compared, by reason.
    """

    finding: Finding | None = None
    compared: int = 0
    tried: frozenset[str] = frozenset()
    not_tried: Mapping[str, Collection[str]] = field(default_factory=dict)


def combined(several: Iterable[OracleResult]) -> dict[str, Any]:
    """Return the comparisons of several samples as JSON values."""
    found = list(several)
    not_tried = by_reason(one.not_tried for one in found)
    return {
        "compared": sum(one.compared for one in found),
        "tried": sorted(frozenset[str]().union(*(one.tried for one in found))),
        "not_tried": {why: sorted(names) for why, names in sorted(not_tried.items())},
    }


def by_reason(several: Iterable[Mapping[str, Collection[str]]]) -> dict[str, set[str]]:
    """Return the merged names of all mappings, by reason."""
    found: dict[str, set[str]] = {}
    for one in several:
        for why, names in one.items():
            found.setdefault(why, set()).update(names)
    return found
