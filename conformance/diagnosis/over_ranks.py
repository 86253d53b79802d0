"""Finds causes of tensors that are wrong on some ranks of a mesh, from what all ranks have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradconform.drive.reference64 import widen
from gradconform.trial.mesh import Mesh

from .cause import Cause, Mistake
from .wrong_tensor import ENOUGH, dense, largest, rounding

#: The tensors of all ranks, by rank.
_Values = Mapping[int, Tensor]


@dataclass(frozen=True)
class OverRanks:
    """One tensor on all ranks: what each has, and what is right there, in float64.

    ``got`` has None for a rank without it. ``eps`` is that of the dtype, and ``parts`` the size of the largest part of
    the sum that it is. ``before`` are the values before the reductions of ``finish``, empty if there are none.
    ``contributions`` are those to what a rank has, by the place of the contributing ranks along the mesh dimension
    ``along``, and then by rank; empty if they are not known. ``alone`` is what a rank would have if the whole stage ran
    with each rank's part of the arguments alone, by that other rank and then by rank. ``of_others`` is what is right
    for the other micro-batches than ``mb``, by micro-batch and then by rank.
    """

    mesh: Mesh
    got: Mapping[int, Tensor | None]
    right: _Values
    eps: float
    parts: float = 0.0
    before: _Values = field(default_factory=dict)
    contributions: Mapping[int, _Values] = field(default_factory=dict)
    along: str = ""
    alone: Mapping[int, _Values] = field(default_factory=dict)
    mb: int = 0
    of_others: Mapping[int, _Values] = field(default_factory=dict)

    @cached_property
    def shown(self) -> dict[int, Tensor]:
        """What the ranks that have it have, in float64."""
        return {rank: dense(widen(one)) for rank, one in self.got.items() if one is not None}

    @cached_property
    def dims(self) -> list[str]:
        """The mesh dimensions with several ranks."""
        return [name for name, size in self.mesh.sizes.items() if size > 1]

    def copied(self, name: str) -> bool:
        """Return whether the ranks along a dimension must have equal values."""
        groups = self.mesh.groups([name])
        return all(self._equal_in(group) for group in groups)

    def _equal_in(self, group: Sequence[int]) -> bool:
        first = self.right.get(group[0])
        return first is not None and all(
            rank in self.right and self.right[rank].shape == first.shape and torch.equal(self.right[rank], first)
            for rank in group
        )

    def size(self, name: str) -> int:
        """Return the number of ranks along a dimension."""
        return self.mesh.sizes[name]

    def is_right(self, rank: int) -> bool:
        """Return whether a rank has the right value, within rounding."""
        return rank in self.shown and self.agree({rank: self.shown[rank]}, {rank: self.right[rank]}, proof=False)

    def agree(self, values: _Values, others: _Values, *, proof: bool = True) -> bool:
        """Return whether values are equal within rounding; as ``proof``, also better than chance."""
        if not values or values.keys() - others.keys() or any(values[r].shape != others[r].shape for r in values):
            return False
        one, other = _flat(values), _flat({rank: others[rank] for rank in values})
        if not one.numel() or not bool(torch.isfinite(one).all() and torch.isfinite(other).all()):
            return False
        scale = max(largest(other), largest(one), self.parts)
        off, allowed = largest(one - other), rounding(self.eps, scale)
        if not proof:
            return off <= allowed
        size = float(other.square().mean().sqrt())
        near = max(off, self.eps * scale)
        digits = math.log2(size / near) if size > near else 0.0
        return off <= allowed and digits * torch.unique(other).numel() >= ENOUGH

    def summed(self, values: _Values, along: Sequence[str]) -> dict[int, Tensor]:
        """Return the sum of the values along some dimensions, on every rank; empty if it has no shape."""
        found: dict[int, Tensor] = {}
        for group in self.mesh.groups(along):
            own = [values[rank] for rank in group if rank in values]
            if len(own) < len(group) or len({one.shape for one in own}) > 1:
                return {}
            total = torch.stack(own).sum(0)
            found |= dict.fromkeys(group, total)
        return found


def of_tensor(over: OverRanks) -> Cause | None:
    """Return the likely cause of a tensor that is wrong on some rank, None if no hypothesis explains it."""
    missing = [rank for rank in over.right if over.got.get(rank) is None]
    if missing:
        return _missing(over, missing)
    for hypothesis in _HYPOTHESES:
        found = next(hypothesis(over), None)
        if found is not None:
            return found
    return None


def of_copies(over: OverRanks) -> Cause | None:
    """Return that the copies of a wrong tensor differ, where :func:`of_tensor` names no cause; None if they do not."""
    return next(_copies(over), None)


def _missing(over: OverRanks, missing: Sequence[int]) -> Cause:
    have = [rank for rank in over.right if rank not in missing]
    if not have:
        return Cause(Mistake.NEVER_ACCUMULATED)
    return Cause(Mistake.ONE_RANK_HAS_IT, slots=tuple(have), names=("None",))


def _one_rank(over: OverRanks) -> Iterator[Cause]:
    """Yield that only some of several copies have the value, and the others have zeros."""
    zero = [rank for rank, one in over.shown.items() if not one.any() and over.right[rank].any()]
    have = [rank for rank in over.shown if over.is_right(rank)]
    if zero and have and len(zero) + len(have) == len(over.shown):
        yield Cause(Mistake.ONE_RANK_HAS_IT, slots=tuple(have), names=("zeros",))
    others = {rank: one for rank, one in over.shown.items() if rank not in have}
    if have and over.agree(others, over.before):
        yield Cause(Mistake.ONE_RANK_HAS_IT, slots=tuple(have), names=("only their own contributions",))


def _reductions(over: OverRanks) -> Iterator[Cause]:
    """Yield a missing sum over a dimension: the ranks' values sum up to the right one."""
    copied = [name for name in over.dims if over.copied(name)]
    for names in ([name] for name in copied):
        total = over.summed(over.shown, names)
        if not _unequal_in(over, names):  # equal copies are scaled
            continue
        if over.agree(total, over.right):
            yield Cause(Mistake.NOT_SUMMED_OVER, names=tuple(names))
        factor = math.prod(over.size(name) for name in names)
        if over.agree(total, _times(over.right, factor)):
            yield Cause(Mistake.NOT_SUMMED_OVER, names=tuple(names), why=_multiplied(names[0], factor))
        if over.agree(total, _times(over.right, 1.0 / factor)):
            yield Cause(Mistake.NOT_SUMMED_OVER, names=tuple(names), why=_divided(names[0], factor))
    if len(copied) > 1 and _unequal_in(over, copied) and over.agree(over.summed(over.shown, copied), over.right):
        yield Cause(Mistake.NOT_SUMMED_OVER, names=tuple(copied))


