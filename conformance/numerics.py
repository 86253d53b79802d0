"""What the sizes of the contract do not show of a device: whether long sums are added up in a wider float."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradconform.devices.device import device_of
from gradconform.tolerance import FAR, Partials, judge

#: As many ones add up to 256 in bfloat16, and to 2048 in float16, where every partial sum is rounded to the dtype.
_LENGTH = 4096

_SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "aten::mm": lambda ones: ones.reshape(1, -1) @ ones.reshape(-1, 1),
    "aten::sum": lambda ones: ones.sum(),
}


def long_sum_fault(device: torch.device, dtype: torch.dtype) -> tuple[str, str] | None:
    """Return the operation that adds many ones up wrong on ``device``, and what it gave; None where none does.

    An operation that the device does not have adds nothing wrong.
    """
    for name, add in _SUMS.items():
        ones = torch.ones(_LENGTH, dtype=dtype)
        try:
            got = device_of(device).to_cpu(add(ones.to(device)))
        except (RuntimeError, TypeError):  # it is told where a check asks for it
            continue
        wanted = add(ones)
        if not judge(got, wanted, add(ones.double()), Partials(), factor=FAR).passed:
            return name, f"it adds {_LENGTH} ones up to {float(got):g}, the CPU to {float(wanted):g}"
    return None
