"""One plain forward and backward of the whole model, micro-batch by micro-batch: what a pipeline is held against."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gradconform.pipeline.data import Batch, make_batch, make_stage, mean_square, stage_cases
from gradconform.pipeline.scenarios import Scenario
from gradconform.tolerance import Partials

#: A parameter: its stage and its name there.
Parameter = tuple[int, str]


@dataclass(slots=True)
class StepOfWhole:
    """What one step gives: the merged output, the losses by micro-batch, and each parameter's gradient after it.

    ``partials`` are the largest partial sums of each gradient so far.
    """

    output: Tensor
    losses: list[Tensor]
    grads: dict[Parameter, Tensor | None] = field(default_factory=dict)
    partials: dict[Parameter, Partials] = field(default_factory=dict)


def run_whole_model(  # noqa: PLR0913 (what a model is made of, and what it is run on)
    scenario: Scenario, stages: int, microbatches: int, *, dtype: torch.dtype, device: torch.device, seed: int,
    wide: bool = False,
) -> list[StepOfWhole]:  # fmt: skip
    """Return what each step of the scenario gives under plain autograd; evaluations too, zero_grad not.

    With ``wide`` parameters and batches are widened to float64 after they were rounded to ``dtype``.
    """
    cases = stage_cases(scenario, stages)
    modules = [make_stage(case, index, dtype=dtype, device=device, seed=seed) for index, case in enumerate(cases)]
    if wide:
        modules = [module.double() for module in modules]
    partials: dict[Parameter, Partials] = {}
    found = []
    for number, step in enumerate(scenario.steps):
        if step == "zero_grad":
            for module in modules:
                module.zero_grad()
            partials = {}
            continue
        batch = make_batch(scenario, number, microbatches, dtype=dtype, seed=seed).to(device)
        chunks = (batch.double() if wide else batch).chunks(microbatches)
        found.append(_step(modules, chunks, partials, train=step == "train"))
        if step == "train" and scenario.scale_grads:
            _divide(modules, microbatches)
        found[-1].grads = {key: _copy(parameter.grad) for key, parameter in _parameters(modules)}
        found[-1].partials = dict(partials)
    return found


def _step(
    modules: list[nn.Module], chunks: list[Batch], partials: dict[Parameter, Partials], *, train: bool
) -> StepOfWhole:
    outputs, losses = [], []
    for chunk in chunks:
        value = chunk.x
        with torch.set_grad_enabled(train):
            for module in modules:
                value = module(value, **chunk.kwargs)
            loss = mean_square(value, chunk.target)
        outputs.append(value.detach())
        losses.append(loss.detach())
        if train:
            _accumulate(modules, loss, partials)
    return StepOfWhole(torch.cat(outputs), losses)


def _accumulate(modules: list[nn.Module], loss: Tensor, partials: dict[Parameter, Partials]) -> None:
    """Add the gradients of one micro-batch, and note how large they and the sums are."""
    trainable = {key: parameter for key, parameter in _parameters(modules) if parameter.requires_grad}
    grads: tuple[Tensor | None, ...] = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    for (key, parameter), grad in zip(trainable.items(), grads, strict=True):
        if grad is not None:
            total = grad.clone() if parameter.grad is None else parameter.grad + grad
            parameter.grad = total
            partials[key] = partials.get(key, Partials()).with_(grad).with_(total)


def _divide(modules: list[nn.Module], microbatches: int) -> None:
    for _, parameter in _parameters(modules):
        if parameter.grad is not None:
            parameter.grad = parameter.grad / microbatches


def _parameters(modules: list[nn.Module]) -> list[tuple[Parameter, nn.Parameter]]:
    return [
        ((index, name), parameter)
        for index, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    ]


def _copy(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.detach().clone()
