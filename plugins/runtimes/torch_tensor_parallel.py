"""Layers over tensor ranks by torch's ``parallelize_module``, with the styles that torch's tutorial puts on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.utils import get_total_norm

from gradconform.runtime import TensorStyle

#: What is put on a layer, one after the other. What comes before a norm, and behind it, is whole on each rank.
_STYLES: Mapping[TensorStyle, Callable[[], tuple[ParallelStyle, ...]]] = {
    "column": lambda: (ColwiseParallel(),),
    "row": lambda: (RowwiseParallel(),),
    "sequence": lambda: (
        PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(0)),
        SequenceParallel(sequence_dim=0),
        PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate()),
    ),
    "vocabulary": lambda: (ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),),
}


def share(stage: nn.Module, index: int, mesh: DeviceMesh, shared: Mapping[str, TensorStyle]) -> None:
    """Put the layers of a stage on the tensor ranks of a mesh, which :class:`~gradconform.runtime.StepSpec` names."""
    for full, style in shared.items():
        number, _, name = full.partition(".")
        if int(number) == index:
            looked_up = isinstance(stage.get_submodule(name), nn.Embedding)
            for one in (RowwiseParallel(input_layouts=Replicate()),) if looked_up else _STYLES[style]():
                parallelize_module(stage, mesh, {name: one})


@dataclass(frozen=True, slots=True)
class Laid:
    """How a parameter lay over ranks before DistributedDataParallel made a plain tensor of it."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, local: Tensor | None) -> Tensor | None:
        """Return a parameter or gradient as it lay."""
        if local is None:
            return None
        laid: Tensor = DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return laid


def laid_out(stage: nn.Module) -> Iterator[tuple[str, Laid]]:
    """Yield how each parameter of a stage lies that is not plain, by its name in it."""
    for name, one in stage.named_parameters():
        if isinstance(one, DTensor):
            yield name, Laid(one.device_mesh, one.placements, one.shape, one.stride())


def total_square(grads: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the square of the norm of gradients: of those of each mesh by itself, as torch takes no two together."""
    groups: defaultdict[DeviceMesh | None, list[Tensor]] = defaultdict(list)
    for grad in grads:
        groups[grad.device_mesh if isinstance(grad, DTensor) else None].append(grad)
    squares = [whole(get_total_norm(group)).square() for group in groups.values()]
    return torch.stack(squares).sum() if squares else torch.zeros((), device=device)


def whole(value: Tensor) -> Tensor:
    """Return a tensor that may lie over ranks as a plain one."""
    gathered: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return gathered
