"""The dtypes that a run accepts, and whether a device supports a dtype, found by trying."""

from __future__ import annotations

import torch
from torch import Tensor

from .device import Device
from .names import DTYPE_NAMES, dtype_name
from .probe import WrongAnswerError

#: The dtypes that a run accepts.
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}

#: Dtypes that are tried too: complex stages of the contract run in the complex dtype that matches the run's dtype.
COMPLEX = ("complex64", "complex128")


def dtype_named(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype; raise ``SelectionError`` for one that the kit does not run in."""
    return DTYPES[dtype_name(dtype)]


def try_dtype(device: Device, name: str) -> None:
    """Raise if ``device`` cannot do in a dtype the work of a stage: keep values, multiply, go backward."""
    dtype: torch.dtype = getattr(torch, name)
    real = dtype.to_real() if dtype.is_complex else dtype
    # 1 plus one unit in the last place: a dtype with fewer digits, such as a float32 disguised as float64, loses it.
    fine = torch.tensor([[1.0, 1.0 + torch.finfo(real).eps], [2.0, 3.0]], dtype=real).to(dtype)
    moved = fine.to(device.torch_device)
    _same("a round trip", device, moved, fine)
    _same("x * 1", device, moved * 1, fine)
    whole = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=real).to(dtype).to(device.torch_device)
    # Written out: a value computed on this CPU would be wrong if torch itself is wrong.
    _same("a matrix product", device, whole @ whole, torch.tensor([[7.0, 10.0], [15.0, 22.0]], dtype=real).to(dtype))
    _same("a gradient", device, _gradient(whole), torch.tensor([[7.0, 11.0], [9.0, 13.0]], dtype=real).to(dtype))


def _gradient(values: Tensor) -> Tensor:
    leaf = values.detach().requires_grad_()
    product = leaf @ leaf
    (product.real if product.is_complex() else product).sum().backward()
    if leaf.grad is None:
        msg = "no gradient came"
        raise WrongAnswerError(msg)
    return leaf.grad


def _same(what: str, device: Device, got: Tensor, wanted: Tensor) -> None:
    seen = device.to_cpu(got)
    for where, found in (("", got), (" on its way back", seen)):
        if found.dtype != wanted.dtype:
            msg = f"{what} silently became {found.dtype}{where}"
            raise WrongAnswerError(msg)
    if not torch.equal(seen, wanted):
        msg = f"{what} is wrong: expected {wanted.tolist()}, got {seen.tolist()}"
        raise WrongAnswerError(msg)


def product_keeps_digits(device: Device) -> bool:
    """Return whether a float32 product keeps all digits of its factors; a product rounded to TF32 does not."""
    fine = torch.full((16, 16), 1.0 + 2**-20)
    unit = torch.eye(16)
    product = device.to_cpu(fine.to(device.torch_device) @ unit.to(device.torch_device))
    return torch.equal(product, fine)
