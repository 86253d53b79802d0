"""Holds what a rank saw against the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradconform.beside import Held, given
from gradconform.judge.finding import Finding
from gradconform.judge.values import Reference, compare
from gradconform.pipeline.whole_model import Parameter, StepOfWhole
from gradconform.tolerance import Partials


@dataclass(slots=True)
class Seen:
    """What a rank saw of one step. ``output`` and ``losses`` are those of the rank with the last stage, None elsewhere.

    ``held`` names the step in a finding, and collects the ratio of error to bound of every tensor.
    """

    held: Held
    modules: dict[int, nn.Module]
    output: Tensor | None = None
    losses: list[Tensor] | None = None


def findings_of(seen: Seen, plain: StepOfWhole, wide: StepOfWhole) -> Iterator[Finding]:
    """Yield what one step gave that plain autograd does not: output, losses, gradients of every parameter.

    ``plain`` is the whole model in the run's dtype, ``wide`` in float64.
    """
    held = seen.held
    if seen.losses is not None:
        yield from _of_last_stage(seen, plain, wide)
    for index, module in seen.modules.items():
        for name, parameter in module.named_parameters():
            key = index, name
            reference = _grad_reference(key, plain, wide)
            yield from compare(held, held, f"stage {index} {name}", parameter.grad, plain.grads[key], reference)


def _of_last_stage(seen: Seen, plain: StepOfWhole, wide: StepOfWhole) -> Iterator[Finding]:
    held, losses = seen.held, seen.losses or []
    if len(losses) != len(plain.losses):
        text = f"expected {len(plain.losses)} losses, one per micro-batch, got {len(losses)}"
        yield Finding("missing", "the losses", held.action, text)
    yield from compare(held, held, "the output", seen.output, plain.output, given(wide.output))
    for mb, (got, expected, reference) in enumerate(zip(losses, plain.losses, wide.losses, strict=False)):
        yield from compare(held, held, f"the loss of micro-batch {mb}", got.detach(), expected, given(reference))


def _grad_reference(key: Parameter, plain: StepOfWhole, wide: StepOfWhole) -> Reference:
    def reference() -> tuple[Tensor | None, Partials]:
        grad = wide.grads[key]
        return (None if grad is None else grad.cpu().to(torch.float64)), plain.partials.get(key, Partials())

    return reference
