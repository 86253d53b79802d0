"""A plugin: the device of docs/devices.md with wrong copies of columns, as ``MISCOPIES`` says.

``reads`` copies a column to the CPU without its gaps, ``copies`` also on the device and from the CPU, and ``all`` also
shows other memory than a column's. ``kernel`` is ``reads`` with a wrong sum. ``numbers`` copies subnormal numbers as 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import abacus  # type: ignore[import-not-found]  # the test writes it from the page
import torch
from torch import Tensor

ATEN, KIND = torch.ops.aten, os.environ["MISCOPIES"]


def is_column(x: Any) -> bool:
    """Return whether a tensor on the device has gaps between its elements."""
    if not isinstance(x, Tensor) or x.device.type != "abacus" or x.layout is not torch.strided or x.numel() < 2:
        return False
    return min(x.stride()) > 1


def as_strided(x: Tensor, *args: Any) -> Tensor:
    """Return the view, as the device's own kernel does."""
    found: Tensor = ATEN.as_strided.default._op_dk(torch._C.DispatchKey.CPU, x, *args)
    return found


def without_gaps(x: Tensor) -> Tensor:
    """Return the elements in memory, from the first one of a column on."""
    return as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())


def reads_wrong(op: Any, x: Tensor, *args: Any, **options: Any) -> Any:
    """Copy or clone a column without its gaps."""
    wrong = is_column(x) and (KIND != "reads" or options.get("device") == torch.device("cpu"))
    return abacus.run(op, without_gaps(x) if wrong else x, *args, **options)


def writes_wrong(into: Tensor, x: Tensor, *waits: bool) -> Any:
    """Write into a column, or from one, without the gaps."""
    abacus.run(ATEN.copy_.default, *(without_gaps(one) if is_column(one) else one for one in (into, x)), *waits)
    return into


def loses_subnormal(op: Any, x: Tensor, *args: Any, **options: Any) -> Any:
    """Copy to the CPU with 0 for numbers below the smallest normal one."""
    found = abacus.run(op, x, *args, **options)
    if options.get("device") != torch.device("cpu") or not found.is_floating_point():
        return found
    return found.where((found.abs() >= torch.finfo(found.dtype).tiny) | found.isnan(), 0.0)


def as_strided_wrong(x: Tensor, size: Any, stride: Any, offset: int | None = None) -> Any:
    """Show the first element under a column in place of all of its memory."""
    of_memory = is_column(x) and list(stride) == [1]
    return as_strided(x, size, [0] if of_memory else stride, offset)


def wrong_sum(x: Tensor, *args: Any, **options: Any) -> Any:
    """Add the elements in memory of a column."""
    return abacus.run(ATEN.sum.dim_IntList, without_gaps(x) if is_column(x) else x, *args, **options)


LIBRARY = torch.library.Library("aten", "IMPL")
KERNELS: dict[str, dict[str, Callable[..., Any]]] = {
    "reads": {"_to_copy": partial(reads_wrong, ATEN._to_copy.default)},
    "numbers": {"_to_copy": partial(loses_subnormal, ATEN._to_copy.default)},
    "kernel": {"_to_copy": partial(reads_wrong, ATEN._to_copy.default), "sum.dim_IntList": wrong_sum},
}
KERNELS["copies"] = {
    **KERNELS["reads"], "clone": partial(reads_wrong, ATEN.clone.default), "copy_": writes_wrong,
}  # fmt: skip
KERNELS["all"] = {**KERNELS["copies"], "as_strided": as_strided_wrong}
for name, kernel in KERNELS[KIND].items():
    LIBRARY.impl(name, kernel, "PrivateUse1", allow_override=True)
