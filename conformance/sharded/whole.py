"""The whole stage on one process, in the dtype of the run and in float64: what is right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.drive.reference64 import widen, widened
from gradconform.drive.user_stage import UserStage
from gradconform.reference.autograd import pair_roots
from gradconform.tolerance import Partials, sizes
from gradconform.trees import as_tuple, flattened, map_leaves

from .batches import Batch
from .cases import Row

#: The learning rate of the steps of SGD, and the norm to which gradients are clipped if the stage has a norm.
RATE, MOST_NORM = 0.01, 1.0


def clip_factor(norm: float) -> float:
    """Return the factor by which gradients with this norm are clipped."""
    return min(1.0, MOST_NORM / (norm + 1e-6))


def standing_grad(shape: Sequence[int], name: str, dtype: torch.dtype, kind: str) -> Tensor:
    """Return the gradient that a whole parameter has before the first backward."""
    if kind == "zeros":
        return torch.zeros(tuple(shape), dtype=dtype)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32).to(dtype)


def frozen_names(whole: nn.Module, kind: str) -> frozenset[str]:
    """Return the names of the whole stage's parameters that are frozen in a row."""
    names = [name for name, _ in whole.named_parameters()]
    chosen = {"": [], "first": names[:1], "others": names[1:]}[kind]
    held = {id(dict(whole.named_parameters())[name]) for name in chosen}
    return frozenset(name for name, one in whole.named_parameters(remove_duplicate=False) if id(one) in held)


@dataclass(slots=True)
class WholeRun:
    """What the whole stage showed: outputs and input gradients per micro-batch, gradients, norm, buffers, parameters.

    ``partials`` are the largest partial sums of each parameter's gradient.
    """

    outputs: list[list[Any]] = field(default_factory=list)
    input_grads: list[list[Tensor | None]] = field(default_factory=list)
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    partials: dict[str, Partials] = field(default_factory=dict)
    norm: float = 0.0
    buffers: dict[str, Tensor] = field(default_factory=dict)
    params: dict[str, Tensor] = field(default_factory=dict)


