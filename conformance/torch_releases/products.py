"""The gradients of a product's factors, computed from what its node has saved, as the engine would compute them.

Nodes show what they have saved under private names. Where a name is missing, or anything is not as plain as the
formulas need it, there is no result, and the engine computes the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
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

#: The saved factors by the name of a node's type, in the order of the node's inputs.
_FACTORS = {
    "MmBackward0": ("_saved_self", "_saved_mat2"),
    "AddmmBackward0": ("_saved_mat1", "_saved_mat2"),
    "BmmBackward0": ("_saved_self", "_saved_mat2"),
}


def is_product(kind: type) -> bool:
    """Tell whether nodes of a type of torch's own are products with all the names that the formulas need."""
    factors = _FACTORS.get(kind.__name__, ())
    needed = [*factors]
    if kind.__name__ != "BmmBackward0":
        needed += [f"{factor}_sym_{fact}" for factor in factors for fact in ("sizes", "strides")]
    if kind.__name__ == "AddmmBackward0":
        needed += ["_saved_alpha", "_saved_beta"]
    return bool(needed) and all(hasattr(kind, name) for name in needed)


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
    return getattr(forward_ad, level) >= 0 or getattr(torch._C, modes)() > 0  # noqa: SLF001 (named above)


def factor_grads(node: Node, grad: Tensor, places: Sequence[int]) -> list[Tensor] | None:
    """Return the gradients of a product's inputs at ``places``, given that of its output; None if the engine has to.

    Raises as the engine does if the node's tensors were freed or have changed since. Gradients are not recorded only if
    the caller has seen to it (``torch.no_grad``).
    """
    if type(grad) is not Tensor or grad.layout is not torch.strided or not grad.dtype.is_floating_point:
        return None
    name = type(node).__name__
    formula, factors = (_batched if name == "BmmBackward0" else _product), _FACTORS[name]
    if name == "AddmmBackward0":
        if not node._saved_alpha == node._saved_beta == 1:  # type: ignore[attr-defined] # noqa: SLF001
            return None
        found = [_added(node, grad) if place == 0 else formula(node, grad, factors, place == 1) for place in places]
    else:
        found = [formula(node, grad, factors, place == 0) for place in places]
    return None if any(one is None for one in found) else found  # type: ignore[return-value] # none is None


def _factor(node: Node, name: str, grad: Tensor) -> Tensor | None:
    """Return a saved factor if it is none of a subclass, strided, and of the gradient's dtype and device."""
    saved = getattr(node, name)
    fits = type(saved) is Tensor and saved.layout is torch.strided and saved.dtype is grad.dtype
    return saved if fits and saved.device == grad.device else None


def _product(node: Node, grad: Tensor, factors: tuple[str, str], first: bool) -> Tensor | None:  # noqa: FBT001
    """Return the gradient of a factor of a product of matrices, laid out as ``mm_mat1_backward`` of torch does it."""
    sought, other = factors if first else factors[::-1]
    strides = getattr(node, f"{sought}_sym_strides")
    if len(strides) != 2:  # noqa: PLR2004 (a sparse matrix has no strides)
        return None
    factor = _factor(node, other, grad)
    if factor is None:
        return None
    by_columns = strides[0] == 1 and strides[1] == getattr(node, f"{sought}_sym_sizes")[0]
    if first:
        return factor.mm(grad.t()).t() if by_columns else grad.mm(factor.t())
    return grad.t().mm(factor).t() if by_columns else factor.t().mm(grad)


def _batched(node: Node, grad: Tensor, factors: tuple[str, str], first: bool) -> Tensor | None:  # noqa: FBT001
    """Return the gradient of a factor of a batch of products."""
    factor = _factor(node, factors[first], grad)
    if factor is None:
        return None
    return grad.bmm(factor.transpose(1, 2)) if first else factor.transpose(1, 2).bmm(grad)


def _added(node: Node, grad: Tensor) -> Tensor | None:
    """Return the gradient of what is added to a product, summed to its shape."""
    below, output = node.next_functions[0]
    leaf = getattr(below, "variable", None)
    if leaf is not None:
        return grad.sum_to_size(leaf.shape)
    metadata: Any = getattr(below, "_input_metadata", None)
    return grad.sum_to_size(tuple(metadata[output].shape)) if metadata else None
