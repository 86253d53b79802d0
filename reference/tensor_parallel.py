"""Plain tensor-parallel stages: the part of a layer on each rank, and the exchanges between ranks.

Each shared layer computes its part, between two of four regions. Its input is passed on or cut, and its output is
summed or concatenated. A region that only passes values on sums in its backward, and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.runtime import Kept, ModuleSession, Shard, StepSpec, set_second_loss

_Change = Callable[[Tensor], Tensor]


def handed_round(value: Tensor, ranks: Sequence[int], own: int, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the tensors of some ranks, in their order: each sends its own to all others; ``own`` is this one."""
    found = []
    for place, rank in enumerate(ranks):
        shared = value.clone().contiguous() if place == own else value.new_empty(tuple(shapes[place]))
        for other, taker in enumerate(ranks):
            if other != place and own == place:
                dist.send(shared, taker)
            elif other != place and own == other:
                dist.recv(shared, rank)
        found.append(shared)
    return found


class _Region(torch.autograd.Function):
    """Changes a passing tensor, and in another way the gradient that returns."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, there: _Change, back: _Change) -> Tensor:
        ctx.back = back
        return there(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None


def region(value: Tensor, there: _Change, back: _Change) -> Tensor:
    """Return ``there`` of a tensor; its backward applies ``back`` to the gradient."""
    changed: Tensor = _Region.apply(value, there, back)  # type: ignore[no-untyped-call] # so is torch's
    return changed


def _as_it_is(value: Tensor) -> Tensor:
    return value.view_as(value)


class TensorSession(ModuleSession):
    """One of the ranks that share stages. Each method is one requirement of sharing, for a fault to override."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Store this rank's part of each shared layer."""
        super().__init__(modules, spec)
        first = (spec.pipeline_rank * spec.replicas + spec.replica) * spec.tensor_ranks
        self.sharing = range(first, first + spec.tensor_ranks)
        #: The dimension of each split parameter, and the length of the whole along it.
        self.split: dict[str, tuple[int, int]] = {}
        self._own: dict[nn.Parameter, nn.Parameter] = {}
        for name, module in self.own_modules(spec.shared):
            self._share(name, module, spec.shared[name])
        if "vocabulary" in spec.shared.values():
            set_second_loss(modules.values(), self.second_loss_of)

    def own_modules(self, names: Iterable[str]) -> Iterator[tuple[str, nn.Module]]:
        """Yield those of some modules, named in full, that belong to a stage of this rank."""
        for name in names:
            stage, _, inner = name.partition(".")
            if int(stage) in self.modules:
                yield name, self.modules[int(stage)].get_submodule(inner)

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
        """Replace a parameter by this rank's part; a tied one by the same part."""
        whole = module.get_parameter(which)
        rows = whole.shape[dim]
        self.split[f"{name}.{which}"] = dim, rows
        if whole not in self._own:
            part = whole.detach()[(slice(None),) * dim + (self.part_of(rows),)].clone()
            self._own[whole] = nn.Parameter(part, requires_grad=whole.requires_grad)
        module.register_parameter(which, self._own[whole])

    def part_of(self, rows: int, tensor_rank: int | None = None) -> slice:
        """Return the slice of the rows on a tensor rank, by default this one; the last may have fewer."""
        each = -(-rows // self.spec.tensor_ranks)
        start = each * (self.spec.tensor_rank if tensor_rank is None else tensor_rank)
        return slice(min(start, rows), min(start + each, rows))

    # The exchanges between tensor ranks.

    def each(self, value: Tensor, shapes: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
        """Return the tensors of all tensor ranks; ``shapes`` if they are not all this one's."""
        shapes = [value.shape] * self.spec.tensor_ranks if shapes is None else shapes
        return handed_round(value, self.sharing, self.spec.tensor_rank, shapes)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over tensor ranks."""
        return torch.stack(self.each(value)).sum(0)

    def cut(self, value: Tensor) -> Tensor:
        """Return this rank's rows."""
        return value[self.part_of(len(value))].clone()

    def together(self, value: Tensor, rows: int) -> Tensor:
        """Return the rows of all ranks."""
        parts = [self.part_of(rows, rank) for rank in range(self.spec.tensor_ranks)]
        each = self.each(value, [(part.stop - part.start, *value.shape[1:]) for part in parts])
        return torch.cat([each[rank] for rank in sorted(range(len(parts)), key=lambda rank: parts[rank].start)])

    # The regions.

    def entered(self, value: Tensor) -> Tensor:
        """Return the input of a layer whose outputs are divided over ranks: its gradient is a sum over ranks."""
        return region(value, _as_it_is, self.sum)

    def summed(self, value: Tensor) -> Tensor:
        """Return the sum of the ranks' shares of a layer's outputs: the gradient of each share is that of the sum."""
        return region(value, self.sum, _as_it_is)

    def own_rows(self, value: Tensor) -> Tensor:
        """Return this rank's rows of a tensor that all ranks have."""
        return region(value, self.cut, partial(self.together, rows=len(value)))

    def all_rows(self, value: Tensor, rows: int) -> Tensor:
        """Return the rows of all ranks together, for computations that all of them do alike."""
        return region(value, partial(self.together, rows=rows), self.cut)

    # Layers.

    def column(self, module: nn.Linear, value: Tensor) -> Tensor:
        """Return this rank's outputs of a Linear."""
        return F.linear(self.entered(value), module.weight, module.bias)

    def row(self, module: nn.Linear, value: Tensor) -> Tensor:
        """Return all outputs of a Linear whose inputs are divided over ranks; the bias is added after the sum."""
        total, bias = self.summed(F.linear(value, module.weight)), dict(module.named_parameters()).get("bias")
        return total if bias is None else total + bias

    def sequence(self, module: nn.Module, value: Tensor) -> Tensor:
        """Return the outputs of a norm whose rows are divided over ranks."""
        own: Tensor = type(module).forward(module, self.own_rows(value))
        return self.all_rows(own, len(value))

    def embedding(self, module: nn.Embedding, tokens: Tensor) -> Tensor:
        """Return the embedding of each token, which one rank has."""
        here, inside = self.known(tokens, module.num_embeddings)
        return self.summed(F.embedding(here, module.weight) * inside[..., None])

    def known(self, tokens: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Return the indices of tokens among those of this rank, and whether this rank has them at all."""
        own = self.part_of(vocabulary)
        inside = (tokens >= own.start) & (tokens < own.stop)
        return (tokens - own.start).where(inside, 0), inside

    # The loss over a vocabulary that is shared.

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a micro-batch: that of the step, or of logits that are divided over ranks."""
        split = [size for name, (_, size) in self.split.items() if name.startswith(f"{self.spec.stages - 1}.head.")]
        if not split:
            return self.spec.loss(output, target)
        logits, right, counted = output.flatten(0, 1), target.flatten(), self.spec.counts(target.flatten())
        most = self.largest(logits.detach().amax(1))
        exponents = self.total_of(torch.exp(logits - most[:, None]).sum(1))
        here, inside = self.known(right, split[0])
        of_target = self.summed(logits.gather(1, here[:, None])[:, 0] * inside)
        total = ((exponents.log() + most - of_target) * counted).sum()
        is_mean = self.spec.reduction == "mean" and self.spec.context == "whole"
        return total / counted.sum() if is_mean else total

    def second_loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the second loss of a micro-batch, from logits that are divided over ranks."""
        return self.loss_of(output, target)

    def largest(self, value: Tensor) -> Tensor:
        """Return the maximum over tensor ranks."""
        return torch.stack(self.each(value)).amax(0)

    def total_of(self, value: Tensor) -> Tensor:
        """Return the sum of the exponentials of all logits."""
        return self.summed(value)

    # The handling of gradients.

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        """Return a gradient of a step: for a layer whose rows are divided over ranks, the sum over ranks."""
        layer = name.rpartition(".")[0]
        return self.sum(grad) if self.spec.shared.get(layer) == "sequence" else grad

    def holders(self, name: str) -> int:
        """Return how many tensor ranks hold the same gradient."""
        return 1 if name in self.split else self.spec.tensor_ranks

    def part(self, name: str, value: Kept) -> Kept:
        """Return a parameter or gradient of this rank as a part of the whole."""
        if value is None or name not in self.split:
            return value
        dim, rows = self.split[name]
        return Shard(value, self.part_of(rows).start, rows, dim)

    def params(self) -> dict[str, Kept]:
        """Return the parameters; for split ones the part of this rank."""
        return {name: self.part(name, value) for name, value in super().params().items()}
