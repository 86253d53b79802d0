"""Right implementations written in ways that differ: nothing in the contract may accuse one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradconform.adapter import Capabilities, StageSpec
from gradconform.target.session import StageSession
from gradconform.trees import as_tuple

from . import split
from .autograd import input_grads, run_backward
from .deferred_linear import WeightGradStore, swap_back, swap_linears
from .recomputed import input_pass, recomputes

Grads = tuple[Tensor | None, ...]
Pending = tuple[list[GradientEdge], list[Tensor]]


def _roots(outputs: Any, grads: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Pair outputs that need a gradient with theirs; a loss starts with one, and None means that no gradient flows."""
    roots, given = split.match(as_tuple(outputs), grads)
    return roots, [torch.ones_like(root) if grad is None else grad for root, grad in zip(roots, given, strict=True)]


def _grad(roots: list[Tensor] | list[GradientEdge], starts: list[Tensor], sought: list[Tensor], *, keep: bool) -> Grads:
    """Return the gradient of every tensor of ``sought``, in storage of its own."""
    if not roots or not sought:
        return (None,) * len(sought)
    found = run_backward(roots, starts, sought, keep_graph=keep)
    return tuple(_own(found[id(tensor)]) for tensor in sought)


def _own(grad: Tensor | None) -> Tensor | None:
    """Return a copy that a send would take: contiguous, unless it is sparse."""
    if grad is None or grad.layout != torch.strided:
        return grad
    return grad.clone(memory_format=torch.contiguous_format)


