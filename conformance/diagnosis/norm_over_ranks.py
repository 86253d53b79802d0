"""Finds causes of a clipping norm that is wrong on some ranks of a mesh, from what each rank's gradients are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradconform.trial.mesh import Mesh

from .cause import Cause, Mistake, numbered


@dataclass(frozen=True, slots=True)
class NormPart:
    """The square of the norm of one parameter's gradient: of the whole, and of each rank's part.

    ``copies`` is the number of ranks that have each element.
    """

    name: str
    square: float
    by_rank: Mapping[int, float]
    copies: int


#: How near a norm must be to that of a hypothesis.
_NORM_TOLERANCE = 1e-4


def of_norm(got: Mapping[int, float], parts: Sequence[NormPart], mesh: Mesh, eps: float) -> Cause | None:
    """Return the likely cause of a norm that is wrong on some rank."""
    near = max(_NORM_TOLERANCE, 16.0 * eps)
    alone = [*_norms_of_one_part(list(got), parts[0])] if len(parts) == 1 else []
    for cause, squares in (*alone, *_norms(list(got), parts, mesh)):
        if all(math.isclose(one, math.sqrt(max(squares[rank], 0.0)), rel_tol=near) for rank, one in got.items()):
            return cause
    return None


def _norms_of_one_part(ranks: Sequence[int], part: NormPart) -> Iterator[tuple[Cause, dict[int, float]]]:
    """Yield that the norm of one parameter has the part of one rank alone."""
    for rank, square in part.by_rank.items():
        if square < part.square:
            cause = Cause(Mistake.NORM_OF_ONE_PART, names=(part.name, numbered("rank", [rank])))
            yield cause, dict.fromkeys(ranks, square)


def _norms(ranks: Sequence[int], parts: Sequence[NormPart], mesh: Mesh) -> Iterator[tuple[Cause, dict[int, float]]]:
    """Yield the possible mistakes, the commonest first, each with the square of the norm on every rank."""
    total = sum(part.square for part in parts)
    copied = [part for part in parts if part.copies > 1]

    def everywhere(square: float) -> dict[int, float]:
        return dict.fromkeys(ranks, square)

    if copied:
        counted = sum(part.square * part.copies for part in parts)
        yield Cause(Mistake.NORM_COUNTS_COPIES, counts=(max(part.copies for part in copied),)), everywhere(counted)
    own = {rank: sum(part.by_rank.get(rank, 0.0) for part in parts) for rank in ranks}
    yield Cause(Mistake.NORM_OF_OWN_RANK), own
    yield Cause(Mistake.NORM_MEAN_OF_RANKS), everywhere((sum(math.sqrt(one) for one in own.values()) / len(own)) ** 2)
    if copied:
        left = total - sum(part.square for part in copied)
        yield Cause(Mistake.NORM_LEAVES_OUT, names=("the parameters that several ranks have",)), everywhere(left)
    some = [part for part in parts if part.square]
    for part in some:
        yield Cause(Mistake.NORM_LEAVES_OUT, names=(part.name,)), everywhere(total - part.square)
    sizes = {**mesh.sizes, "the whole mesh": mesh.ranks}
    for part in some:
        for times in dict.fromkeys((2, *sizes.values())):
            if times > 1:
                squares = everywhere(total + (times - 1) * part.square)
                yield Cause(Mistake.NORM_COUNTS, names=(part.name,), counts=(times,)), squares
    for name, size in sizes.items():
        if size > 1:
            yield Cause(Mistake.NORM_TIMES_ROOT, names=(name,), counts=(size,)), everywhere(total * size)
