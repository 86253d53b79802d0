"""Right variants that run W or whole backwards at another time or in another thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from gradconform.adapter import StageSpec
from gradconform.reference.deferred_linear import DeferredLinear, WeightGradStore
from gradconform.target.layer_swap import swap

from .sessions import EARLY, Grads, Pending, Session, adapter


class _Fifo(Session):
    """Defers W in a queue, and refuses any micro-batch except the first in it."""

    def take(self, mb: int) -> Pending:
        if not self.pending or self.pending[0][0] != mb:
            msg = f"W of micro-batch {mb} is not next in the queue: {[waiting for waiting, _ in self.pending]}"
            raise RuntimeError(msg)
        return self.pending.popleft()[1]


class Swapped(Session):
    """Replaces every Linear in place, as zero-bubble pipelines do.

    I runs a plain backward, and W computes the weight gradients that the Linears deferred.
    """

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Swap the layers."""
        super().__init__(stage, spec)
        self.store = self.make_store()
        self.waiting: dict[int, Callable[[], None]] = {}
        swap(stage, nn.Linear, DeferredLinear, store=self.store)

    def make_store(self) -> WeightGradStore:
        """Return the store for the deferred work of the Linears."""
        return WeightGradStore()

    def backward(self, mb: int, output_grads: Any) -> Grads:
        """Run I and W."""
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        """Run the backward, and keep the deferred work by micro-batch number."""
        try:
            return super().backward(mb, output_grads)
        finally:
            self.waiting[mb] = self.store.take()

    def backward_weight(self, mb: int) -> None:
        """Run the deferred work."""
        if mb not in self.waiting:
            msg = f"W of micro-batch {mb} has nothing to do: there was no I, or its W has run"
            raise RuntimeError(msg)
        self.waiting.pop(mb)()

    def close(self) -> None:
        """Drop the deferred work."""
        super().close()
        self.waiting.clear()


class _InAThread(Session):
    """Runs every W in a new thread, and joins it."""

    def weigh(self, edges: list[GradientEdge], starts: list[Tensor]) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(super().weigh, edges, starts).result()


class _AllInOneThread(Session):
    """Runs every backward in one thread other than the caller's."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.thread = ThreadPoolExecutor(1)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        return self.thread.submit(super().backward, mb, output_grads).result()

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        return self.thread.submit(super().backward_input, mb, output_grads).result()

    def backward_weight(self, mb: int) -> None:
        self.thread.submit(super().backward_weight, mb).result()

    def close(self) -> None:
        super().close()
        self.thread.shutdown()


class _AtTheEnd(Session):
    """Runs all W at the end."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.asked: list[Pending] = []

    def weigh(self, edges: list[GradientEdge], starts: list[Tensor]) -> None:
        self.asked.append((edges, starts))

    def finish(self) -> None:
        asked, self.asked = self.asked, []
        for edges, starts in asked:
            super().weigh(edges, starts)

    def close(self) -> None:
        super().close()
        self.asked.clear()


VARIANTS: dict[str, Callable[[], object]] = {
    "first-in-first-out": partial(adapter, _Fifo, weight_order="fifo", parameter_input=False),
    "linears-swapped": partial(adapter, Swapped, **EARLY, autocast=False, shared_module=False),
    "weights-in-a-thread": partial(adapter, _InAThread),
    "all-in-one-thread": partial(adapter, _AllInOneThread),
    "weights-in-the-end": partial(adapter, _AtTheEnd, weight_when="finish", parameter_input=False),
}
