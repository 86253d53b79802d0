"""The gradients of a product's factors, computed from its node's saved values as the engine computes them.

Nodes show their saved values under private names. If a name is missing, or a value does not have the plain form that
the formulas need, there is no result. The engine then computes the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import Node

from .names import Name
from .node_hooks import is_compiled_autograd_on

_NEEDED = "shows whether gradients can be computed without the engine"
#: The level of forward-mode differentiation; -1 outside.
LEVEL = Name("torch.autograd.forward_ad", ("_current_level",), _NEEDED)
#: The number of modes that see torch's functions, such as that of ``torch.set_default_device``.
MODES = Name("torch:_C", ("_len_torch_function_stack",), _NEEDED)


@dataclass(frozen=True, slots=True)
class _Factor:
    """One factor of a product: the values for its gradient, by the names of the node's attributes."""

    #: The other factor, which multiplies the gradient: on its right side for the first factor.
    other: str
    is_first: bool
    #: Its own sizes and strides; "" for a batch of matrices, for which torch has one layout.
    sizes: str
    strides: str


def _factors(first: str, second: str, *, at: int, batched: bool = False) -> dict[int, _Factor]:
    def factor(own: str, other: str, *, is_first: bool) -> _Factor:
        layout = ("", "") if batched else (f"_saved_{own}_sym_sizes", f"_saved_{own}_sym_strides")
        return _Factor(f"_saved_{other}", is_first, *layout)

    return {at: factor(first, second, is_first=True), at + 1: factor(second, first, is_first=False)}


#: The factors by the name of a node's type and their positions among its inputs.
_FACTORS = {
    "MmBackward0": _factors("self", "mat2", at=0),
    "AddmmBackward0": _factors("mat1", "mat2", at=1),
    "BmmBackward0": _factors("self", "mat2", at=0, batched=True),
}
#: The factors of a product and of its added term, applied before the sum.
_SCALES = ("_saved_alpha", "_saved_beta")


@lru_cache(maxsize=len(_FACTORS))
def _factors_of(kind: type) -> dict[int, _Factor]:
    return _FACTORS[kind.__name__]


def is_product(kind: type) -> bool:
    """Return whether nodes of a torch type are products with all the names that the formulas need."""
    factors = _FACTORS.get(kind.__name__, {})
    needed = [name for factor in factors.values() for name in (factor.other, factor.sizes, factor.strides) if name]
    needed += _SCALES if 0 not in factors else ()
    return bool(factors) and all(hasattr(kind, name) for name in needed)


def engine_is_needed() -> bool:
    """Return whether a feature is on that only the engine supports, so that no gradient may be computed outside it.

    The features are anomaly detection, inference mode, forward-mode differentiation, modes that see torch's functions,
    and compiled autograd.
    """
    if torch.is_anomaly_enabled() or torch.is_inference_mode_enabled() or is_compiled_autograd_on():
        return True
    (level,), (modes,) = LEVEL.spellings, MODES.spellings
    at, count = getattr(forward_ad, level, None), getattr(torch._C, modes, None)  # noqa: SLF001 (named above)
    return bool(at is None or count is None or at >= 0 or count() > 0)


def factor_grads(node: Node, grad: Tensor, places: Sequence[int]) -> list[Tensor] | None:
    """Return the gradients of a product's inputs at ``places``, given its output's; None if the engine must run.

    Raises as the engine does if the node's tensors were freed or have changed since. The caller must switch off
    recording of gradients (``torch.no_grad``) if none is wanted.
    """
    if type(grad) is not Tensor or grad.layout is not torch.strided or not grad.is_floating_point():
        return None
    factors = _factors_of(type(node))
    if 0 not in factors and not all(getattr(node, name) == 1 for name in _SCALES):
        return None
    found = []
    for place in places:
        factor = factors.get(place)
        one = _added(node, grad) if factor is None else _factor_grad(node, grad, factor)
        if one is None:
            return None
        found.append(one)
    return found


def _factor_grad(node: Node, grad: Tensor, factor: _Factor) -> Tensor | None:
    """Return the gradient of a factor, in the layout of torch's ``mm_mat1_backward`` and ``mm_mat2_backward``."""
    other = getattr(node, factor.other)
    if type(other) is not Tensor or other.layout is not torch.strided:
        return None
    if other.dtype is not grad.dtype or other.device != grad.device:
        return None
    if not factor.strides:
        return grad.bmm(other.transpose(1, 2)) if factor.is_first else other.transpose(1, 2).bmm(grad)
    strides = getattr(node, factor.strides)
    if not strides:  # a sparse matrix has none
        return None
    if strides[0] == 1 and strides[1] == getattr(node, factor.sizes)[0]:
        return other.mm(grad.t()).t() if factor.is_first else grad.t().mm(other).t()
    return grad.mm(other.t()) if factor.is_first else other.t().mm(grad)


def _added(node: Node, grad: Tensor) -> Tensor | None:
    """Return the gradient of a product's added term, summed to its shape."""
    below, output = node.next_functions[0]
    leaf = getattr(below, "variable", None)
    if leaf is not None:
        return grad.sum_to_size(leaf.shape)
    metadata: Any = getattr(below, "_input_metadata", None)
    return grad.sum_to_size(tuple(metadata[output].shape)) if metadata else None
