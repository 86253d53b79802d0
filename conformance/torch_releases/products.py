"""The gradients of a product's factors, computed from what its node has saved, as the engine would compute them.

Nodes show what they have saved under private names. Where a name is missing, or anything is not as plain as the
formulas need it, there is no result, and the engine computes the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import Node

from .names import Name
from .node_hooks import is_compiled_autograd_on

_NEEDED = "tells whether gradients can be computed without the engine"
#: The level of forward-mode differentiation, -1 outside.
LEVEL = Name("torch.autograd.forward_ad", ("_current_level",), _NEEDED)
#: How many modes see torch's functions, such as that of ``torch.set_default_device``.
MODES = Name("torch:_C", ("_len_torch_function_stack",), _NEEDED)


@dataclass(frozen=True, slots=True)
class _Factor:
    """One factor of a product: what its gradient needs, by the names of the node's attributes."""

    #: The other factor, which the gradient is multiplied with: on its right side for the first factor.
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


#: The factors by the name of a node's type and their places among its inputs.
_FACTORS = {
    "MmBackward0": _factors("self", "mat2", at=0),
    "AddmmBackward0": _factors("mat1", "mat2", at=1),
    "BmmBackward0": _factors("self", "mat2", at=0, batched=True),
}
#: What is multiplied with a product and with what is added to it, before they are added.
_SCALES = ("_saved_alpha", "_saved_beta")


def is_product(kind: type) -> bool:
    """Tell whether nodes of a type of torch's own are products with all the names that the formulas need."""
    factors = _FACTORS.get(kind.__name__, {})
    needed = [name for factor in factors.values() for name in (factor.other, factor.sizes, factor.strides) if name]
    needed += _SCALES if 0 not in factors else ()
    return bool(factors) and all(hasattr(kind, name) for name in needed)


def engine_is_needed() -> bool:
    """Tell whether something looks on that the engine alone calls or obeys, so that nothing may be computed beside it.

    That is anomaly detection, inference mode, forward-mode differentiation, modes that see torch's functions, and
    compiled autograd.
    """
    if torch.is_anomaly_enabled() or torch.is_inference_mode_enabled() or is_compiled_autograd_on():
        return True
    if not (LEVEL.there(forward_ad) and MODES.there(torch._C)):  # noqa: SLF001 (named above)
        return True
    (level,), (modes,) = LEVEL.spellings, MODES.spellings
    return bool(getattr(forward_ad, level) >= 0 or getattr(torch._C, modes)() > 0)  # noqa: SLF001 (named above)


def factor_grads(node: Node, grad: Tensor, places: Sequence[int]) -> list[Tensor] | None:
    """Return the gradients of a product's inputs at ``places``, given that of its output; None if the engine has to.

    Raises as the engine does if the node's tensors were freed or have changed since. Gradients are not recorded only if
    the caller has seen to it (``torch.no_grad``).
    """
    if type(grad) is not Tensor or grad.layout is not torch.strided or not grad.is_floating_point():
        return None
    factors = _FACTORS[type(node).__name__]
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
    """Return the gradient of a factor, laid out as torch's ``mm_mat1_backward`` and ``mm_mat2_backward`` do it."""
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
    """Return the gradient of what is added to a product, summed to its shape."""
    below, output = node.next_functions[0]
    leaf = getattr(below, "variable", None)
    if leaf is not None:
        return grad.sum_to_size(leaf.shape)
    metadata: Any = getattr(below, "_input_metadata", None)
    return grad.sum_to_size(tuple(metadata[output].shape)) if metadata else None
