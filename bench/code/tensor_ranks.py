"""Layers that tensor ranks share: what is summed over them, and what is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.reference.runtime import PlainSession
from gradconform.reference.tensor_parallel import region

from .rebuilt import StepTarget


def _as_it_is(value: Tensor) -> Tensor:
    return value.view_as(value)


class LastNormNotMarked(PlainSession):
    """Megatron-LM-1446: the last norm is not marked as one that sees a part of the sequence."""

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        """Sum over tensor ranks but for the norm of the last stage."""
        return grad if name.startswith(f"{self.spec.stages - 1}.") else super().over_tensor_ranks(name, grad)


class ReplicatedReducedAgain(PlainSession):
    """AReno-496: parameters before a column layer, whose input gradient is reduced, are reduced over tensor ranks."""

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        """Sum what each tensor rank has whole already."""
        whole = name not in self.split and self.spec.shared.get(name.rpartition(".")[0]) is None
        return self.sum(grad) if whole else super().over_tensor_ranks(name, grad)


class GatherThenColumn(PlainSession):
    """Automodel-1260, mended: rows are gathered for layers that differ by rank, so the backward sums and then cuts."""

    def all_rows(self, value: Tensor, rows: int) -> Tensor:
        """Put rows together; the gradient is the sum of what all ranks have of them."""
        return region(value, lambda own: self.together(own, rows), self.back)

    def back(self, grad: Tensor) -> Tensor:
        """Reduce, and cut to this rank's rows."""
        return self.cut(self.sum(grad))

    def column(self, module: nn.Linear, value: Tensor) -> Tensor:
        """Return this rank's outputs; what comes in was gathered."""
        return F.linear(value, module.weight, module.bias)


class GatherTakenForReplicated(GatherThenColumn):
    """Automodel-1260: the gradient is taken for one that is the same on all ranks, and cut."""

    def back(self, grad: Tensor) -> Tensor:
        """Cut to this rank's rows."""
        return self.cut(grad)


class ReducedInPlace(PlainSession):
    """SkyRL-1886, mended: the input gradient of a column layer is reduced in a contiguous copy, which is returned."""

    def column(self, module: nn.Linear, value: Tensor) -> Tensor:
        """Let the input pass the region as another layout than the layer's own."""
        entered = region(value.t(), _as_it_is, self.reduced).t()
        return F.linear(entered, module.weight, module.bias)

    def reduced(self, grad: Tensor) -> Tensor:
        """Reduce into contiguous memory, and return that."""
        memory = grad.contiguous()
        self.reduce_into(memory)
        return memory

    def reduce_into(self, memory: Tensor) -> None:
        """Let the memory hold the sum over tensor ranks, as a collective does in place."""
        with torch.no_grad():
            memory.copy_(self.sum(memory))


class CopyReduced(ReducedInPlace):
    """SkyRL-1886: a gradient that is not contiguous is reduced in a copy, and returned as it was."""

    def reduced(self, grad: Tensor) -> Tensor:
        """Reduce what may be a copy, and return what came."""
        self.reduce_into(grad.contiguous())
        return grad


last_norm_not_marked = StepTarget(LastNormNotMarked)
replicated_reduced_again = StepTarget(ReplicatedReducedAgain)
gather_then_column = StepTarget(GatherThenColumn)
gather_taken_for_replicated = StepTarget(GatherTakenForReplicated)
reduced_in_place = StepTarget(ReducedInPlace)
copy_reduced = StepTarget(CopyReduced)