def _needing(values: Sequence[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]


def _slots(values: Sequence[Any], grads: Sequence[Tensor | None]) -> Grads:
    """Give every value its gradient; a tensor that stands in two slots gets one of its own in each."""
    remaining = iter(grads)
    return tuple(next(remaining) if isinstance(v, Tensor) and v.requires_grad else None for v in values)


def _add(held: Tensor | None, grad: Tensor | None) -> Tensor | None:
    if held is None or grad is None:
        return grad if held is None else held
    return held.add_(grad)


def _everything(
    outputs: Any, output_grads: Any, inputs: Sequence[Any], weights: Iterable[nn.Parameter]
) -> tuple[Grads, Grads]:
    """Return the gradients of the inputs, one per slot, and those of the weights."""
    roots, starts = _roots(outputs, output_grads)
    needing = _needing(inputs)
    found = _grad(roots, starts, [*needing, *weights], keep=False)
    return _slots(inputs, found[: len(needing)]), found[len(needing) :]


# ---- functions: everything is computed in I, and W only adds


def _compute_all(
    outputs: Sequence[Tensor], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
) -> tuple[Grads, list[dict[str, Any]]]:
    trainable = [weight for weight in weights if weight.requires_grad]
    found, added = _everything(list(outputs), grads, inputs, trainable)
    return found, [{"added": list(zip(trainable, added, strict=True))}]


def _add_only(weights: Iterator[nn.Parameter], groups: list[dict[str, Any]]) -> Grads:
    for group in groups:
        if "added" not in group:
            msg = "this context was used before"
            raise RuntimeError(msg)
        for parameter, grad in group.pop("added"):
            parameter.grad = _add(parameter.grad, grad)
    return tuple(weight.grad for weight in weights)


def everything_in_the_input_pass() -> object:
    """Return functions that compute all gradients in I, keep those of the parameters, and add them in W."""
    return SimpleNamespace(
        stage_backward=split.stage_backward,
        stage_backward_input=_compute_all,
        stage_backward_weight=_add_only,
        gradconform_capabilities={"none_output_grad": True, "hooks": "never"},
    )


# ---- adapters


class _Session(StageSession):
    """Keeps edges and gradients from I to W."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.pending: deque[tuple[int, Pending]] = deque()
        self.trainable = {name: parameter for name, parameter in self._parameters.items() if parameter.requires_grad}

    def backward(self, mb: int, output_grads: Any) -> Grads:
        args, outputs = self._forwards.pop(mb)
        roots, starts = _roots(outputs, output_grads)
        found = input_grads(args, lambda _: torch.autograd.backward(roots, starts) if roots else None)
        return tuple(map(_own, found))

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        args, outputs = self._forwards.pop(mb)
        roots, starts = _roots(outputs, output_grads)
        needing = _needing(args)
        if recomputes(roots):
            found, edges, starts = input_pass(roots, starts, needing, self.trainable.values())
        else:
            found, edges = _grad(roots, starts, needing, keep=True), [get_gradient_edge(root) for root in roots]
        self.pending.append((mb, (edges, [start.clone() for start in starts])))
        return _slots(args, tuple(map(_own, found)))

    def take(self, mb: int) -> Pending:
        """Return what I left for the W of ``mb``."""
        for position, (waiting, pending) in enumerate(self.pending):
            if waiting == mb:
                del self.pending[position]
                return pending
        msg = f"W of micro-batch {mb} has nothing to do: there was no I, or its W has run"
        raise RuntimeError(msg)

    def backward_weight(self, mb: int) -> None:
        edges, starts = self.take(mb)
        if edges and self.trainable:
            torch.autograd.backward(edges, starts, inputs=list(self.trainable.values()))

    def close(self) -> None:
        super().close()
        self.pending.clear()


#: What is claimed of an I that writes some parameter gradients, and says so.
_EARLY: dict[str, Any] = {"input_pass_touches_params": True, "hooks": "early", "parameter_input": False}


def _adapter(session: Callable[[nn.Module, StageSpec], object], **claims: Any) -> object:
    return SimpleNamespace(name="variant", capabilities=Capabilities(none_output_grad=True, **claims), open=session)


class _Returned(_Session):
    """Keeps the sums in a dict of its own; .grad is never touched."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.sums: dict[str, Tensor | None] = dict.fromkeys(self._parameters)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        args, outputs = self._forwards.pop(mb)
        found, added = _everything(outputs, output_grads, args, self.trainable.values())
        for name, grad in zip(self.trainable, added, strict=True):
            self.store(name, grad)
        return found

    def backward_weight(self, mb: int) -> None:
        edges, starts = self.take(mb)
        found = _grad(edges, starts, list(self.trainable.values()), keep=False)
        for name, grad in zip(self.trainable, found, strict=True):
            self.store(name, grad)

    def store(self, name: str, grad: Tensor | None) -> None:
        self.sums[name] = _add(self.sums[name], grad)

    def param_grads(self) -> dict[str, Tensor | None]:
        return dict(self.sums)


class _FlatBuffer(_Returned):
    """Keeps the sums in one flat buffer per dtype, of which every parameter has a view, as a bucket for a reduction."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.views: dict[str, Tensor] = {}
        for dtype in {parameter.dtype for parameter in self.trainable.values()}:
            held = {name: parameter for name, parameter in self.trainable.items() if parameter.dtype == dtype}
            device = next(iter(held.values())).device
            flat = torch.zeros(sum(parameter.numel() for parameter in held.values()), dtype=dtype, device=device)
            parts = flat.split([parameter.numel() for parameter in held.values()])
            self.views.update({n: part.view(p.shape) for (n, p), part in zip(held.items(), parts, strict=True)})

    def store(self, name: str, grad: Tensor | None) -> None:
        if grad is not None:
            self.sums[name] = self.views[name].add_(grad)


class _Fifo(_Session):
    """Defers W in a queue, and refuses what is not at its head."""

    def take(self, mb: int) -> Pending:
        if not self.pending or self.pending[0][0] != mb:
            msg = f"W of micro-batch {mb} is not next in the queue: {[waiting for waiting, _ in self.pending]}"
            raise RuntimeError(msg)
        return self.pending.popleft()[1]


class _EarlyBiases(_Session):
    """Accumulates biases and norms in I, where their gradient is a by-product, and matrices in W."""

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


class _MainGrad(_Returned):
    """Keeps the sums in float32 at least, whatever the parameters are, as ``main_grad`` is kept."""

    def store(self, name: str, grad: Tensor | None) -> None:
        wide = None if grad is None else grad.to(torch.promote_types(grad.dtype, torch.float32))
        super().store(name, wide)


class _Swapped(_Session):
    """Swaps every Linear in place, as zero-bubble pipelines do.

    I runs a plain backward, W what the Linears left behind for their weights.
    """

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.store = WeightGradStore()
        self.waiting: dict[int, Callable[[], None]] = {}
        self.swapped = swap_linears(stage, self.store)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        try:
            return super().backward(mb, output_grads)
        finally:
            self.waiting[mb] = self.store.take()

    def backward_weight(self, mb: int) -> None:
        if mb not in self.waiting:
            msg = f"W of micro-batch {mb} has nothing to do: there was no I, or its W has run"
            raise RuntimeError(msg)
        self.waiting.pop(mb)()

    def close(self) -> None:
        super().close()
        self.waiting.clear()
        swap_back(self.swapped)


#: The right variants by name.
VARIANTS: dict[str, Callable[[], object]] = {
    "everything-in-the-input-pass": everything_in_the_input_pass,
    "gradients-returned": partial(_adapter, _Returned, grads_in_param_grad=False, hooks="never"),
    "flat-buffer": partial(_adapter, _FlatBuffer, grads_in_param_grad=False, hooks="never", sparse_grads=False),
    "first-in-first-out": partial(_adapter, _Fifo, weight_order="fifo", parameter_input=False),
    "biases-in-the-input-pass": partial(_adapter, _EarlyBiases, **_EARLY),
    "main-grad-in-float32": partial(_adapter, _MainGrad, grads_in_param_grad=False, hooks="never"),
    "linears-swapped": partial(_adapter, _Swapped, **_EARLY),
}
