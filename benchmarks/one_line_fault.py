"""A target with a fault of one line: W adds nothing to a gradient that is already there.

It is written as a user writes one, and gives the benchmarks a run with many failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from gradconform.reference import split

stage_backward = split.stage_backward
stage_backward_input = split.stage_backward_input


def stage_backward_weight(
    weights: Iterator[nn.Parameter], param_groups: list[dict[str, Any]]
) -> tuple[Tensor | None, ...]:
    """Compute the gradients of the weights, and keep those that were there."""
    parameters = list(weights)
    before = [None if one.grad is None else one.grad.clone() for one in parameters]
    split.stage_backward_weight(iter(parameters), param_groups)
    for parameter, grad in zip(parameters, before, strict=True):
        if grad is not None and parameter.grad is not None:
            parameter.grad.copy_(grad)  # the fault
    return tuple(parameter.grad for parameter in parameters)
