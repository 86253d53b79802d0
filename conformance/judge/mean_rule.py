"""The rule of the mean: finds gradients biased over many draws, or with errors wider than rounding.

Rounding to nearest errs as often up as down, so it cancels over many elements and many draws. A wrong factor does not
cancel. (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41, 2019.) The
rule compares slopes of regressions through the origin, of a gradient on that of reference64, one per draw. The section
"How a mean is judged" of docs/contract.md has the rule; its floors come from tolerances.toml.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.results import Sort
from gradconform.tolerance import mean_floor

#: The upper bound on the probability that a correct implementation fails in one series; the expected rate is far lower.
CHANCE = 1e-7

#: The largest sum of the shifts, as a multiple of the root of the sum of their squares. If each shift is as likely to
#: have the other sign, the sum is larger with a probability of at most 2 exp(-STEADY**2 / 2), whatever their
#: distribution (Efron, Student's t-test under symmetry conditions, JASA 64, 1969). The bound does not assume a normal
#: distribution.
STEADY = math.sqrt(2.0 * math.log(2.0 / CHANCE))


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of the gradients of one draw, relative to the reference gradients.

    ``shift`` is the slope of ``g`` on ``g64`` minus the slope of plain autograd's gradient; ``slope`` is the latter
    minus 1. ``square`` and ``oracle_square`` are mean squared errors, divided by the mean square of ``g64``. ``weight``
    is Kish's effective number: how many elements of one size give the same information.
    """

    weight: float
    shift: float
    slope: float
    square: float
    oracle_square: float

    @classmethod
    def of(cls, got: Tensor, oracle: Tensor, reference: Tensor) -> Errors | None:
        """Return the errors of tensors of one shape; None if they are not finite or all zeros."""
        got, oracle, reference = (one.detach().cpu().double() for one in (got, oracle, reference))
        size = float(reference.square().sum())
        own, plain = got - reference, oracle - reference
        square = float(own.square().sum())
        if not (math.isfinite(square) and math.isfinite(size) and size > 0.0):
            return None
        return cls(
            size * size / float(reference.pow(4).sum()),
            float(((got - oracle) * reference).sum()) / size,
            float((plain * reference).sum()) / size,
            square / size,
            float(plain.square().sum()) / size,
        )

    @classmethod
    def together(cls, several: Sequence[Errors]) -> Errors:
        """Return the combined errors of several gradients of one draw, each with its weight."""
        total = sum(one.weight for one in several)
        names = ("shift", "slope", "square", "oracle_square")
        means = (sum(one.weight * getattr(one, name) for one in several) / total for name in names)
        return cls(total, *means)


def judge_shift(draws: int, errors: Sequence[Errors], dtype: torch.dtype) -> tuple[float, float, float]:
    """Return the mean shift, its bound and the error/bound ratio; a ratio above 1 means a bias.

    ``errors`` are those of the draws that were not bit-equal to plain autograd's; the shift of the others is 0. A shift
    is a bias if it is steady, above the floor, and leads away from reference64, in slope or in mean square. An
    implementation that rounds less than plain autograd may undo a bias of plain autograd.
    """
    shift = sum(one.shift for one in errors) / draws
    steady = STEADY * math.sqrt(sum(one.shift**2 for one in errors)) / draws
    bound = max(steady, mean_floor("shift", dtype) * torch.finfo(dtype).eps)
    plain = sum(one.slope for one in errors) / draws
    own_square, plain_square = sum(one.square for one in errors), sum(one.oracle_square for one in errors)
    away = max(_ratio(abs(plain + shift), abs(plain)), _ratio(math.sqrt(own_square), math.sqrt(plain_square)))
    return shift, bound, min(_ratio(abs(shift), bound), away)


def judge_spread(draws: int, errors: Sequence[Errors], dtype: torch.dtype) -> tuple[float, float, float]:
    """Return the root mean squared error over all draws, its bound and the error/bound ratio.

    An implementation may err twice as far as plain autograd, plus a floor in units of eps.
    """
    error = math.sqrt(sum(one.square for one in errors) / draws)
    plain = math.sqrt(sum(one.oracle_square for one in errors) / draws)
    bound = 2.0 * plain + mean_floor("spread", dtype) * torch.finfo(dtype).eps
    return error, bound, _ratio(error, bound)


def settled(draws: int, equal: int) -> bool:
    """Return whether no series of ``draws`` can become steady, if ``equal`` of them are bit-equal to autograd's."""
    return draws - equal <= STEADY**2


def _ratio(one: float, other: float) -> float:
    if one == 0.0:
        return 0.0
    return one / other if other > 0.0 else sys.float_info.max


def in_series(draws: Iterable[Iterable[tuple[Sort, str, Errors]]]) -> dict[tuple[Sort, str], list[Errors]]:
    """Return the errors of every tensor over all draws, by the tensor's sort and name."""
    found: dict[tuple[Sort, str], list[Errors]] = {}
    for draw in draws:
        for sort, where, errors in draw:
            found.setdefault((sort, where), []).append(errors)
    return found
