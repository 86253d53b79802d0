"""The arguments and output gradients of every micro-batch of a row, as the whole stage gets them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.trees import map_leaves, tensors
from gradconform.trial.materials import bare, stable_seed

from .cases import Row
from .described import args_of, called

#: The number of steps of SGD.
STEPS = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: whole arguments, which of them require a gradient, and whole output gradients by output.

    ``outputs`` are zeros like the whole outputs, in their structure, which need a gradient where those do.
    """

    args: tuple[Any, ...]
    require_grad: tuple[bool, ...]
    output_grads: tuple[Tensor | None, ...]
    outputs: Any


def batches_of(  # noqa: PLR0913, PLR0917 (a row, its stage, and where they run)
    stage: Any, words: str, whole: nn.Module, row: Row, dtype: torch.dtype, seed: int
) -> list[list[Batch]]:
    """Return the micro-batches of every step, on the CPU."""
    probe = copy.deepcopy(whole)
    return [
        [_batch(stage, words, probe, row, dtype, (seed, step, mb)) for mb in range(row.microbatches)]
        for step in range(STEPS)
    ]


def _batch(  # noqa: PLR0913, PLR0917 (as above)
    stage: Any, words: str, probe: nn.Module, row: Row, dtype: torch.dtype, drawn: tuple[int, ...]
) -> Batch:
    given = args_of(stage, words, *drawn)
    marked = any(isinstance(one, Tensor) and one.requires_grad for one in given)
    require = tuple(
        isinstance(one, Tensor) and one.is_floating_point() and (one.requires_grad or not marked) for one in given
    )
    args = tuple(_cast(one, dtype) for one in given)
    leaves = (one.detach().requires_grad_(need) if need else one for one, need in zip(args, require, strict=True))
    outputs = map_leaves(bare, called(f"{words}: whole()(*args)", probe, *leaves))
    generator = torch.Generator().manual_seed(stable_seed("sharded-grads", *drawn))
    grads = tuple(_grad_of(output, row, generator, place) for place, output in enumerate(tensors(outputs)))
    return Batch(args, require, grads, outputs)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(dtype) if value.is_floating_point() else value


def _grad_of(output: Tensor, row: Row, generator: torch.Generator, place: int) -> Tensor | None:
    """Return the gradient of an output; the first of several has none in some rows."""
    if not output.is_floating_point() or (row.output_grads == "none" and place == 0):
        return None
    if row.output_grads == "expanded":
        return torch.randn((), generator=generator).to(output.dtype).expand(output.shape)
    return torch.randn(output.shape, generator=generator).to(output.dtype)