def _unequal_in(over: OverRanks, names: Sequence[str]) -> bool:
    groups = over.mesh.groups(names)
    return any(not over.agree({0: over.shown[group[0]]}, {0: over.shown[rank]}, proof=False) for group in groups
               for rank in group)  # fmt: skip


def _multiplied(name: str, size: int) -> Cause:
    return Cause(Mistake.TIMES_SIZE_OF, names=(name,), counts=(size,))


def _divided(name: str, size: int) -> Cause:
    return Cause(Mistake.DIVIDED_BY_SIZE_OF, names=(name,), counts=(size,))


def _scales(over: OverRanks) -> Iterator[Cause]:
    """Yield a factor by which the values of all ranks are wrong."""
    for name in over.dims:
        size = over.size(name)
        if over.agree(over.shown, _times(over.right, size)):
            yield _multiplied(name, size)
        if over.agree(over.shown, _times(over.right, 1.0 / size)):
            yield _divided(name, size)
    ranks = over.mesh.ranks
    if len(over.dims) > 1:
        if over.agree(over.shown, _times(over.right, ranks)):
            yield _multiplied("the whole mesh", ranks)
        if over.agree(over.shown, _times(over.right, 1.0 / ranks)):
            yield _divided("the whole mesh", ranks)
    if over.agree(over.shown, _times(over.right, -1.0)):
        yield Cause(Mistake.SIGN_REVERSED)
    factors = _factors(over)
    if factors and math.isclose(min(factors.values()), max(factors.values()), rel_tol=1e-3):
        yield Cause(Mistake.SCALED, factors=(sum(factors.values()) / len(factors),))


#: The fewest different elements that show a factor: one element is a multiple of any other.
_FITS = 3


def _factors(over: OverRanks) -> dict[int, float]:
    """Return the factor by which each rank's value is the right one; empty if some rank's is no multiple."""
    found: dict[int, float] = {}
    for rank, right in over.right.items():
        square = float(right.square().sum())
        if over.shown[rank].shape != right.shape or torch.unique(right).numel() < _FITS:
            return {}
        if not square:
            continue
        factor = float((over.shown[rank] * right).sum()) / square
        if factor == 0.0 or not over.agree({0: over.shown[rank]}, {0: right * factor}):
            return {}
        found[rank] = factor
    return found


