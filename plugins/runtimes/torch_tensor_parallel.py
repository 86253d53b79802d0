"""Shares layers over tensor ranks by torch's ``parallelize_module``, with the styles of torch's tutorial."""

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

#: The styles of a layer, in order of application. The input and output of a norm are whole on each rank.
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
    """The placement of a parameter over ranks before DistributedDataParallel turned it into a plain tensor."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, local: Tensor | None) -> Tensor | None:
        """Return a parameter or gradient in its earlier placement."""
        if local is None:
            return None
        laid: Tensor = DTensor.from_local(
            local, self.mesh, self.placements, run_check=False, shape=self.shape, stride=self.stride
        )
        return laid


def laid_out(stage: nn.Module) -> Iterator[tuple[str, Laid]]:
    """Yield the placement of each distributed parameter of a stage, by its name in it."""
    for name, one in stage.named_parameters():
        if isinstance(one, DTensor):
            yield name, Laid(one.device_mesh, one.placements, one.shape, one.stride())


def total_square(grads: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the squared norm of gradients: computed per mesh, because torch combines no two meshes."""
    groups: defaultdict[DeviceMesh | None, list[Tensor]] = defaultdict(list)
    for grad in grads:
        groups[grad.device_mesh if isinstance(grad, DTensor) else None].append(grad)
    squares = [whole(get_total_norm(group)).square() for group in groups.values()]
    return torch.stack(squares).sum() if squares else torch.zeros((), device=device)


def whole(value: Tensor) -> Tensor:
    """Return a tensor, which may be distributed, as a plain one."""
    gathered: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return gathered
