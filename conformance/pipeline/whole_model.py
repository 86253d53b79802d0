"""The model of a pipeline, its batches, and the reference: one plain forward and backward of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from gradconform.fixtures.stages.case import StageCase
from gradconform.fixtures.stages.chains import FROZEN, GATED, TIED, chain_of
from gradconform.judge.finding import Finding, Judged
from gradconform.judge.values import Known, Reference, compare
from gradconform.reference.autograd import accumulate, run_forward
from gradconform.tolerance import Partials
from gradconform.trial.materials import stable_seed

from .cases import Scenario

#: Rows of one micro-batch, and numbers in a row.
ROWS, NUMBERS = 7, 5


def stage_cases(scenario: Scenario, stages: int) -> tuple[StageCase, ...]:
    """Return the kinds of the stages of a pipeline, in order."""
    if scenario.stages == "tied":
        return (TIED,) * stages
    if scenario.stages == "gated":
        return (GATED,) * stages
    plain = chain_of(stages)
    # A single frozen stage would have no gradient to compute.
    return (FROZEN, *plain[1:]) if scenario.stages == "frozen-first" and stages > 1 else plain


def make_stage(case: StageCase, index: int, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
    """Return stage ``index``; equal for equal arguments, in every process."""
    return case.make(dtype=dtype, device=device, seed=seed + index)


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole batch on the CPU: ``x``, ``target`` and the values of ``kwargs``, of shape (micro-batches x 7, 5).

    Chunks along the first dimension are micro-batches.
    """

    x: Tensor
    target: Tensor
    kwargs: dict[str, Tensor]

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with ``change`` applied to each of its tensors."""
        return Batch(change(self.x), change(self.target), {name: change(value) for name, value in self.kwargs.items()})

    def chunks(self, microbatches: int) -> list[Batch]:
        """Return the micro-batches."""
        return [self.map(partial(_chunk, microbatches, mb)) for mb in range(microbatches)]


def _chunk(count: int, index: int, value: Tensor) -> Tensor:
    return value.chunk(count)[index]


def make_batch(scenario: Scenario, step: int, microbatches: int, *, dtype: torch.dtype, seed: int) -> Batch:
    """Return the batch of a step, drawn in float64 and rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(stable_seed(seed, "pipeline", scenario.name, step))
    shape = (microbatches * ROWS, NUMBERS)
    x, target, gate = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    return Batch(x, target, {"gate": gate} if scenario.stages == "gated" else {})


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a micro-batch, 0-d."""
    return nn.functional.mse_loss(output, target)


#: A parameter: its stage and its name there.
Parameter = tuple[int, str]


@dataclass(frozen=True, slots=True)
class StepOfWhole:
    """The results of one step: the merged output, the losses by micro-batch, and each parameter's gradient after it.

    ``partials`` are the largest partial sums of each gradient so far.
    """

    output: Tensor
    losses: list[Tensor]
    grads: dict[Parameter, Tensor | None]
    partials: dict[Parameter, Partials]


def run_whole_model(  # noqa: PLR0913 (a model's parts and its inputs)
    scenario: Scenario, stages: int, microbatches: int, *, dtype: torch.dtype, device: torch.device, seed: int,
    wide: bool = False,
) -> list[StepOfWhole]:  # fmt: skip
    """Return the results of each step of the scenario under plain autograd, with evaluations, without zero_grad.

    With ``wide``, parameters and batches are widened to float64 after they were rounded to ``dtype``.
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
        batch = make_batch(scenario, number, microbatches, dtype=dtype, seed=seed)
        batch = batch.map(lambda value: value.to(device, torch.float64 if wide else dtype))
        outputs, losses = run_step(modules, batch.chunks(microbatches), partials, train=step == "train")
        if step == "train" and scenario.scale_grads:
            _divide(modules, microbatches)
        grads = {key: None if p.grad is None else p.grad.detach().clone() for key, p in _parameters(modules)}
        found.append(StepOfWhole(torch.cat(outputs), losses, grads, dict(partials)))
    return found


def run_step(
    modules: Sequence[nn.Module], chunks: Sequence[Batch], partials: dict[Parameter, Partials], *, train: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs and the losses of one step by micro-batch; with ``train``, accumulate gradients."""
    outputs, losses = [], []
    for chunk in chunks:
        with torch.set_grad_enabled(train):
            value = run_forward(modules, (chunk.x,), chunk.kwargs)[-1].outputs
            loss = mean_square(value, chunk.target)
        outputs.append(value.detach())
        losses.append(loss.detach())
        if train:
            _accumulate(modules, loss, partials)
    return outputs, losses


def _accumulate(modules: Sequence[nn.Module], loss: Tensor, partials: dict[Parameter, Partials]) -> None:
    """Add the gradients of one micro-batch, and record their size and that of the sums."""
    added = accumulate(loss, (parameter for _, parameter in _parameters(modules)))
    for key, parameter in _parameters(modules):
        if id(parameter) in added and parameter.grad is not None:
            partials[key] = partials.get(key, Partials()).with_(added[id(parameter)]).with_(parameter.grad)


def _divide(modules: list[nn.Module], microbatches: int) -> None:
    for _, parameter in _parameters(modules):
        if parameter.grad is not None:
            parameter.grad = parameter.grad / microbatches


def _parameters(modules: Sequence[nn.Module]) -> list[tuple[Parameter, nn.Parameter]]:
    return [
        ((index, name), parameter)
        for index, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    ]


def given(known: Tensor | None, partials: Partials | None = None) -> Reference:
    """Return a known reference in float64, for :func:`gradconform.judge.values.compare`."""

    def reference() -> Known:
        if known is None:
            return Known(None, partials or Partials())
        return Known(known.cpu(), partials or Partials().with_(known))

    return reference


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank's observations of one step. ``output`` and ``losses`` are on the rank with the last stage, else None.

    ``step`` is its name in findings.
    """

    step: str
    modules: dict[int, nn.Module]
    output: Tensor | None = None
    losses: list[Tensor] | None = None


def findings_of(seen: Seen, plain: StepOfWhole, wide: StepOfWhole) -> Judged:
    """Yield the differences of one step from plain autograd: output, losses, gradients of every parameter.

    ``plain`` is the whole model in the run's dtype, ``wide`` in float64.
    """
    if seen.losses is not None:
        yield from _of_last_stage(seen, plain, wide)
    for index, module in seen.modules.items():
        for name, parameter in module.named_parameters():
            key = index, name
            reference = given(wide.grads[key], plain.partials.get(key))
            got, where = parameter.grad, f"stage {index} {name}"
            yield from compare("parameter gradient", where, seen.step, got, plain.grads[key], reference)


def _of_last_stage(seen: Seen, plain: StepOfWhole, wide: StepOfWhole) -> Judged:
    losses = seen.losses or []
    if len(losses) != len(plain.losses):
        text = f"expected one loss per micro-batch ({len(plain.losses)}), got {len(losses)}"
        yield Finding("missing", "the losses", seen.step, text)
    yield from compare("thing", "the output", seen.step, seen.output, plain.output, given(wide.output))
    for mb, (got, expected, reference) in enumerate(zip(losses, plain.losses, wide.losses, strict=False)):
        where = f"the loss of micro-batch {mb}"
        yield from compare("thing", where, seen.step, got.detach(), expected, given(reference))
