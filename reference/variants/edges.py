"""Right variants at the edges of what checks vary: threads, retained graphs, copies, registries, errors, infinities."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from gradconform.adapter import StageSpec
from gradconform.trees import map_leaves

from .sessions import Grads, Pending, Session, adapter

_Found = TypeVar("_Found")


class _Threads(Session):
    """Runs each action on a thread of its own, which ends with it."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        return _on_thread(partial(super().forward, mb, args, target))

    def backward(self, mb: int, output_grads: Any) -> Grads:
        return _on_thread(partial(super().backward, mb, output_grads))

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        return _on_thread(partial(super().backward_input, mb, output_grads))

    def backward_weight(self, mb: int) -> None:
        return _on_thread(partial(super().backward_weight, mb))


def _on_thread(call: Callable[[], _Found]) -> _Found:
    """Return the result of a call on a new thread, with the caller's grad mode and autocast."""
    grad, lower = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")

    def run() -> _Found:
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype, enabled=lower):
            return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


class _Retaining(Session):
    """Keeps the graph of a W that must retain it until the end of the step, and runs no W a second time."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.retained: list[list[GradientEdge]] = []

    def backward_weight(self, mb: int) -> None:
        edges, starts = self.take(mb)
        keep = self._spec.retain_graph or mb in self._spec.retained
        if edges and self.trainable:
            torch.autograd.backward(edges, starts, inputs=list(self.trainable.values()), retain_graph=keep)
        if keep:
            self.retained.append(edges)

    def finish(self) -> None:
        super().finish()
        self.retained.clear()

    def close(self) -> None:
        super().close()
        self.retained.clear()


class _Refusing(Session):
    """Raises in finish if work of the step is left, as after an error."""

    def finish(self) -> None:
        left = [*self._forwards, *(mb for mb, _ in self.pending)]
        self._forwards.clear()
        self.pending.clear()
        if left:
            msg = f"micro-batches {left} have not run backward"
            raise RuntimeError(msg)


class _Copying(Session):
    """Copies every output gradient into contiguous memory before it is used."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        return super().backward(mb, map_leaves(_copied, output_grads))

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        return super().backward_input(mb, map_leaves(_copied, output_grads))


def _copied(grad: Any) -> Any:
    return grad.detach().clone(memory_format=torch.contiguous_format) if isinstance(grad, Tensor) else grad


class _Registered(Session):
    """Keeps every module and parameter of the process in registries that hold them weakly."""

    modules: ClassVar[weakref.WeakSet[nn.Module]] = weakref.WeakSet()
    names: ClassVar[weakref.WeakKeyDictionary[nn.Module, list[str]]] = weakref.WeakKeyDictionary()

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.modules.add(stage)
        self.names[stage] = list(self._parameters)


#: The session whose action runs in this thread.
_CURRENT: ContextVar[Session | None] = ContextVar("current", default=None)


class _Current(Session):
    """Keeps the current session in a variable of the thread while an action runs."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        return self._as_current(partial(super().forward, mb, args, target))

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        return self._as_current(partial(super().backward_input, mb, output_grads))

    def backward_weight(self, mb: int) -> None:
        return self._as_current(partial(super().backward_weight, mb))

    def take(self, mb: int) -> Pending:
        """Return and remove the context of the W of ``mb`` from the session that runs in this thread."""
        current = _CURRENT.get()
        return super().take(mb) if current is self or current is None else current.take(mb)

    def _as_current(self, call: Callable[[], _Found]) -> _Found:
        token = _CURRENT.set(self)
        try:
            return call()
        finally:
            _CURRENT.reset(token)


class _Listing(Session):
    """Lists the parameters of each micro-batch anew, from its own graph, and asks for the gradients of no others."""

    def weigh(self, edges: list[GradientEdge], starts: list[Tensor]) -> None:
        used = _leaves_of(edges)
        wanted = [one for one in self.trainable.values() if id(one) in used]
        if wanted:
            torch.autograd.backward(edges, starts, inputs=wanted)


def _leaves_of(edges: list[GradientEdge]) -> set[int]:
    """Return the ids of the leaves that a graph accumulates into."""
    found, seen, left = set[int](), set[Any](), [edge.node for edge in edges]
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            found |= {id(variable)} if (variable := getattr(node, "variable", None)) is not None else set()
            left += [below for below, _ in node.next_functions if below is not None]
    return found


class _Infinite(Session):
    """Computes inf where plain autograd has NaN, as other formulas do that agree for finite numbers."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        return tuple(map(_without_nan, super().backward(mb, output_grads)))

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        return tuple(map(_without_nan, super().backward_input(mb, output_grads)))


def _without_nan(grad: Tensor | None) -> Tensor | None:
    if grad is None or grad.layout is not torch.strided or not grad.is_floating_point():
        return grad
    return torch.where(torch.isnan(grad), torch.inf, grad)


class _Later(Session):
    """Counts None among the output gradients as it comes, and runs no backward that starts nowhere."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        args, _ = self._forwards[mb]
        given: list[Any] = []
        map_leaves(given.append, output_grads)
        if output_grads is not None and all(grad is None for grad in given):
            self._forwards.pop(mb)
            self.pending.append((mb, ([], [])))
            return (None,) * len(args)
        return super().backward_input(mb, output_grads)


VARIANTS: dict[str, Callable[[], object]] = {
    "each-action-on-its-own-thread": partial(adapter, _Threads),
    "retains-the-graphs-that-it-must": partial(adapter, _Retaining, retain_graph=True),
    "refuses-to-finish-with-work-left": partial(adapter, _Refusing),
    "output-gradients-copied-first": partial(adapter, _Copying),
    "registered-weakly": partial(adapter, _Registered),
    "current-session-of-the-thread": partial(adapter, _Current),
    "parameters-listed-per-micro-batch": partial(adapter, _Listing),
    "inf-for-nan": partial(adapter, _Infinite),
    "nothing-run-for-none-alone": partial(adapter, _Later),
}
