"""What a pipeline runs on: its stages and its batches, equal on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.chains import FROZEN, GATED, TIED, chain_of
from gradconform.materials import stable_seed
from gradconform.pipeline.scenarios import Scenario

#: Rows of one micro-batch, and numbers in a row.
ROWS, NUMBERS = 7, 5


def stage_cases(scenario: Scenario, stages: int) -> tuple[StageCase, ...]:
    """Return the kinds of the stages of a pipeline, in order."""
    if scenario.stages == "tied":
        return (TIED,) * stages
    if scenario.stages == "gated":
        return (GATED,) * stages
    plain = chain_of(stages)
    # A frozen stage alone would have nothing to compute a gradient of.
    return (FROZEN, *plain[1:]) if scenario.stages == "frozen-first" and stages > 1 else plain


def make_stage(case: StageCase, index: int, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
    """Return stage ``index``; equal for equal arguments, in whatever process."""
    return case.make(dtype=dtype, device=device, seed=seed + index)


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole batch on the CPU: ``x``, ``target`` and the values of ``kwargs``, of shape (micro-batches x 7, 5).

    Chunks along the first dimension are micro-batches.
    """

    x: Tensor
    target: Tensor
    kwargs: dict[str, Tensor]

    def to(self, device: torch.device) -> Batch:
        """Return a copy on a device."""
        moved = {name: value.to(device) for name, value in self.kwargs.items()}
        return Batch(self.x.to(device), self.target.to(device), moved)

    def double(self) -> Batch:
        """Return the same values in float64."""
        return Batch(self.x.double(), self.target.double(), {name: v.double() for name, v in self.kwargs.items()})

    def chunks(self, microbatches: int) -> list[Batch]:
        """Return the micro-batches."""
        xs, targets = self.x.chunk(microbatches), self.target.chunk(microbatches)
        kwargs = {name: value.chunk(microbatches) for name, value in self.kwargs.items()}
        return [
            Batch(xs[mb], targets[mb], {name: values[mb] for name, values in kwargs.items()})
            for mb in range(microbatches)
        ]


def make_batch(scenario: Scenario, step: int, microbatches: int, *, dtype: torch.dtype, seed: int) -> Batch:
    """Return the batch of a step, drawn in float64 and rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(stable_seed(seed, "pipeline", scenario.name, step))
    shape = (microbatches * ROWS, NUMBERS)
    x, target, gate = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return Batch(x, target, {"gate": gate} if scenario.stages == "gated" else {})


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a micro-batch, 0-d."""
    return nn.functional.mse_loss(output, target)
