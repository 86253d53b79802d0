"""Stages that tensor ranks share, as plain as can be: what each keeps of a layer, and what they tell one another.

Each layer that is shared computes its part, and stands between two of four regions: what goes into it is handed in or
cut, and what comes out is summed or put together. A region that only hands on is one whose backward sums, and the other
way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.runtime import Kept, ModuleSession, Shard, StepSpec

_Change = Callable[[Tensor], Tensor]


def handed_round(value: Tensor, ranks: Sequence[int], own: int, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return what each of some ranks has, by their order: each hands its own to all others; ``own`` is this one."""
    found = []
    for place, rank in enumerate(ranks):
        shared = value.clone().contiguous() if place == own else value.new_empty(*shapes[place])
        for other, taker in enumerate(ranks):
            if other != place and own == place:
                dist.send(shared, taker)
            elif other != place and own == other:
                dist.recv(shared, rank)
        found.append(shared)
    return found


class _Region(torch.autograd.Function):
    """Changes what goes through it, and in another way the gradient that comes back."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, there: _Change, back: _Change) -> Tensor:
        ctx.back = back
        return there(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None


def region(value: Tensor, there: _Change, back: _Change) -> Tensor:
    """Return what ``there`` makes of a tensor; its gradient is what ``back`` makes of that of what is returned."""
    changed: Tensor = _Region.apply(value, there, back)  # type: ignore[no-untyped-call] # so is torch's
    return changed


def _as_it_is(value: Tensor) -> Tensor:
    return value.view_as(value)


class TensorSession(ModuleSession):
    """One rank of those that share stages. Each method is one thing that sharing needs, for a fault to override."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Keep of each layer that is shared what is this rank's."""
        super().__init__(modules, spec)
        first = (spec.pipeline_rank * spec.replicas + spec.replica) * spec.tensor_ranks
        self.sharing = range(first, first + spec.tensor_ranks)
        #: Of each parameter that is split the dimension, and how long the whole is along it.
        self.split: dict[str, tuple[int, int]] = {}
        self._own: dict[nn.Parameter, nn.Parameter] = {}
        for name, style in spec.shared.items():
            stage, _, inner = name.partition(".")
            if int(stage) in modules:
                self._share(name, modules[int(stage)].get_submodule(inner), style)

    def _share(self, name: str, module: nn.Module, style: str) -> None:
        if style != "sequence":
            self._keep(name, module, "weight", 1 if style == "row" else 0)
        if style == "column" and "bias" in dict(module.named_parameters()):
            self._keep(name, module, "bias", 0)
        forwards: dict[str, Callable[[Any, Tensor], Tensor]] = {
            "column": self.column,
            "row": self.row,
            "sequence": self.sequence,
            "vocabulary": self.embedding if isinstance(module, nn.Embedding) else self.column,
        }
        vars(module)["forward"] = partial(forwards[style], module)

    def _keep(self, name: str, module: nn.Module, which: str, dim: int) -> None:
        """Put this rank's part of a parameter in its place; of one that is tied the same part."""
        whole = module.get_parameter(which)
        rows = whole.shape[dim]
        self.split[f"{name}.{which}"] = dim, rows
        if whole not in self._own:
            part = whole.detach()[(slice(None),) * dim + (self.part_of(rows),)].clone()
            self._own[whole] = nn.Parameter(part, requires_grad=whole.requires_grad)
        module.register_parameter(which, self._own[whole])

    def part_of(self, rows: int, tensor_rank: int | None = None) -> slice:
        """Return which of so many rows a tensor rank has, this one if no other; the last has fewer where it must."""
        each = -(-rows // self.spec.tensor_ranks)
        start = each * (self.spec.tensor_rank if tensor_rank is None else tensor_rank)
        return slice(min(start, rows), min(start + each, rows))

    # What tensor ranks tell one another.

    def each(self, value: Tensor, shapes: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
        """Return what each tensor rank has; ``shapes`` where they are not all this one's."""
        shapes = [value.shape] * self.spec.tensor_ranks if shapes is None else shapes
        return handed_round(value, self.sharing, self.spec.tensor_rank, shapes)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of what tensor ranks have."""
        return torch.stack(self.each(value)).sum(0)

    def cut(self, value: Tensor) -> Tensor:
        """Return this rank's rows."""
        return value[self.part_of(len(value))].clone()

    def together(self, value: Tensor, rows: int) -> Tensor:
        """Return all rows."""
        parts = [self.part_of(rows, rank) for rank in range(self.spec.tensor_ranks)]
        each = self.each(value, [(part.stop - part.start, *value.shape[1:]) for part in parts])
        return torch.cat([each[rank] for rank in sorted(range(len(parts)), key=lambda rank: parts[rank].start)])

    # The regions.

    def entered(self, value: Tensor) -> Tensor:
        """Hand the input of a layer on of which each rank has some outputs: its gradient is a sum over ranks."""
        return region(value, _as_it_is, self.sum)

    def summed(self, value: Tensor) -> Tensor:
        """Sum what each rank has of the outputs of a layer: the gradient of each share is that of the sum."""
        return region(value, self.sum, _as_it_is)

    def own_rows(self, value: Tensor) -> Tensor:
        """Cut what all have to this rank's rows."""
        return region(value, self.cut, partial(self.together, rows=len(value)))

    def all_rows(self, value: Tensor, rows: int) -> Tensor:
        """Put the rows of all ranks together, for what all of them go on with alike."""
        return region(value, partial(self.together, rows=rows), self.cut)

    # Layers.

    def column(self, module: nn.Linear, value: Tensor) -> Tensor:
        """Return this rank's outputs of a Linear."""
        return F.linear(self.entered(value), module.weight, module.bias)

    def row(self, module: nn.Linear, value: Tensor) -> Tensor:
        """Return all outputs of a Linear of which each rank has some inputs; the bias stands behind the sum."""
        total, bias = self.summed(F.linear(value, module.weight)), dict(module.named_parameters()).get("bias")
        return total if bias is None else total + bias

    def sequence(self, module: nn.Module, value: Tensor) -> Tensor:
        """Return the outputs of a norm, of which each rank computes some rows."""
        own: Tensor = type(module).forward(module, self.own_rows(value))
        return self.all_rows(own, len(value))

    def embedding(self, module: nn.Embedding, tokens: Tensor) -> Tensor:
        """Return what stands for each token, which one rank knows."""
        here, inside = self.known(tokens, module.num_embeddings)
        return self.summed(F.embedding(here, module.weight) * inside[..., None])

    def known(self, tokens: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return the places of tokens among those of this rank, and whether they are of this rank at all."""
        own = self.part_of(vocabulary)
        inside = (tokens >= own.start) & (tokens < own.stop)
        return (tokens - own.start).where(inside, 0), inside

    # The loss over a vocabulary that is shared.

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a micro-batch: that of the step, or of logits of which each rank has some."""
        split = [size for name, (_, size) in self.split.items() if name.startswith(f"{self.spec.stages - 1}.head.")]
        if not split:
            return self.spec.loss(output, target)
        logits, right, counted = output.flatten(0, 1), target.flatten(), self.spec.counts(target.flatten())
        most = self.largest(logits.detach().amax(1))
        exponents = self.total_of(torch.exp(logits - most[:, None]).sum(1))
        here, inside = self.known(right, split[0])
        of_target = self.summed(logits.gather(1, here[:, None])[:, 0] * inside)
        total = ((exponents.log() + most - of_target) * counted).sum()
        return total / counted.sum() if self.spec.reduction == "mean" else total

    def largest(self, value: Tensor) -> Tensor:
        """Return the largest of what tensor ranks have."""
        return torch.stack(self.each(value)).amax(0)

    def total_of(self, value: Tensor) -> Tensor:
        """Return the sum of the exponentials of all logits."""
        return self.summed(value)

    # What is done with gradients.

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        """Return a gradient of a step: that of a layer of which each rank saw some rows is a sum over ranks."""
        layer = name.rpartition(".")[0]
        return self.sum(grad) if self.spec.shared.get(layer) == "sequence" else grad

    def holders(self, name: str) -> int:
        """Return how many tensor ranks hold the same gradient."""
        return 1 if name in self.split else self.spec.tensor_ranks

    def part(self, name: str, value: Kept) -> Kept:
        """Return a parameter or gradient of this rank as what it is a part of."""
        if value is None or name not in self.split:
            return value
        dim, rows = self.split[name]
        return Shard(value, self.part_of(rows).start, rows, dim)

    def params(self) -> dict[str, Kept]:
        """Return the parameters, of those that are split the part of this rank."""
        return {name: self.part(name, value) for name, value in super().params().items()}
