"""Holds what a rank saw against the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradconform.judge.finding import Finding
from gradconform.judge.values import Reference, compare
from gradconform.pipeline.whole_model import Parameter, StepOfWhole
from gradconform.tolerance import Partials


@dataclass(slots=True)
class Seen:
    """What a rank saw of one step. ``output`` and ``losses`` are those of the rank with the last stage, None elsewhere.

    ``action`` names the step in a finding; ``headrooms`` collects the ratio of error to bound of every tensor.
    """

    action: str
    modules: dict[int, nn.Module]
    output: Tensor | None
    losses: list[Tensor] | None
    headrooms: list[float] = field(default_factory=list)
    zeros_for_none: bool = False
    factor: float = 1.0
    spread: dict[int, float] = field(default_factory=dict)


def findings_of(seen: Seen, plain: StepOfWhole, wide: StepOfWhole) -> Iterator[Finding]:
    """Yield what one step gave that plain autograd does not: output, losses, gradients of every parameter.

    ``plain`` is the whole model in the run's dtype, ``wide`` in float64.
    """
    if seen.losses is not None:
        yield from _of_last_stage(seen, plain, wide)
    for index, module in seen.modules.items():
        for name, parameter in module.named_parameters():
            key = index, name
            reference = _grad_reference(key, plain, wide)
            yield from compare(seen, seen, f"stage {index} {name}", parameter.grad, plain.grads[key], reference)


def _of_last_stage(seen: Seen, plain: StepOfWhole, wide: StepOfWhole) -> Iterator[Finding]:
    losses = seen.losses or []
    if len(losses) != len(plain.losses):
        text = f"expected {len(plain.losses)} losses, one per micro-batch, got {len(losses)}"
        yield Finding("missing", "the losses", seen.action, text)
    yield from compare(seen, seen, "the output", seen.output, plain.output, _given(wide.output))
    for mb, (got, expected, reference) in enumerate(zip(losses, plain.losses, wide.losses, strict=False)):
        yield from compare(seen, seen, f"the loss of micro-batch {mb}", got.detach(), expected, _given(reference))


def _given(reference: Tensor) -> Reference:
    return lambda: (reference.cpu(), Partials().with_(reference))


def _grad_reference(key: Parameter, plain: StepOfWhole, wide: StepOfWhole) -> Reference:
    def reference() -> tuple[Tensor | None, Partials]:
        grad = wide.grads[key]
        return (None if grad is None else grad.cpu().to(torch.float64)), plain.partials.get(key, Partials())

    return reference
