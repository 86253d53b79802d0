"""The MLP of :mod:`.column_row` divided by torch's own parallel styles, whose parameters are DTensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from .column_row import POSITIONS, ROWS, WIDTH, WholeMLP


class TorchStyles:
    """The sharded stage: no placement is needed, because every parameter is a DTensor."""

    name = "torch-styles"
    mesh = {"tp": (2, 4)}
    options = {"sequence_parallel": (False, True)}

    def __init__(self, *, sequence_parallel: bool = False) -> None:
        self.sequence_parallel = sequence_parallel
        if sequence_parallel:
            self.arg_placements = self.output_placements = (Shard(1),)

    def whole(self) -> nn.Module:
        return WholeMLP()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        if not self.sequence_parallel:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            return parallelize_module(WholeMLP(), mesh["tp"], plan)
        styles = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        return parallelize_module(WholeMLP(), mesh["tp"], styles)

    #: The norm stays a plain module without sequence parallelism.
    placements = {"norm.weight": Replicate(), "norm.bias": Replicate()}

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)
