"""Faults of mixed precision: parameters that are kept in float32, and stages that run on them rounded to bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor

from gradconform.reference.runtime import LOWER, PlainSession
from gradconform.runtime import Kept

from .registry import each, fault


@fault("fsdp-mixed")
class ParametersLeftRounded(PlainSession):
    """Rounds the stored parameters too."""

    def round_parameters(self) -> None:
        super().round_parameters()
        with torch.no_grad():
            for _, parameter in self.named("named_parameters"):
                parameter.copy_(parameter.to(LOWER))


@fault("fsdp-mixed")
class RoundedOnce(PlainSession):
    """Runs every step with the rounded parameters of the first."""

    def round_parameters(self) -> None:
        if self.steps <= 1:
            super().round_parameters()


@fault("fsdp-mixed")
class GradientsLeftRounded(PlainSession):
    """Returns gradients in the dtype that stages run in."""

    def param_grads(self) -> dict[str, Kept]:
        return {name: self.own(None if one.grad is None else one.grad.to(LOWER)) for name, one in self.trained()}


@fault("fsdp-mixed")
class RoundedGradientsKept(PlainSession):
    """Adds the gradients of a micro-batch again for each later one."""

    def take_gradients(self) -> None:
        kept = {one: one.grad for running in self.running.values() for one in running.parameters()}
        super().take_gradients()
        for rounded, grad in kept.items():
            rounded.grad = grad


@fault("fsdp-mixed", "only")
class LastMicrobatchTaken(PlainSession):
    """Overwrites the gradients of earlier micro-batches with the last one's."""

    def take_gradients(self) -> None:
        self.kept()
        super().take_gradients()


@fault("fsdp-mixed-auxiliary")
class SumsLeftRounded(PlainSession):
    """Sums the gradients of micro-batches in the dtype that stages run in."""

    def take_gradients(self) -> None:
        super().take_gradients()
        each(self, lambda _, grad: grad.to(LOWER).to(grad))


@fault("fsdp-mixed-auxiliary")
class ReducedRounded(PlainSession):
    """Rounds each replica's gradients to the dtype that stages run in before their sum."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value.to(LOWER)).to(value)


@fault("autocast")
class UpdatedParametersRounded(PlainSession):
    """Rounds the parameters to bfloat16 after a step of SGD."""

    def update(self, lr: float) -> None:
        super().update(lr)
        with torch.no_grad():
            for _, parameter in self.named("named_parameters"):
                parameter.copy_(parameter.to(LOWER))
