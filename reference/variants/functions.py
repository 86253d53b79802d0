"""Right variants as three functions, with their own form of weight contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from gradconform.reference import walked_twice as split
from gradconform.reference.recomputed import edge_of, input_pass, recomputes

from .sessions import Grads, added, everything, grads_of, needing, owned, roots_of, slots


def _compute_all(
    outputs: Sequence[Tensor], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
) -> tuple[Grads, list[dict[str, Any]]]:
    trainable = [weight for weight in dict.fromkeys(weights) if weight.requires_grad]
    found, own = everything(list(outputs), grads, inputs, trainable)
    return found, [{"added": list(zip(trainable, own, strict=True))}]


def _add_only(weights: Iterator[nn.Parameter], groups: list[dict[str, Any]]) -> Grads:
    for group in groups:
        if "added" not in group:
            msg = "this context was used before"
            raise RuntimeError(msg)
        for parameter, grad in group.pop("added"):
            parameter.grad = added(parameter.grad, grad)
    return tuple(weight.grad for weight in weights)


@dataclass
class _Context:
    """The start of W, in a form that only this variant reads, and only once."""

    edges: list[GradientEdge] | None
    starts: list[Tensor] = field(default_factory=list)

    def use(self) -> tuple[list[GradientEdge], list[Tensor]]:
        """Return the content once."""
        if self.edges is None:
            msg = "this context was used before"
            raise RuntimeError(msg)
        held, self.edges = self.edges, None
        return held, self.starts


def _walked(
    outputs: Sequence[Tensor], grads: Any, inputs: Sequence[Any], weights: Iterable[nn.Parameter]
) -> tuple[Grads, _Context]:
    roots, starts = roots_of(list(outputs), grads)
    weights = dict.fromkeys(weights)
    wanted = needing(inputs)
    if recomputes(roots):
        found, edges, starts = input_pass(roots, starts, wanted, weights)
    else:
        found, edges = grads_of(roots, starts, wanted, keep=True), [edge_of(root) for root in roots]
    return slots(inputs, tuple(map(owned, found))), _Context(edges, [start.detach().clone() for start in starts])


def _accumulate(weights: Iterator[nn.Parameter], context: _Context) -> None:
    edges, starts = context.use()
    trainable = [weight for weight in dict.fromkeys(weights) if weight.requires_grad]
    if edges and trainable:
        torch.autograd.backward(edges, starts, inputs=trainable)


def _walked_into_a_dict(
    outputs: Sequence[Tensor], grads: Any, inputs: Sequence[Any], weights: Iterable[nn.Parameter]
) -> tuple[Grads, dict[str, _Context]]:
    found, context = _walked(outputs, grads, inputs, weights)
    return found, {"context": context}


def _added(weights: Iterator[nn.Parameter], contexts: dict[str, _Context]) -> Grads:
    """Return the gradients that this W added, not the sums."""
    parameters = list(weights)
    before = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    _accumulate(iter(parameters), contexts["context"])
    pairs = [(parameter.grad, held) for parameter, held in zip(parameters, before, strict=True)]
    return tuple(now if now is None or held is None else now - held for now, held in pairs)


def _namespace(input_pass: Callable[..., Any], weight_pass: Callable[..., Any], **claims: Any) -> object:
    return SimpleNamespace(
        stage_backward=split.stage_backward,
        stage_backward_input=input_pass,
        stage_backward_weight=weight_pass,
        gradconform_capabilities={"none_output_grad": True, "param_groups": False, **claims},
    )


VARIANTS: dict[str, Callable[[], object]] = {
    "everything-in-the-input-pass": partial(
        _namespace, _compute_all, _add_only, hooks="never", weight_result=True, changed_in_flight=False
    ),
    "context-of-its-own": partial(_namespace, _walked, _accumulate, weight_result=False),
    "context-in-a-dict": partial(_namespace, _walked_into_a_dict, _added, weight_result=True),
}
