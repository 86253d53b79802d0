"""Faults of replicas, on a mesh of two dimensions: a mean over all tokens, and sums of gradients."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gradconform.reference.sharded.hooked import HookedMLP, HookedReplicas
from gradconform.reference.sharded.regions import summed
from gradconform.reference.sharded.token_mean import ShardedClassifier, TokenMean

from .experts import reduce_all
from .fault import fault


class _OwnMean(ShardedClassifier):
    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        return losses / valid.clamp(min=1) / self.dp.size()


@fault("gradients", "mean_of_ranks")
class MeanOfRanks(TokenMean):
    """Each rank divides by its own tokens, and the means are averaged."""

    module = _OwnMean


class _MeanInBuffers(_OwnMean):
    """Gradients are moved into a buffer during the backward, as engines with a buffer of gradients do."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(mesh)
        self.buffers_of: dict[nn.Parameter, Tensor] = {}
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(self.moved)

    def moved(self, parameter: nn.Parameter) -> None:
        if parameter.grad is not None:
            own = self.buffers_of.get(parameter)
            self.buffers_of[parameter] = parameter.grad if own is None else own + parameter.grad
            parameter.grad = None


@fault("gradients", "mean_of_ranks")
class MeanOfRanksInBuffers(TokenMean):
    """Each rank divides by its own tokens, and the sum of gradients in buffers is only seen after ``finish``."""

    module = _MeanInBuffers

    def finish(self, module: ShardedClassifier) -> None:
        moved: Any = module
        for parameter, own in moved.buffers_of.items():
            parameter.grad = summed(own, module.dp)
        moved.buffers_of.clear()


@fault("gradients", "not_summed_over")
class ReplicasNotSummed(TokenMean):
    """Gradients are summed over no replica."""

    def finish(self, module: ShardedClassifier) -> None:
        return


@fault("gradients", "divided_by_size_of")
class ReplicasAveraged(TokenMean):
    """Gradients of a mean over all tokens are averaged over the replicas once more."""

    def finish(self, module: ShardedClassifier) -> None:
        super().finish(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= module.dp.size()


@fault("gradients", "summed_over_other")
class SummedOverWrongGroup(TokenMean):
    """Gradients are summed over the tensor ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}

    def finish(self, module: ShardedClassifier) -> None:
        reduce_all(module.parameters(), module.tp)


@fault("gradients", "parts_summed")
class SummedOverAllRanks(TokenMean):
    """Gradients are summed over all ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}

    def finish(self, module: ShardedClassifier) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class _CountedOverTensorRanks(ShardedClassifier):
    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        return losses / summed(valid, self.tp).clamp(min=1)


@fault("gradients", "mean_of_ranks")
class TokensCountedOverWrongGroup(TokenMean):
    """The tokens are counted over the tensor ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}
    module = _CountedOverTensorRanks


class _DividedOverTensorRanks(HookedMLP):
    def group_of(self, parameter: Tensor) -> dist.ProcessGroup:
        divided = (self.up.weight, self.up.bias, self.down.weight)
        return self.tp if any(parameter is one for one in divided) else self.dp


@fault("gradients", "summed_over_other")
class DividedWeightsOverTensorRanks(HookedReplicas):
    """The gradients of divided weights are summed over the tensor ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}
    module = _DividedOverTensorRanks
