"""The records of the bench, by class."""

from __future__ import annotations

from collections.abc import Iterable

from gradconform.bench.defect import Defect

from . import accumulation, delayed_weights, kernels, losses, pipelines, sharded, shared_steps, stage_backward

__all__ = ["DEFECTS", "by_id"]


def by_id(defects: Iterable[Defect]) -> dict[str, Defect]:
    """Return defects by their names; raise ``ValueError`` if two have the same name."""
    found: dict[str, Defect] = {}
    for defect in defects:
        if defect.id in found:
            msg = f"two records are named {defect.id!r}; give each a part"
            raise ValueError(msg)
        found[defect.id] = defect
    return found


#: Every defect by its name, class by class.
DEFECTS = by_id(
    defect
    for some in (stage_backward, delayed_weights, losses, accumulation, pipelines, sharded, shared_steps, kernels)
    for defect in some.DEFECTS
)
