"""The plainest substitute for a split: I runs plain autograd's single backward, and W has nothing left to do.

It breaks the contract, which requires that I does not change parameters. No wrong gradient can be its fault: if a
pipeline is wrong with it, the pipeline is at fault. But it fires hooks of parameters in I, and a wrapper may wait for
them in W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from .recomputed import Root
from .split import stage_backward

__all__ = ["stage_backward", "stage_backward_input", "stage_backward_weight"]

gradconform_capabilities = {"input_pass_touches_params": True}


def stage_backward_input(
    stage_outputs_or_loss: Sequence[Root | None],
    output_grads: Sequence[Tensor | None] | None,
    input_values: Sequence[Any],
    weights: Iterator[nn.Parameter],
) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]]]:
    """Accumulate all gradients; return one per input value, and an empty context."""
    del weights
    return stage_backward(list(stage_outputs_or_loss), output_grads, input_values), []


def stage_backward_weight(
    weights: Iterator[nn.Parameter],
    param_groups: list[dict[str, Any]],
    retain_graph: bool = False,  # noqa: FBT001, FBT002 (torch's own signature)
) -> tuple[Tensor | None, ...]:
    """Return the accumulated gradients."""
    del param_groups, retain_graph
    return tuple(weight.grad for weight in weights)
