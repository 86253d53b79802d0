"""Plain autograd: a function that runs it, and its adapter, the oracle, driven like every implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from gradconform.target.session import StageSession, let_go
from gradconform.torch_releases.edges import EDGE
from gradconform.trees import as_tuple, flattened, leaves, map_leaves

from .recomputed import Root, edge_of, input_pass, needs_grad, one_backward, recomputes, start_at

if TYPE_CHECKING:
    from gradconform.adapter import StageSpec, Tree


@dataclass(frozen=True, slots=True)
class Passed:
    """One stage after its forward: the outputs or loss, and the tensors whose gradients are compared."""

    stage: nn.Module
    args: tuple[Any, ...]
    outputs: Tree


def run_forward(
    stages: Iterable[nn.Module],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    separately: bool = False,
) -> list[Passed]:
    """Return the outputs of stages run forward as one model, each with the outputs of the previous one as input.

    ``around`` is entered around each stage. If ``separately``, each stage receives its own leaves instead of the
    previous stage's outputs, so that a backward ends there.
    """
    passed: list[Passed] = []
    for stage in stages:
        with around():
            outputs = stage(*args, **kwargs)
        passed.append(Passed(stage, tuple(args), outputs))
        args = as_tuple(map_leaves(leaf_of, outputs) if separately else outputs)
    return passed


def leaf_of(value: Any) -> Any:
    """Return a tensor as a leaf on the same memory, with the same need of a gradient; anything else unchanged."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def run_backward(
    roots: Sequence[Tensor | GradientEdge],
    grads: Sequence[Tensor | None],
    sought: Iterable[Any],
    *,
    keep_graph: bool = False,
) -> dict[int, Tensor | None]:
    """Return, by id, the gradient of every sought tensor that requires one, after a backward from ``roots``."""
    wanted = {id(tensor): tensor for tensor in sought if isinstance(tensor, Tensor) and tensor.requires_grad}
    if not roots or not wanted:
        return dict.fromkeys(wanted)
    if all(tensor.is_leaf for tensor in wanted.values()) and recomputes(roots):
        given = one_backward(roots, grads, list(wanted.values()), keep_graph=keep_graph, hooks=True)
        return dict(zip(wanted, given, strict=True))
    found = torch.autograd.grad(
        roots,  # type: ignore[arg-type] # torch takes both kinds in one list
        list(wanted.values()),
        grads,
        retain_graph=keep_graph,
        allow_unused=True,
    )
    return dict(zip(wanted, found, strict=True))


def accumulate(loss: Tensor, parameters: Iterable[nn.Parameter]) -> dict[int, Tensor]:
    """Return each parameter's gradient from a loss by id, after adding it to ``.grad``."""
    trained = list(parameters)
    found = run_backward([loss], [None], trained)
    added = {key: grad for key, grad in found.items() if grad is not None}
    for parameter in trained:
        grad = added.get(id(parameter))
        if grad is not None:
            parameter.grad = grad.clone() if parameter.grad is None else parameter.grad + grad
    return added


