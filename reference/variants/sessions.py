"""Sessions for right variants: I and W as two graph walks, and sums outside of ``.grad``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from gradconform.adapter import Capabilities, StageSpec
from gradconform.reference import walked_twice as split
from gradconform.reference.autograd import input_grads, run_backward
from gradconform.reference.recomputed import edge_of, input_pass, recomputes, start_at
from gradconform.target.session import StageSession
from gradconform.trees import as_tuple

Grads = tuple[Tensor | None, ...]
#: Tensors and edges; torch's stubs know no list of both.
Roots = list[Any]
Pending = tuple[list[GradientEdge], list[Tensor]]


def roots_of(outputs: Any, grads: Any) -> tuple[Roots, list[Tensor]]:
    """Return outputs that require a gradient with theirs; a loss starts with one, and None means no gradient."""
    roots, given = split.match(as_tuple(outputs), grads)
    return roots, [start_at(root, None) if grad is None else grad for root, grad in zip(roots, given, strict=True)]


def grads_of(
    roots: Roots | list[GradientEdge], starts: list[Tensor], sought: list[Tensor], *, keep: bool = False
) -> Grads:
    """Return the gradient of every tensor of ``sought``, each in its own storage."""
    if not roots or not sought:
        return (None,) * len(sought)
    found = run_backward(roots, starts, sought, keep_graph=keep)
    return tuple(owned(found.get(id(tensor))) for tensor in sought)


def owned(grad: Tensor | None) -> Tensor | None:
    """Return a copy that can be sent: contiguous, unless it is sparse."""
    if grad is None or grad.layout != torch.strided:
        return grad
    return grad.detach().clone(memory_format=torch.contiguous_format)


def needing(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that require a gradient."""
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]


def slots(values: Sequence[Any], grads: Sequence[Tensor | None]) -> Grads:
    """Return one gradient per value; a tensor in two slots gets a gradient for each."""
    remaining = iter(grads)
    return tuple(next(remaining) if isinstance(v, Tensor) and v.requires_grad else None for v in values)


def added(held: Tensor | None, grad: Tensor | None) -> Tensor | None:
    """Return the sum, added in place if ``held`` exists."""
    if held is None or grad is None:
        return grad if held is None else held
    if held.layout != torch.strided and grad.layout == torch.strided:  # torch adds a sparse tensor to a dense one alone
        return grad + held
    return held.add_(grad)


def everything(
    outputs: Any, output_grads: Any, inputs: Sequence[Any], weights: Iterable[Tensor]
) -> tuple[Grads, Grads]:
    """Return the gradients of the inputs, one per slot, and those of the weights."""
    roots, starts = roots_of(outputs, output_grads)
    wanted = needing(inputs)
    found = grads_of(roots, starts, [*wanted, *weights])
    return slots(inputs, found[: len(wanted)]), found[len(wanted) :]


class Session(StageSession):
    """A session that keeps edges and gradients from I to W."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.pending: deque[tuple[int, Pending]] = deque()

    @property
    def trainable(self) -> dict[str, Tensor]:
        """The tensors that currently require a gradient, by parameter name."""
        return {name: parameter for name, parameter in self._parameters.items() if parameter.requires_grad}

    def backward(self, mb: int, output_grads: Any) -> Grads:
        if any(isinstance(arg, nn.Parameter) for arg in self._forwards[mb][0]):
            # Such a leaf accumulates as a parameter, so its own gradient needs a separate entry.
            found = Session.backward_input(self, mb, output_grads)
            Session.backward_weight(self, mb)
            return found
        args, outputs = self._forwards.pop(mb)
        roots, starts = roots_of(outputs, output_grads)
        found = input_grads(args, lambda _: torch.autograd.backward(roots, starts) if roots else None)
        return tuple(map(owned, found))

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        args, outputs = self._forwards.pop(mb)
        roots, starts = roots_of(outputs, output_grads)
        wanted = needing(args)
        if recomputes(roots):
            found, edges, starts = input_pass(roots, starts, wanted, self.trainable.values())
        else:
            found, edges = self.walk(roots, starts, wanted), [edge_of(root) for root in roots]
        self.pending.append((mb, (edges, [start.detach().clone() for start in starts])))
        return slots(args, tuple(map(owned, found)))

    def walk(self, roots: Roots, starts: list[Tensor], wanted: list[Tensor]) -> Grads:
        """Return the gradients of the inputs, and keep the graph."""
        return grads_of(roots, starts, wanted, keep=True)

    def take(self, mb: int) -> Pending:
        """Return and remove the context of the W of ``mb``."""
        for position, (waiting, pending) in enumerate(self.pending):
            if waiting == mb:
                del self.pending[position]
                return pending
        msg = f"W of micro-batch {mb} has nothing to do: there was no I, or its W has run"
        raise RuntimeError(msg)

    def backward_weight(self, mb: int) -> None:
        edges, starts = self.take(mb)
        if edges and self.trainable:
            self.weigh(edges, starts)

    def weigh(self, edges: list[GradientEdge], starts: list[Tensor]) -> None:
        """Run W."""
        torch.autograd.backward(edges, starts, inputs=list(self.trainable.values()))

    def close(self) -> None:
        super().close()
        self.pending.clear()


#: What is claimed of an I that writes some parameter gradients, and says so.
EARLY: dict[str, Any] = {
    "input_pass_touches_params": True,
    "hooks": "early",
    "parameter_input": False,
    "changed_in_flight": False,
}


def adapter(session: Callable[[nn.Module, StageSpec], object], **claims: Any) -> object:
    """Return an adapter of these sessions, which claims everything that it does not withhold."""
    return SimpleNamespace(name="variant", capabilities=Capabilities(none_output_grad=True, **claims), open=session)


class Returned(Session):
    """A session that keeps the sums in a dict; .grad is never used."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.sums: dict[str, Tensor | None] = dict.fromkeys(self._parameters)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        args, outputs = self._forwards.pop(mb)
        found, own = everything(outputs, output_grads, args, self.trainable.values())
        self.add(own)
        return found

    def weigh(self, edges: list[GradientEdge], starts: list[Tensor]) -> None:
        self.add(grads_of(edges, starts, list(self.trainable.values())))

    def add(self, grads: Grads) -> None:
        """Add one micro-batch's parameter gradients."""
        for name, grad in zip(self.trainable, grads, strict=True):
            self.store(name, grad)

    def store(self, name: str, grad: Tensor | None) -> None:
        """Add to the sum of one parameter."""
        self.sums[name] = added(self.sums[name], grad)

    def param_grads(self) -> dict[str, Tensor | None]:
        return dict(self.sums)


#: The claims of sums that are stored outside of the parameters.
APART: dict[str, Any] = {"grads_in_param_grad": False, "hooks": "never"}
