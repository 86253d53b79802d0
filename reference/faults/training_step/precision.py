"""Faults of mixed precision: parameters that are kept in float32, and stages that run on them rounded to bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor

from gradconform.reference.runtime import LOWER, PlainSession
from gradconform.runtime import Kept

from .registry import each, fault


@fault("fsdp-mixed")
class ParametersLeftRounded(PlainSession):
    """Rounds the parameters that are kept, too."""

    def round_parameters(self) -> None:
        super().round_parameters()
        with torch.no_grad():
            for _, parameter in self.named("named_parameters"):
                parameter.copy_(parameter.to(LOWER))


@fault("fsdp-mixed")
class RoundedOnce(PlainSession):
    """Runs every step on the parameters of the first."""

    def round_parameters(self) -> None:
        if self.steps <= 1:
            super().round_parameters()


@fault("fsdp-mixed")
class GradientsLeftRounded(PlainSession):
    """Tells gradients in the dtype that stages run in."""

    def param_grads(self) -> dict[str, Kept]:
        return {name: self.own(None if one.grad is None else one.grad.to(LOWER)) for name, one in self.trained()}


@fault("fsdp-mixed")
class RoundedGradientsKept(PlainSession):
    """Adds what a micro-batch gave again for each one behind it."""

    def take_gradients(self) -> None:
        kept = {one: one.grad for running in self.running.values() for one in running.parameters()}
        super().take_gradients()
        for rounded, grad in kept.items():
            rounded.grad = grad


@fault("fsdp-mixed", "only")
class LastMicrobatchTaken(PlainSession):
    """Lets what a micro-batch gave take the place of what those before it did."""

    def take_gradients(self) -> None:
        self.kept()
        super().take_gradients()


@fault("fsdp-mixed-auxiliary")
class SumsLeftRounded(PlainSession):
    """Adds up what micro-batches give in the dtype that stages run in."""

    def take_gradients(self) -> None:
        super().take_gradients()
        each(self, lambda _, grad: grad.to(LOWER).to(grad))


@fault("fsdp-mixed-auxiliary")
class ReducedRounded(PlainSession):
    """Sums over replicas what each has rounded to the dtype that stages run in."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value.to(LOWER)).to(value)


@fault("autocast")
class UpdatedParametersRounded(PlainSession):
    """Keeps the parameters that a step of SGD leaves rounded to bfloat16."""

    def update(self, lr: float) -> None:
        super().update(lr)
        with torch.no_grad():
            for _, parameter in self.named("named_parameters"):
                parameter.copy_(parameter.to(LOWER))
