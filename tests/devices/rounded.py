"""A CPU with less precise float32, like some accelerators, for tests of the numeric profile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: Operations that compute with TF32 on an H100, where cuDNN runs them.
CONVOLUTIONS = ("convolution", "mkldnn_rnn", "mkldnn_convolution")


def tf32(tensor: Tensor) -> Tensor:
    """Return the values rounded to 10 bits of mantissa, to nearest."""
    bits = tensor.contiguous().view(torch.int32) + (1 << 12)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


class Tf32(TorchDispatchMode):
    """A mode that rounds the factors of float32 convolutions to TF32 while torch's switch for cuDNN is on."""

    def __init__(self, parts: tuple[str, ...] = CONVOLUTIONS, planted: float = 0.0, *, rounds: bool = True) -> None:
        super().__init__()
        self.parts, self.planted, self.rounds = parts, planted, rounds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        chosen = any(part in func.name() for part in self.parts)
        if not chosen:
            return func(*args, **(kwargs or {}))
        if self.rounds and torch.backends.cudnn.allow_tf32:
            args = _pytree.tree_map(_rounded, args)
        found = func(*args, **(kwargs or {}))
        return _pytree.tree_map(lambda leaf: _scaled(leaf, 1 + self.planted), found) if self.planted else found


def _rounded(leaf: Any) -> Any:
    return tf32(leaf) if isinstance(leaf, Tensor) and leaf.dtype == torch.float32 else leaf


def _scaled(leaf: Any, factor: float) -> Any:
    return leaf * factor if isinstance(leaf, Tensor) and leaf.dtype == torch.float32 else leaf
