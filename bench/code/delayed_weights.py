"""Linears whose weight gradients are computed later, by what their layers have left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradconform import swap
from gradconform.adapter import StageSpec, Tree
from gradconform.reference.autograd import input_grads, pair_roots
from gradconform.reference.deferred_linear import DeferredLinear
from gradconform.reference.runtime import PlainSession
from gradconform.runtime import StepSpec
from gradconform.target.session import StageSession

from .rebuilt import StageTarget, StepTarget

_Left = list[tuple[nn.Parameter, Callable[[], Tensor]]]


class Accumulating:
    """TransformerEngine-2142 and 3437, mended: what is delayed adds to what the weight has."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.left: _Left = []

    def leave(self, weight: nn.Parameter, gradient: Callable[[], Tensor]) -> None:
        """Keep what computes a weight's gradient."""
        self.left.append((weight, gradient))

    def taken(self) -> _Left:
        """Return what was left since the last time."""
        taken, self.left = self.left, []
        return taken

    def compute(self, taken: _Left) -> None:
        """Compute each weight's gradient, the sum over its uses, and add it."""
        for weight, total in summed(taken):
            with torch.enable_grad():  # through the weight's own node, so that its hooks fire
                root = weight.expand_as(weight)
            torch.autograd.backward(root, total)


def summed(taken: _Left) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield each weight that is trained and the sum of its gradients."""
    sums: dict[nn.Parameter, Tensor] = {}
    for weight, gradient in taken:
        sums[weight] = sums[weight] + gradient() if weight in sums else gradient()
    yield from ((weight, total) for weight, total in sums.items() if weight.requires_grad)


class Overwriting(Accumulating):
    """TransformerEngine-2142: what is delayed is assigned, whatever earlier micro-batches have left there."""

    def compute(self, taken: _Left) -> None:
        """Compute the gradients of one micro-batch, each the sum of a weight's uses, and assign them."""
        for weight, total in summed(taken):
            weight.grad = total


class OneLayerAtATime(Accumulating):
    """TransformerEngine-3437: each layer adds to what stood before the micro-batch, not to what its twin has added."""

    def compute(self, taken: _Left) -> None:
        """Compute each gradient and add it to what the weight had at the beginning."""
        before = {weight: weight.grad for weight, _ in taken}
        for weight, gradient in taken:
            if weight.requires_grad:
                grad, had = gradient(), before[weight]
                weight.grad = grad if had is None else had + grad


class DelayedSession(StageSession):
    """I is a whole backward over swapped Linears; W computes what they have left."""

    store_type: type[Accumulating] = Accumulating

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Swap the Linears of the stage."""
        super().__init__(stage, spec)
        self.store = self.store_type()
        swap(stage, nn.Linear, DeferredLinear, store=self.store)
        self.waiting: dict[int, _Left] = {}

    def backward_input(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run the backward, and keep what was left under the number of the micro-batch."""
        args, outputs = self._forwards.pop(mb)
        self.store.taken()  # what a backward that raised has left
        roots, grads = pair_roots(outputs, output_grads)
        found = input_grads(args, lambda _: torch.autograd.backward(roots, grads) if roots else None)  # type: ignore[arg-type] # torch takes both kinds
        self.waiting[mb] = self.store.taken()
        return found

    def backward_weight(self, mb: int) -> None:
        """Compute what was left."""
        self.store.compute(self.waiting.pop(mb))

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run both."""
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        self.waiting.clear()


class OverwritingSession(DelayedSession):
    """Assigns delayed gradients."""

    store_type = Overwriting


class OneLayerSession(DelayedSession):
    """Forgets the other layer of a tied weight."""

    store_type = OneLayerAtATime


class Flushed(PlainSession):
    """Megatron-DeepSpeed-442, mended: the plain backward of a micro-batch computes what its Linears have left."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Swap the Linears of all stages."""
        super().__init__(modules, spec)
        self.store = Accumulating()
        self.swaps = [swap(stage, nn.Linear, DeferredLinear, store=self.store) for stage in self.running.values()]

    def take_gradients(self) -> None:
        """Compute what was left."""
        self.flush()
        super().take_gradients()

    def flush(self) -> None:
        """Compute the weight gradients of one micro-batch."""
        self.store.compute(self.store.taken())

    def close(self) -> None:
        """Take the layers off again."""
        for one in self.swaps:
            one.undo()


class NeverFlushed(Flushed):
    """Megatron-DeepSpeed-442: only the zero-bubble engine flushes the store."""

    def flush(self) -> None:
        """Nobody asks for them."""
        self.store.taken()


_WITHHELD = (
    "autocast changed_in_flight shared_module complex nested_output nontensor_input parameter_input nongrad_output "
    "weight_before_input"
)
_CLAIMS: dict[str, Any] = {"input_pass_touches_params": True, "hooks": "early"}

delayed = StageTarget("delayed", DelayedSession, _WITHHELD, **_CLAIMS)
overwriting = StageTarget("overwriting", OverwritingSession, _WITHHELD, **_CLAIMS)
one_layer_at_a_time = StageTarget("one-layer-at-a-time", OneLayerSession, _WITHHELD, **_CLAIMS)
_EAGER = {"compiled": "eager", "precision": "unmixed", "tensor_parallel": "whole-layers"}
flushed = StepTarget(Flushed, **_EAGER)
never_flushed = StepTarget(NeverFlushed, **_EAGER)
