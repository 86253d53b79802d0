"""Right variants of tensor parallelism, each with one difference from the plain runtime."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.reference.runtime import PlainSession
from gradconform.reference.tensor_parallel import region

from .step_registry import right

_ALL = ("one-stage dense column-row", "one-stage sequence", "one-stage vocabulary")


@right(*_ALL)
class SummedByParts(PlainSession):
    """Sums over tensor ranks by parts: each rank sums one part, and all parts are gathered."""

    def sum(self, value: Tensor) -> Tensor:
        flat = [one.flatten() for one in self.each(value)]
        own = self.part_of(value.numel())
        return self.together(torch.stack([one[own] for one in flat]).sum(0), value.numel()).view_as(value)


@right(*_ALL)
class BiasOfFirstTensorRank(PlainSession):
    """Adds the bias of a row layer on the first tensor rank, before the sum, and uses that rank's gradient."""

    def row(self, module: nn.Linear, value: Tensor) -> Tensor:
        once, bias = float(self.spec.tensor_rank == 0), dict(module.named_parameters()).get("bias")
        return self.summed(F.linear(value, module.weight, None if bias is None else bias * once))

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        of_row = self.spec.shared.get(name.rpartition(".")[0]) == "row" and name.endswith(".bias")
        return self.sum(grad) if of_row else super().over_tensor_ranks(name, grad)


@right("one-stage vocabulary", "vocabulary tokens")
class LossOfAllLogits(PlainSession):
    """Gathers the logits of all tensor ranks, and computes the loss from all of them."""

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        split = [size for name, (_, size) in self.split.items() if name.startswith(f"{self.spec.stages - 1}.head.")]
        if not split:
            return super().loss_of(output, target)
        own = self.part_of(split[0])
        gathered = region(output, partial(self._all_logits, vocabulary=split[0]), lambda grad: grad[..., own].clone())
        return self.spec.loss(gathered, target)

    def _all_logits(self, own: Tensor, vocabulary: int) -> Tensor:
        return self.together(own.movedim(-1, 0).contiguous(), vocabulary).movedim(0, -1)


@right("sequence clipped", "vocabulary clipped", experts="dense whole-experts experts-over-tensor-ranks")
class WholeLayersCountOnFirst(PlainSession):
    """Counts layers that tensor ranks have whole in the norm of the first rank only."""

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        first = self.spec.tensor_rank == 0
        return [(name, one) for name, one in super().counted() if first or name in self.split]

    def holders(self, name: str) -> int:
        del name
        return self.spec.replicas


@right(*_ALL)
class SharedFromTheEnd(PlainSession):
    """Gives the first tensor rank the last part of each layer."""

    def part_of(self, rows: int, tensor_rank: int | None = None) -> slice:
        rank = self.spec.tensor_rank if tensor_rank is None else tensor_rank
        return super().part_of(rows, self.spec.tensor_ranks - 1 - rank)
