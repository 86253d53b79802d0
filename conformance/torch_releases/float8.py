"""Products of matrices in float8, which torch has under a private name alone in the releases before 2.10."""

from __future__ import annotations

import torch
from torch import Tensor

from .names import Name

#: Goes where all releases have ``torch.nn.functional.scaled_mm``.
SCALED_MM = Name("torch", ("_scaled_mm",), "multiplies in float8")

#: What values are rounded to, and what gradients are (arXiv:2209.05433, section 3).
VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2

#: A multiple of this is what both sides of a matrix have to be on hardware.
MULTIPLE = 16


def scaled_product(one: Tensor, other: Tensor, scales: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Return ``(one * scale) @ (other * scale)`` of two float8 matrices, summed and given in ``dtype``.

    Raises :class:`~gradconform.torch_releases.names.UnavailableError` where torch has no such product.
    """
    columns = other.t().contiguous().t()
    found: Tensor = SCALED_MM.find()(one.contiguous(), columns, scale_a=scales[0], scale_b=scales[1], out_dtype=dtype)
    return found