def _other_groups(over: OverRanks) -> Iterator[Cause]:
    """Yield a sum over another dimension, or over one along which the ranks have different parts."""
    for right in over.dims:
        for wrong in over.dims:
            if right == wrong or not over.copied(right):
                continue
            total = over.summed(over.shown, [right])
            if over.agree(total, _times(over.right, over.size(wrong))) and _unequal_in(over, [right]):
                yield Cause(Mistake.SUMMED_OVER_OTHER, names=(wrong, right))
            if not over.copied(wrong) and over.agree(total, over.summed(over.right, [wrong])):
                yield Cause(Mistake.SUMMED_OVER_OTHER, names=(wrong, right))
    for name in over.dims:
        if not over.copied(name) and over.agree(over.shown, over.summed(over.right, [name])):
            yield Cause(Mistake.PARTS_SUMMED, names=(name,))


def _parts_of_others(over: OverRanks) -> Iterator[Cause]:
    """Yield that a wrong rank has the part of another rank."""
    wrong = [rank for rank in over.shown if not over.is_right(rank)]
    pairs: list[tuple[int, int]] = []
    for rank in wrong:
        found = next(
            (other for other, right in over.right.items() if over.agree({0: over.shown[rank]}, {0: right})), None
        )
        if found is None:
            return
        pairs.append((rank, found))
    if pairs:
        yield Cause(Mistake.PART_OF_OTHER_RANK, slots=pairs[0])


def _unequal(over: OverRanks) -> Iterator[Cause]:
    """Yield factors by which the ranks' values are wrong, each by its own."""
    factors = _factors(over)
    if len(factors) < 2:  # noqa: PLR2004 (one factor is the scale of all)
        return
    if math.isclose(sum(1.0 / one for one in factors.values()), len(factors), rel_tol=1e-3):
        yield Cause(Mistake.MEAN_OF_RANKS)
    else:
        yield Cause(Mistake.RANKS_SCALED, slots=tuple(factors), factors=tuple(factors.values()))


def _from_before(over: OverRanks) -> Iterator[Cause]:
    """Yield reductions of ``finish`` that leave out a rank, run over another group, or weigh ranks equally."""
    before = over.before
    if before.keys() != over.right.keys() or len({one.shape for one in before.values()}) > 1:
        return
    for name in over.dims:
        if over.copied(name) and over.agree(over.summed(before, [name]), over.right):
            for other in over.dims:
                if other != name and over.agree(over.shown, over.summed(before, [other])):
                    yield Cause(Mistake.SUMMED_OVER_OTHER, names=(other, name))
            for place in range(over.size(name)):
                without = {
                    rank: torch.zeros_like(one) if over.mesh.coordinates[rank][name] == place else one
                    for rank, one in before.items()
                }
                if over.agree(over.shown, over.summed(without, [name])):
                    yield Cause(Mistake.RANK_MISSING, slots=(place,), names=(name,))


def _means(over: OverRanks) -> Iterator[Cause]:
    """Yield that the ranks' values count equally, although the right value weighs them."""
    before = over.before
    if before.keys() != over.right.keys() or len({one.shape for one in before.values()}) > 1:
        return
    for name in over.dims:
        for factor in (1.0, 1.0 / over.size(name)):
            if over.agree(over.shown, _times(over.summed(before, [name]), factor)):
                weights = _weights(over, name)
                if weights is not None and math.isclose(sum(weights), over.size(name) * factor, rel_tol=1e-3):
                    yield Cause(Mistake.MEAN_OF_RANKS)


def _means_alone(over: OverRanks) -> Iterator[Cause]:
    """Yield that the value is the mean of what the whole stage has for each rank's arguments alone.

    A rank without a token has no mean: its part counts as zero.
    """
    if not over.alone:
        return
    kept = [of for of in over.alone.values() if all(bool(torch.isfinite(one).all()) for one in of.values())]
    if len(kept) < 2 or any(one.keys() != over.shown.keys() for one in kept):  # noqa: PLR2004 (one mean is half of it)
        return
    mean = {rank: torch.stack([of[rank] for of in kept]).sum(0) / len(over.alone) for rank in over.shown}
    if over.agree(over.shown, mean):
        yield Cause(Mistake.MEAN_OF_RANKS)


