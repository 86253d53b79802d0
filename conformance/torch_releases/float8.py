"""Matrix products in float8, which torch before 2.10 has only under a private name."""

from __future__ import annotations

import torch
from torch import Tensor

from .names import Name

#: Unnecessary once all releases have ``torch.nn.functional.scaled_mm``.
SCALED_MM = Name("torch", ("_scaled_mm",), "multiplies in float8")

#: The dtypes to which values and gradients are rounded (arXiv:2209.05433, section 3).
VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2

#: Hardware requires both sides of a matrix to be a multiple of this.
MULTIPLE = 16


def scaled_product(one: Tensor, other: Tensor, scales: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Return ``(one * scale) @ (other * scale)`` of two float8 matrices, summed and returned in ``dtype``.

    Raises :class:`~gradconform.torch_releases.names.UnavailableError` if torch has no such product.
    """
    columns = other.t().contiguous().t()
    found: Tensor = SCALED_MM.find()(one.contiguous(), columns, scale_a=scales[0], scale_b=scales[1], out_dtype=dtype)
    return found
