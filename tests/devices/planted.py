"""Wrong kernels, which temporarily replace torch's own on the CPU or another device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor


@contextlib.contextmanager
def planted(name: str, kernel: Callable[..., Any], key: str = "CPU", *, with_keyset: bool = False) -> Iterator[None]:
    """Replace ``aten::name`` by ``kernel`` in a context, on the devices of a dispatch key.

    ``with_keyset``, the kernel gets torch's dispatch keys as its first argument.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns the author of an override, which this is
            library.impl(name, kernel, key, with_keyset=with_keyset, allow_override=True)
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def planted_over(name: str, wrong: Callable[..., Any], key: str) -> Iterator[None]:
    """Replace ``aten::name`` by a function of the device's own kernel and its arguments, on a dispatch key.

    The function may call the device's kernel, and runs there. So a fault can be planted on a real device, such as CUDA.
    """
    packet, _, overload = name.partition(".")
    right = torch.library.get_kernel(getattr(getattr(torch.ops.aten, packet), overload or "default"), key)

    def replaced(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return wrong(partial(right.call_boxed, keys), *args, **kwargs)

    with planted(name, replaced, key, with_keyset=True):
        yield


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """Return a tensor's values as read by a kernel that ignores strides."""
    contiguous = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, contiguous, tensor.storage_offset())


def tanh_backward_ignoring_strides(grad: Tensor, output: Tensor) -> Tensor:
    """Return tanh's gradient, computed with the strides of the output gradient ignored."""
    return as_if_contiguous(grad) * (1 - output * output)


def tanh_backward_too_large(grad: Tensor, output: Tensor) -> Tensor:
    """Return a gradient of tanh that is 12.5 % too large."""
    return grad * (1 - output * output) * 1.125


def tanh_backward_mixing_rows(grad: Tensor, output: Tensor) -> Tensor:
    """Return a gradient of tanh with each row added to its neighbour."""
    right = grad * (1 - output * output)
    return right + 0.25 * right.roll(1, 0) if right.dim() else right