def _contributed(over: OverRanks) -> Iterator[Cause]:
    """Yield contributions along a dimension that are missing: those of all other ranks, or those of one."""
    known = over.contributions
    if not known:
        return
    own = {rank: known[over.mesh.coordinates[rank][over.along]][rank] for rank in over.right}
    if over.agree(over.shown, own):
        yield Cause(Mistake.NOT_SUMMED_OVER, names=(over.along,))
    for left in known:
        rest = {
            rank: torch.stack([of[rank] for other, of in known.items() if other != left]).sum(0) for rank in over.right
        }
        if over.agree(over.shown, rest):
            yield Cause(Mistake.RANK_MISSING, slots=(left,), names=(over.along,))


def _other_microbatches(over: OverRanks) -> Iterator[Cause]:
    """Yield that the value is that of another micro-batch."""
    for mb, values in over.of_others.items():
        if over.agree(over.shown, values):
            yield Cause(Mistake.CONTEXTS_SWAPPED_OR_LATE, microbatches=(mb,), others=(over.mb,))


#: Dtypes in which ranks may communicate, the coarsest first.
_NARROW = (torch.bfloat16, torch.float16, torch.float32)


def _rounded(over: OverRanks) -> Iterator[Cause]:
    """Yield a narrower dtype that holds all values, if they are near the right ones."""
    shown, right = _flat(over.shown), _flat({rank: over.right[rank] for rank in over.shown})
    if shown.shape != right.shape or torch.unique(shown).numel() < _FITS:
        return
    scale, error = max(largest(right), over.parts), largest(shown - right)
    for narrow in _NARROW:
        coarse = torch.finfo(narrow).eps
        if over.eps < coarse and torch.equal(shown.to(narrow).double(), shown):
            if error <= 2.0 * over.mesh.ranks * coarse * scale:
                yield Cause(Mistake.ROUNDED, names=(str(narrow).removeprefix("torch."),))
            return


def _rounded_before(over: OverRanks) -> Iterator[Cause]:
    """Yield a narrower dtype to which the contributions are rounded before they are summed."""
    for narrow in _NARROW:
        if over.contributions and over.eps < torch.finfo(narrow).eps:
            rounded = [_in(narrow, of) for of in over.contributions.values()]
            total = {rank: torch.stack([of[rank] for of in rounded]).sum(0) for rank in over.right}
            if over.agree(over.shown, total):
                names = str(narrow).removeprefix("torch."), over.along
                yield Cause(Mistake.ROUNDED_BEFORE_SUM, names=names)


def _in(dtype: torch.dtype, values: _Values) -> dict[int, Tensor]:
    return {rank: one.to(dtype).double() for rank, one in values.items()}


def _logarithm(over: OverRanks) -> Iterator[Cause]:
    """Yield that every element is too large by the logarithm of a dimension's size."""
    for name in over.dims:
        more = math.log(over.size(name))
        if over.agree(over.shown, {rank: right + more for rank, right in over.right.items()}):
            yield Cause(Mistake.LOGARITHM_COUNTS, names=(name,), counts=(over.size(name),))


def _copies(over: OverRanks) -> Iterator[Cause]:
    """Yield that copies differ, if nothing says more."""
    for name in over.dims:
        if over.copied(name) and _unequal_in(over, [name]):
            yield Cause(Mistake.COPIES_UNEQUAL, names=(name,))


def _weights(over: OverRanks, name: str) -> list[float] | None:
    """Return how often each rank of the first group counts in the right value; None if that explains nothing."""
    group = over.mesh.groups([name])[0]
    columns = torch.stack([over.before[rank].reshape(-1) for rank in group], 1)
    right = over.right[group[0]].reshape(-1)
    if columns.shape[0] <= columns.shape[1] + 1:
        return None
    found = torch.linalg.lstsq(columns, right.unsqueeze(1)).solution.reshape(-1)
    return found.tolist() if over.agree({0: columns @ found}, {0: right}) else None


def _times(values: _Values, factor: float) -> dict[int, Tensor]:
    return {rank: one * factor for rank, one in values.items()}


def _flat(values: _Values) -> Tensor:
    return torch.cat([values[rank].reshape(-1) for rank in sorted(values)])


#: The hypotheses, the simplest first.
_HYPOTHESES = (
    _one_rank, _other_groups, _reductions, _scales, _parts_of_others, _unequal, _from_before, _means, _means_alone,
    _contributed, _logarithm, _other_microbatches, _rounded, _rounded_before,
)  # fmt: skip
