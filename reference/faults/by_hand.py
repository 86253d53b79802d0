"""Faults of pairing inside a weight context, in its tuple of gradients per node."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradconform.target.resolve import Target

from .alterations import Context, Functions, Grads, alters, output_grads, target, weight_passes
from .registry import fault


def _tuples(edit: Callable[[Grads], Grads]) -> Functions:
    """Return functions whose W edits the gradient tuple of every node."""

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        for group in groups:
            if "grads" in group:
                group["grads"] = [edit(tuple(grads)) for grads in group["grads"]]
        run(parameters, groups)

    return weight_passes(around)


@fault(
    "grad_tuple.by_hand.two",
    "grad_tuple.by_hand.three",
    "grad_tuple.by_hand.two-first-none",
    cause={"kind": "outputs_missing", "names": ["slot"], "slots": [1, 2]},
)
def first_of_a_node_only() -> Target:
    """Only the first gradient of a node's outputs is used."""
    return target(_tuples(lambda grads: grads[:1]))


@fault(
    "grad_tuple.by_hand.two",
    "grad_tuple.by_hand.three",
    "grad_tuple.by_hand.three-last-none",
    cause={"kind": "outputs_missing", "names": ["slot"], "slots": [1]},
)
def last_of_a_node_dropped() -> Target:
    """The second to last gradient of a node's outputs is dropped."""
    return target(_tuples(lambda grads: grads if len(grads) < 2 else (*grads[:-2], None, grads[-1])))


@fault(
    "grad_tuple.by_hand.two-first-none",
    "grad_tuple.by_hand.three-first-none",
    "grad_tuple.by_hand.three-middle-none",
    cause="none_shifts",
)
def none_shifts_the_slots_of_a_node() -> Target:
    """None is filtered out of a node's gradients, so that the later ones move up a slot."""
    return target(_tuples(lambda grads: tuple(grad for grad in grads if grad is not None)))


@fault(
    "grad_tuple.by_hand.one-none", "grad_tuple.by_hand.two-all-none", "grad_tuple.by_hand.three-all-none", raises=True
)
@alters(_tuples)
def all_none_refused(grads: Grads) -> Grads:
    """A node is refused if all its gradients are None."""
    if all(grad is None for grad in grads):
        msg = "no gradient reached this node"
        raise RuntimeError(msg)
    return grads


@fault(
    "*.gradients.output-chunks",
    "*.gradients.output-unbound",
    "grad_tuple.by_hand.two",
    "grad_tuple.by_hand.three",
    cause="output_grads_summed",
)
def outputs_of_a_node_summed_into_the_first() -> Target:
    """The gradients of all outputs of a node are added up and passed to its first output."""

    def summed(grads: Grads) -> Grads:
        present = [grad for grad in grads if grad is not None]
        alike = len({grad.shape for grad in present}) == 1
        return (torch.stack(present).sum(0), *[None] * (len(grads) - 1)) if len(present) > 1 and alike else grads

    def edit(outputs: list[Tensor], grads: object) -> object:
        if not isinstance(grads, list):
            return grads
        nodes = [getattr(output, "grad_fn", None) for output in outputs]
        return list(summed(tuple(grads))) if len(nodes) > 1 and len(set(nodes)) == 1 and None not in nodes else grads

    return target(output_grads(edit, _tuples(summed)))