class Oracle:
    """The whole stage under plain autograd, computed when it is first needed."""

    def __init__(self, module: nn.Module, row: Row, batches: Sequence[Sequence[Batch]], *, clips: bool) -> None:
        """Store the stage, on the CPU in the dtype of the run."""
        self._module, self._row, self._batches, self._clips = module, row, batches, clips

    def args_of(self, mb: int) -> tuple[Any, ...]:
        """Return the whole arguments of a micro-batch of the first step."""
        return self._batches[0][mb].args

    @cached_property
    def plain(self) -> WholeRun:
        """The run in the dtype of the rows."""
        return self._run(self._prepared(), wide=False)

    @cached_property
    def wide(self) -> WholeRun:
        """The run in float64."""
        return self._run(widened(self._prepared()), wide=True)

    def terms_of_param(self, name: str) -> Partials:
        """Return the largest terms of the sum that a parameter's gradient is."""
        first = self._name_of(name)
        return sizes(wanted.params[first] for wanted in self._shaken)

    def terms_of_input(self, mb: int, slot: int) -> Partials:
        """Return the largest terms of the sum that an argument's gradient is."""
        place = self._row.backwards.index(mb)
        return sizes([self._shaken[place].inputs[slot]])

    def by_parameters(self, parts: Sequence[Mapping[str, Tensor]]) -> list[WholeRun]:
        """Return the first step of the whole stage with only some ranks' parts of divided parameters, in float64.

        ``parts`` has the positions of each such part, by the whole's name of each divided parameter; the other elements
        are zero.
        """
        found = []
        for own in parts:
            module = widened(self._prepared())
            with torch.no_grad():
                for name, parameter in module.named_parameters(remove_duplicate=False):
                    if name in own:
                        kept = torch.zeros_like(parameter).reshape(-1)
                        places = own[name].reshape(-1)
                        kept[places] = parameter.reshape(-1)[places]
                        parameter.copy_(kept.reshape(parameter.shape))
            found.append(self._first_step(module, self._batches[0]))
        return found

    def by_outputs(self, parts: Sequence[Sequence[Sequence[Tensor]]]) -> list[WholeRun]:
        """Return the first step with only the output gradients of some ranks' outputs, in float64.

        ``parts`` has the positions of each such part, by micro-batch and output.
        """
        found = []
        for own in parts:
            batches = [
                replace(batch, output_grads=_only(batch.output_grads, one))
                for batch, one in zip(self._batches[0], own, strict=True)
            ]
            found.append(self._first_step(widened(self._prepared()), batches))
        return found

    def by_arguments(self, cut: Callable[[int, Tensor], Tensor]) -> WholeRun:
        """Return the first step with a part of the arguments alone, in float64: ``cut`` of each place and tensor."""
        batches = [
            replace(one, args=tuple(cut(n, arg) if isinstance(arg, Tensor) else arg for n, arg in enumerate(one.args)))
            for one in self._batches[0]
        ]
        return self._first_step(widened(self._prepared()), batches)

    def uses(self, names: Sequence[str]) -> list[Tensor]:
        """Return the gradient of each use of a tied parameter, in float64: of its names alone."""
        found = []
        for name in names:
            module = widened(self._prepared())
            parameters = dict(module.named_parameters(remove_duplicate=False))
            for other in names:
                owner, _, last = other.rpartition(".")
                alone = nn.Parameter(parameters[other].detach().clone())
                setattr(module.get_submodule(owner), last, alone)
            grad = self._first_step(module, self._batches[0]).grads[name]
            if grad is not None:
                found.append(grad)
        return found

    def _first_step(self, module: nn.Module, batches: Sequence[Batch]) -> WholeRun:
        run = WholeRun()
        run.outputs, run.input_grads = self._backward(module, batches, wide=True, partials=None)
        run.grads = {name: one.grad for name, one in module.named_parameters(remove_duplicate=False)}
        return run

    @cached_property
    def _shaken(self) -> list[Any]:
        plain = UserStage(self._prepared(), None, torch.get_rng_state())
        for mb in self._row.backwards:
            batch = self._batches[0][mb]
            plain.advance(_leaves(batch, wide=False), batch.output_grads)
        return plain.terms(len(self._row.backwards) - 1)

    def _name_of(self, name: str) -> str:
        found = dict(self._module.named_parameters(remove_duplicate=False))[name]
        return next(one for one, same in self._module.named_parameters() if same is found)

    def _prepared(self) -> nn.Module:
        made = copy.deepcopy(self._module)
        frozen = frozen_names(made, self._row.frozen)
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in frozen)
        return made

    def _run(self, module: nn.Module, *, wide: bool) -> WholeRun:
        found = WholeRun()
        names = dict(module.named_parameters(remove_duplicate=False))
        if self._row.standing:
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    given = standing_grad(parameter.shape, name, self._dtype_of(name), self._row.standing)
                    parameter.grad = given.to(parameter.dtype)
        partials = {name: sizes([one.grad]) for name, one in names.items()}
        for step, batches in enumerate(self._batches):
            first = step == 0
            seen = self._backward(module, batches, wide=wide, partials=partials if first else None)
            norm = sum(float(one.grad.double().square().sum()) for one in module.parameters() if one.grad is not None)
            if first:
                found.outputs, found.input_grads = seen
                found.grads = {name: None if one.grad is None else one.grad.clone() for name, one in names.items()}
                found.partials, found.norm = partials, norm**0.5
                found.buffers = {name: one.clone() for name, one in module.named_buffers(remove_duplicate=False)}
            factor = clip_factor(norm**0.5) if self._clips else 1.0
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad * (RATE * factor))
            module.zero_grad()
        found.params = {name: one.detach().clone() for name, one in names.items()}
        return found

    def _dtype_of(self, name: str) -> torch.dtype:
        return dict(self._module.named_parameters())[name].dtype

    def _backward(
        self, module: nn.Module, batches: Sequence[Batch], *, wide: bool, partials: dict[str, Partials] | None
    ) -> tuple[list[list[Any]], list[list[Tensor | None]]]:
        """Run the forwards in order, and the backwards in the order of the row."""
        args = [_leaves(batch, wide=wide) for batch in batches]
        outputs = [module(*own) for own in args]
        inputs: dict[int, list[Tensor | None]] = {}
        for mb in self._row.backwards:
            given = iter(batches[mb].output_grads)
            grads = map_leaves(partial(_next_grad, given, wide), as_tuple(outputs[mb]))
            roots, starts = pair_roots(outputs[mb], grads)
            if roots:
                torch.autograd.backward(roots, starts)  # type: ignore[arg-type] # torch takes edges as well
            inputs[mb] = [one.grad if isinstance(one, Tensor) else None for one in args[mb]]
            if partials is not None:
                for name, one in module.named_parameters(remove_duplicate=False):
                    if one.grad is not None:
                        partials[name] = partials[name].with_(one.grad)
        shown = [[_shown(leaf) for leaf in flattened(one) if isinstance(leaf, Tensor)] for one in outputs]
        return shown, [inputs.get(mb, []) for mb in range(len(batches))]


def _only(grads: Sequence[Tensor | None], positions: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return output gradients that are zero outside the positions."""
    found: list[Tensor | None] = []
    for grad, own in zip(grads, positions, strict=True):
        if grad is None:
            found.append(None)
            continue
        kept = torch.zeros(grad.numel(), dtype=grad.dtype)
        places = own.reshape(-1)
        kept[places] = grad.reshape(-1)[places]
        found.append(kept.reshape(grad.shape))
    return tuple(found)


def _shown(leaf: Tensor) -> Tensor:
    return leaf.detach().clone()


def _next_grad(grads: Iterator[Tensor | None], wide: bool, leaf: Any) -> Any:  # noqa: FBT001 (called with a leaf alone)
    grad = next(grads) if isinstance(leaf, Tensor) else None
    return grad if grad is None or not wide else widen(grad)


def _leaves(batch: Batch, *, wide: bool) -> tuple[Any, ...]:
    """Return new leaves of the whole arguments."""
    return tuple(
        (widen(one) if wide else one.detach().clone()).requires_grad_(require) if isinstance(one, Tensor) else one
        for one, require in zip(batch.args, batch.require_grad, strict=True)
    )
