"""Faults of gradients that are summed during the backward, on a mesh of two dimensions."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from gradconform.reference.sharded.hooked import HookedMLP, HookedReplicas

from .fault import fault


class _DividedOverTensorRanks(HookedMLP):
    def group_of(self, parameter: Tensor) -> dist.ProcessGroup:
        divided = (self.up.weight, self.up.bias, self.down.weight)
        return self.tp if any(parameter is one for one in divided) else self.dp


@fault("gradients", "summed_over_other")
class DividedWeightsOverTensorRanks(HookedReplicas):
    """The gradients of divided weights are summed over the tensor ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}
    module = _DividedOverTensorRanks
