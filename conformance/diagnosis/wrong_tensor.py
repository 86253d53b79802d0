"""One wrong tensor, and the test whether a value explains it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen
from gradconform.trees import equal

#: How far a recomputed value may be from the one it explains, in eps of the dtype times the largest part.
_EPS = 16.0

#: In float64 reference64 itself is as inaccurate as the values that it is compared with.
_EPS_64 = 96.0

#: The least number of bits by which a match must be better than chance, for one of some dozens of hypotheses.
ENOUGH = 16.0

#: The same for a hypothesis with an arbitrary factor, which finds near values more easily.
FITTED = 48.0


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong tensor ``got`` and the ``right`` one, both dense and in float64.

    ``scale`` is the largest element of all parts of either; ``eps`` is that of the tensor's own dtype. ``error`` is the
    largest error of the tensor.
    """

    got: Tensor
    right: Tensor
    eps: float
    scale: float
    error: float

    @property
    def allowed(self) -> float:
        """How far an explanation may be from the wrong tensor: rounding, and far less than the error it explains."""
        return min(rounding(self.eps, self.scale), self.error / 4.0)

    def off(self, value: Tensor) -> float:
        """Return how far ``value`` is from the wrong tensor."""
        return largest(self.got - value)

    def explained_by(self, value: Tensor | None, *, fitted: int = 0, enough: float = ENOUGH) -> bool:
        """Return whether ``value`` is the wrong tensor, and better than chance.

        ``fitted`` of its numbers were computed from the wrong tensor, so as many elements prove nothing.
        """
        if value is None or value.shape != self.got.shape:
            return False
        off = self.off(value)
        if not off <= self.allowed:
            return False
        # The probability that a wrong element is this near to a hypothesis by chance is one in 2 ** each.
        near = max(off, self.eps * self.scale)
        each = math.log2(self.error / near) if self.error > near else 0.0
        return (distinct(value - self.right, 2.0 * near) - fitted) * each >= enough


@dataclass(frozen=True, slots=True)
class WrongTensor(Wrong):
    """A wrong tensor of a program, seen after a ``step`` of it."""

    evidence: Evidence
    step: Step


def wrong_tensor(evidence: Evidence, step: Step, got: Tensor, right: Tensor, parts: float) -> WrongTensor | None:
    """Return the wrong tensor of a program, as :func:`wrong_values`."""
    wrong = wrong_values(got, right, parts)
    if wrong is None:
        return None
    return WrongTensor(wrong.got, wrong.right, wrong.eps, wrong.scale, wrong.error, evidence, step)


def wrong_values(got: Tensor, right: Tensor, parts: float) -> Wrong | None:
    """Return the values to explain; None if the difference is not numeric.

    ``parts`` is the largest element of the parts that the right one is the sum of.
    """
    if got.shape != right.shape or not got.numel() or not (got.is_floating_point() or got.is_complex()):
        return None
    wide, right = dense(widen(got)), dense(right)
    sizes = largest(wide), largest(right)  # NaN if an element is
    if not all(map(math.isfinite, sizes)):
        return None
    scale = max(*sizes, parts)
    return Wrong(wide, right, torch.finfo(got.dtype).eps, scale, largest(wide - right))


def rounding(eps: float, scale: float) -> float:
    """Return the largest difference between two ways of computing one value."""
    return (_EPS if eps > torch.finfo(torch.float64).eps else _EPS_64) * eps * scale


def distinct(change: Tensor, near: float) -> int:
    """Return the number of distinct changes: if all elements are one number, one is as informative as all."""
    seen = torch.view_as_real(change) if change.is_complex() else change
    return int(torch.unique((seen[seen.abs() > near] / near).round()).numel()) if near > 0.0 else 0


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor with strides."""
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def flat(tensor: Tensor) -> Tensor:
    """Return the elements in one row, a complex one as two real ones."""
    return torch.view_as_real(tensor.resolve_conj()).reshape(-1) if tensor.is_complex() else tensor.reshape(-1)


def largest(tensor: Tensor | None) -> float:
    """Return the largest absolute value, also of a sparse tensor; 0 without elements."""
    return float(dense(tensor).abs().max()) if tensor is not None and tensor.numel() else 0.0


def is_near(got: object, right: object) -> bool:
    """Return whether two outputs are equal within rounding."""
    if not isinstance(got, Tensor) or not isinstance(right, Tensor):
        return got is right or got == right
    if got.shape != right.shape or got.dtype != right.dtype:
        return False
    if equal(got, right) or not (got.is_floating_point() or got.is_complex()):
        return equal(got, right)
    off = largest(torch.nan_to_num(widen(dense(got)) - widen(dense(right))))
    return off <= 2.0 * rounding(torch.finfo(got.dtype).eps, largest(widen(dense(right))))


def is_value(got: Tensor, value: Tensor) -> bool:
    """Return whether ``got`` is another value within rounding, and better than chance: each element adds its digits."""
    wide = widen(dense(got))
    size = largest(value)
    if wide.shape != value.shape or not (got.is_floating_point() or got.is_complex()) or not size:
        return False
    eps = torch.finfo(got.dtype).eps
    allowed = rounding(eps, size)
    digits = -torch.log2(torch.tensor(allowed / size)).item()
    return largest(wide - value) <= allowed and got.numel() * digits >= ENOUGH
