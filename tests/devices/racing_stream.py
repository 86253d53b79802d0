"""A target: the weight gradients of the right split on a side stream, for which nothing waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradconform.reference import split
from gradconform.reference.split import stage_backward, stage_backward_input

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]


def stage_backward_weight(
    weights: Iterator[Tensor],
    param_groups: list[dict[str, Any]],
    retain_graph: bool = False,  # noqa: FBT001, FBT002 (torch's)
) -> Any:
    """Compute all weight gradients on the side stream, like engines that keep products in a store."""
    several = list(weights)
    before = [None if weight.grad is None else weight.grad.clone() for weight in several]
    found = split.stage_backward_weight(iter(several), param_groups, retain_graph)
    current = torch.accelerator.current_stream()
    side = torch.Stream(current.device)
    side.wait_stream(current)
    with side, torch.no_grad():
        for weight, old in zip(several, before, strict=True):
            if weight.grad is not None and old is not None:
                weight.grad = old + (weight.grad - old)
            elif weight.grad is not None:
                weight.grad = weight.grad * 1
    return found
