"""Faults of a sequence that is split over ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from gradconform.reference.sharded.context import ContextAttention, ShardedAttention

from .fault import fault


@fault("gradients", "not_summed_over")
class ContextGradientsNotSummed(ContextAttention):
    """Parameter gradients are summed over no context rank."""

    def finish(self, module: ShardedAttention) -> None:
        return


@fault("gradients", "divided_by_size_of")
class ContextGradientsAveraged(ContextAttention):
    """Parameter gradients are averaged over the context ranks."""

    def finish(self, module: ShardedAttention) -> None:
        super().finish(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= module.group.size()


class _NotPassedBack(ShardedAttention):
    def passed(self, pair: Tensor) -> Tensor:
        return super().passed(pair.detach())


@fault("input-gradients", "not_summed_over")
class RingWithoutBackward(ContextAttention):
    """Keys and values of other ranks pass no gradient back."""

    module = _NotPassedBack


class _ReplicaNotPassedBack(_NotPassedBack):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(mesh)
        self.dp = mesh.get_group("dp")


@fault("input-gradients", "not_summed_over")
class ReplicatedRingWithoutBackward(RingWithoutBackward):
    """Keys and values of other ranks pass no gradient back, and each ring has its own rows."""

    mesh: Any = {"dp": (2,), "cp": (2,)}
    arg_placements: Any = ({"dp": Shard(0), "cp": Shard(1)},)
    output_placements: Any = arg_placements
    module = _ReplicaNotPassedBack

    def finish(self, module: ShardedAttention) -> None:
        super().finish(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=module.dp)