class AutogradSession(StageSession):
    """One stage under plain autograd.

    B is ``torch.autograd.backward``; I is the same over the arguments only, W over the parameters only. If a part of
    the forward must run again, I is B, and W adds the gradients that B gave the parameters. A None output gradient
    means that no gradient flows through that output.
    """

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Store the stage; nothing is changed in it."""
        super().__init__(stage, spec)
        self._weight_roots: dict[int, tuple[list[GradientEdge], list[Tensor]]] = {}

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments, from one backward over everything."""
        if any(isinstance(arg, nn.Parameter) for arg in self._forwards[mb][0]):
            # Such a leaf accumulates as a parameter, so its own gradient has to be computed separately.
            found = self.backward_input(mb, output_grads)
            self.backward_weight(mb)
            return found
        args, outputs = self._forwards.pop(mb)
        roots, grads = pair_roots(outputs, output_grads)
        return input_grads(
            args,
            lambda _: torch.autograd.backward(roots, grads) if roots else None,  # type: ignore[arg-type] # as above
        )

    def backward_input(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments; parameters are not changed. The outputs themselves are freed."""
        args, outputs = self._forwards.pop(mb)
        roots, grads = pair_roots(outputs, output_grads)
        starts = [start_at(root, grad) for root, grad in zip(roots, grads, strict=True)]
        if recomputes(roots):
            wanted = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
            given, edges, added = input_pass(roots, starts, wanted, self._parameters.values())
            self._weight_roots[mb] = edges, added
            remaining = iter(given)
            return tuple(next(remaining) if isinstance(arg, Tensor) and arg.requires_grad else None for arg in args)

        def walk(inputs: list[Tensor]) -> None:
            if roots and inputs:
                torch.autograd.backward(roots, starts, inputs=inputs, retain_graph=True)  # type: ignore[arg-type] # as above

        found = input_grads(args, walk)
        self._weight_roots[mb] = [edge_of(root) for root in roots], starts
        return found

    def backward_weight(self, mb: int) -> None:
        """Accumulate the gradients of the parameters into ``.grad``."""
        roots, grads = self._weight_roots.pop(mb)
        trainable = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        if roots and trainable:
            torch.autograd.backward(roots, grads, inputs=trainable)

    def release_outputs(self, mb: int, unsent: tuple[int, ...]) -> None:
        """Free the outputs except the numbers ``unsent``: a backward starts at their edges."""
        args, outputs = self._forwards[mb]
        self._forwards[mb] = args, let_go(outputs, unsent)

    def put_weight_context(self, mb: int, node: Node, grads: tuple[Tensor | None, ...]) -> None:
        """Make the next W of ``mb`` start at the outputs of ``node``, one gradient per output, None for none."""
        here = [(GradientEdge(node, slot), grad) for slot, grad in enumerate(grads) if grad is not None]
        self._weight_roots[mb] = ([edge for edge, _ in here], [grad for _, grad in here])

    def close(self) -> None:
        """Free every graph."""
        super().close()
        self._weight_roots.clear()


def input_grads(args: tuple[Any, ...], backward: Callable[[list[Tensor]], None]) -> tuple[Tensor | None, ...]:
    """Return the gradients that ``backward`` adds to ``.grad`` of the arguments, and restore the old ``.grad``.

    Accumulation clones, whereas ``torch.autograd.grad`` may return the output gradient itself.
    """
    inputs = list({id(arg): arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad}.values())
    before = [arg.grad for arg in inputs]
    try:
        for arg in inputs:
            arg.grad = None
        backward(inputs)
        return tuple(arg.grad if isinstance(arg, Tensor) and arg.requires_grad else None for arg in args)
    finally:
        for arg, grad in zip(inputs, before, strict=True):
            arg.grad = grad


def pair_roots(roots: Tree, output_grads: Tree) -> tuple[list[Root], list[Tensor | None]]:
    """Return the start tensors of a backward, or the edges of those that were sent, each with its gradient.

    ``output_grads`` is None for a loss (a 0-d tensor, whose gradient is 1); else it mirrors ``roots``. An output is
    skipped if its entry is None, or if it needs no gradient. Raises ``ValueError`` for another structure.
    """
    if output_grads is None:
        found = [root for root in flattened(roots) if needs_grad(root)]
        shapes = [tuple(root.shape) if isinstance(root, Tensor) else ("an edge",) for root in found]
        if any(shapes):
            msg = f"there are no output gradients for outputs of shapes {shapes}; only a 0-d loss goes without"
            raise ValueError(msg)
        return found, [None] * len(found)
    wanted, given = dict(leaves(as_tuple(roots))), dict(leaves(output_grads))
    if wanted.keys() != given.keys():
        msg = f"output gradients {list(given)} do not mirror the outputs {list(wanted)}"
        raise ValueError(msg)
    kept = [(root, given[path]) for path, root in wanted.items() if needs_grad(root) and given[path] is not None]
    return [root for root, _ in kept], [grad for _, grad in kept]


class AutogradAdapter:
    """The oracle. It claims everything that is meaningful for plain autograd."""

    name = "autograd"
    capabilities: Mapping[str, Any] = MappingProxyType(
        {"none_output_grad": True, "param_groups": True, "edge_roots": EDGE.there(), "grad_dtype": True}
    )

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return a session on ``stage``."""
        return AutogradSession(stage, spec)
