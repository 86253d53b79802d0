"""Right variants that walk the graph in other ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradconform.reference.recomputed import input_pass

from .sessions import EARLY, Grads, Roots, Session, adapter, needing, owned, roots_of, slots


class _EarlyBiases(Session):
    """Accumulates biases and norms in I, which computes their gradients anyway, and matrices in W."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        found = super().backward_input(mb, output_grads)
        edges, starts = self.pending[-1][1]
        early = [parameter for parameter in self.trainable.values() if parameter.dim() < 2]
        if edges and early:
            torch.autograd.backward(edges, starts, inputs=early, retain_graph=True)
        return found

    def backward_weight(self, mb: int) -> None:
        edges, starts = self.take(mb)
        late = [parameter for parameter in self.trainable.values() if parameter.dim() >= 2]
        if edges and late:
            torch.autograd.backward(edges, starts, inputs=late)


class _OneByOne(Session):
    """Runs one engine call per parameter."""

    def groups(self) -> Sequence[Sequence[Tensor]]:
        """Return the parameters of each call."""
        return [[parameter] for parameter in self.trainable.values()]

    def weigh(self, edges: list[GradientEdge], starts: list[Tensor]) -> None:
        *groups, last = self.groups()
        for group in groups:
            torch.autograd.backward(edges, starts, inputs=list(group), retain_graph=True)
        torch.autograd.backward(edges, starts, inputs=list(last))


class _LayersInReverse(_OneByOne):
    """Runs one engine call per layer, the last layer first."""

    def groups(self) -> Sequence[Sequence[Tensor]]:
        layers = groupby(self.trainable.items(), key=lambda item: item[0].partition(".")[0])
        return [[parameter for _, parameter in layer] for _, layer in layers][::-1]


class _GraphOfTheGraph(Session):
    """Computes input gradients with create_graph, and frees that graph."""

    def walk(self, roots: Roots, starts: list[Tensor], wanted: list[Tensor]) -> Grads:
        if not roots or not wanted:
            return (None,) * len(wanted)
        found: Grads = torch.autograd.grad(roots, wanted, starts, create_graph=True, allow_unused=True)
        return tuple(None if grad is None else grad.detach() for grad in found)


class _LeftOnTheInputs(Session):
    """Accumulates input gradients into ``.grad`` of the inputs in I, and returns a copy."""

    def walk(self, roots: Roots, starts: list[Tensor], wanted: list[Tensor]) -> Grads:
        inputs = list({id(value): value for value in wanted}.values())
        for value in inputs:
            value.grad = None
        if roots and inputs:
            torch.autograd.backward(roots, starts, inputs=inputs, retain_graph=True)
        return tuple(None if value.grad is None else value.grad.clone() for value in wanted)


class _FullOfBoth(Session):
    """Composes B from I and W."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found


class _HiddenUntilW(Session):
    """Runs a full backward in I, and hides the parameter gradients until W."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        args, outputs = self._forwards.pop(mb)
        roots, starts = roots_of(outputs, output_grads)
        found, edges, held = input_pass(roots, starts, needing(args), self.trainable.values())
        self.pending.append((mb, (edges, held)))
        return slots(args, tuple(map(owned, found)))


VARIANTS: dict[str, Callable[[], object]] = {
    "biases-in-the-input-pass": partial(adapter, _EarlyBiases, **EARLY),
    "one-call-per-parameter": partial(adapter, _OneByOne),
    "layers-in-reverse": partial(adapter, _LayersInReverse),
    "graph-of-the-graph": partial(adapter, _GraphOfTheGraph),
    "left-on-the-inputs": partial(adapter, _LeftOnTheInputs, parameter_input=False),
    "full-of-both": partial(adapter, _FullOfBoth, module_hooks=False),
    "hidden-until-w": partial(adapter, _HiddenUntilW),
}
