"""Faults of ``main_grad``: how kernels that add to it misread their flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradconform.adapter import Adapter, StageSpec, claims_of
from gradconform.reference.variants.main_grad import KERNEL, KernelSession, add_to_main_grad
from gradconform.reference.variants.sessions import adapter
from gradconform.target.resolve import Target

from .alterations import alters
from .registry import fault


def _kernel(session: Callable[[nn.Module, StageSpec], object]) -> Target:
    made = cast("Adapter", adapter(session, **KERNEL))
    return Target(text="fault", adapter=made, capabilities=claims_of(made), own_adapter=False)


@fault(
    "accumulate.iterations.*-3",
    "accumulate.in_flight.*",
    cause=({"kind": "missing", "microbatches": [1]}, {"kind": "only", "microbatches": [0]}),
)
@alters(_kernel)
class FlagOfAStepReadInEachMicrobatch(KernelSession):
    """A flag, cleared once per step, says that main_grad has the gradient, so later micro-batches are not added."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.added: dict[Tensor, int] = {}
        self.now = 0

    def backward_weight(self, mb: int) -> None:
        self.now += 1
        super().backward_weight(mb)

    def add(self, weight: Tensor, grad: Tensor) -> None:
        if self.added.setdefault(weight, self.now) == self.now:  # the uses of one micro-batch
            super().add(weight, grad)

    def zero_grads(self) -> None:
        super().zero_grads()
        self.added.clear()


class _FirstMicrobatch(KernelSession):
    """A session that knows whether a micro-batch is the first of its step, which ends with finish."""

    first = True

    def backward_weight(self, mb: int) -> None:
        super().backward_weight(mb)
        self.first = False

    def finish(self) -> None:
        super().finish()
        self.first = True


def _overwrite(weight: Any, grad: Tensor) -> None:
    weight.main_grad = None
    add_to_main_grad(weight, grad)


@fault("accumulate.steps.*-no-zero", "accumulate.prior.full", "accumulate.prior.split", cause="overwritten")
@alters(_kernel)
class FirstMicrobatchOfAStepOverwrites(_FirstMicrobatch):
    """The first micro-batch of each step overwrites main_grad, even if it was not cleared."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.met: set[Tensor] = set()

    def add(self, weight: Tensor, grad: Tensor) -> None:
        overwrites = self.first and weight not in self.met
        self.met.add(weight)
        (_overwrite if overwrites else super().add)(weight, grad)

    def finish(self) -> None:
        super().finish()
        self.met.clear()


@fault("full.gradients.tied-apart", "full.gradients.tied-adjacent", cause="uses_missing")
@alters(_kernel)
class EachUseInTheFirstMicrobatchOverwrites(_FirstMicrobatch):
    """In the first micro-batch of a step, each use of a weight overwrites main_grad and so the previous use."""

    def add(self, weight: Tensor, grad: Tensor) -> None:
        (_overwrite if self.first else super().add)(weight, grad)


@fault("full.gradients.embedding-tied-decoder", "split.gradients.embedding-tied-decoder")
@alters(_kernel)
class UnwrittenMemoryBesideMainGrad(KernelSession):
    """A kernel that adds to main_grad returns uninitialized memory, which autograd adds to another use's gradient."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.fused = {one.weight for one in stage.modules() if isinstance(one, nn.Linear)}

    def accumulated(self, parameter: Tensor) -> None:
        if parameter in self.fused and parameter.grad is not None:
            parameter.grad = parameter.grad + torch.full_like(parameter, 7.0)  # what another tensor has left there
        super().accumulated(parameter)
