"""The sharded stage that a user writes: a stage on one process, and the same stage spread over a mesh of ranks.

Nothing here imports torch, so a module of the user imports this as fast as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gradconform.exits import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


class DescriptionError(UsageError):
    """A sharded stage whose description is wrong: a placement, a shape, a name; it is never a failure of the stage."""


@runtime_checkable
class ShardedStage(Protocol):
    """A stage spread over a mesh of ranks, with the stage on one process that defines what is right.

    These members are required. The kit also reads the optional ones of ``OPTIONAL`` in this module.
    """

    @property
    def mesh(self) -> Mapping[str, int | Sequence[int]]:
        """The mesh dimensions, each with the size or sizes to try: ``{"tp": (2, 4)}``."""

    def whole(self) -> nn.Module:
        """Return the stage on one process, in float32; it must not communicate."""

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's part of the stage, in float32, with any values: the kit copies the whole stage's in.

        ``mesh`` has the dimensions of :attr:`mesh` by name. Every rank calls it in the same order.
        """

    def args(self, generator: torch.Generator) -> tuple[Any, ...]:
        """Return the whole arguments of one micro-batch, on the CPU, drawn from ``generator``.

        Floating ones get the dtype of the run, and require a gradient, unless some are marked with ``requires_grad``:
        then only those do. Shapes may differ between micro-batches: draw them from ``generator`` too.
        """


#: The optional members of a sharded stage, each with its meaning.
OPTIONAL: Mapping[str, str] = {
    "name": "the name in reports; default: the class's",
    "options": "keyword arguments of the class and the values to try: {'sequence_parallel': (False, True)}",
    "placements": "how each parameter and buffer of the sharded module is divided, by name: one of torch's placements, "
    "one per mesh dimension by its name, or a function of the whole tensor, this rank's coordinate and the mesh's "
    "sizes, both by dimension, that returns the part; a DTensor needs none",
    "arg_placements": "how each argument is divided; default: replicated",
    "output_placements": "how each output is divided; default: replicated; a DTensor needs none",
    "arg_grad_placements": "how the gradient of each argument is divided; default: as the argument. A replicated "
    "argument may have a partial gradient",
    "output_grad_placements": "how the gradient of each output is divided; default: as the output, and replicated for "
    "a partial output",
    "whole_names": "the whole stage's name of each parameter of the sharded module whose name differs, or a function "
    "of the name and this rank's coordinate that returns it",
    "finish": "finish(module): the reductions after the last backward of a step",
    "grad_norm": "grad_norm(module) -> float: the norm of all gradients by which the engine clips",
    "unsupported": "values of the kit's dimensions that the stage does not support, such as ('frozen', 'checkpoint')",
}

REQUIRED = ("mesh", "whole", "sharded", "args")
