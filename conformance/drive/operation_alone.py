"""One operation run alone: a sample of torch's lists without the layers around it, its arguments as one likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradconform.devices.device import device_of
from gradconform.fixtures.grad_tuples import draw_output_grads
from gradconform.fixtures.operations.entries import quietly
from gradconform.fixtures.operations.stage import OperationStage
from gradconform.trees import Tree
from gradconform.trial.materials import Materials, stable_seed

#: Makes a tensor of another one, whose number is given first.
Arranged = Callable[[int, Tensor], Tensor]


class OperationAlone:
    """A sample on the device and in the dtype of ``materials``, whose trial has its stage as the first one."""

    def __init__(self, materials: Materials) -> None:
        """Build the module of the sample, if it has one; raises what the operation raises."""
        self._materials, self._device = materials, device_of(materials.device)
        self.leaves = 0

    def run(self, arranged: Arranged, of_grads: Arranged) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the outputs and the gradients of all leaves, parameters last; raises what the operation raises.

        ``arranged`` makes the leaves and ``of_grads`` the output gradients of what was drawn. :attr:`leaves` is their
        number, that of the parameters included.
        """
        stage = self.stage()
        args, parameters = self.args(stage), [] if stage.inner is None else list(stage.inner.parameters())
        self.leaves = len(args) + len(parameters)
        leaves = [arranged(at, arg.detach()).requires_grad_(arg.requires_grad) for at, arg in enumerate(args)]
        for at, parameter in enumerate(parameters, start=len(args)):
            parameter.data = arranged(at, parameter.detach())
        outputs = self.outputs(stage, leaves)
        needed = [one for one in outputs if one.requires_grad]
        grads = [of_grads(at, grad) for at, grad in enumerate(self.output_grads(needed))]
        wanted = [leaf for leaf in [*leaves, *parameters] if leaf.requires_grad]
        if not needed or not wanted:
            return outputs, []
        return outputs, list(torch.autograd.grad(needed, wanted, grads, allow_unused=True))

    def stage(self) -> OperationStage:
        """Return a new module."""
        stage = self._materials.stage(0)
        assert isinstance(stage, OperationStage)  # noqa: S101 (of a check on operations)
        return stage

    def args(self, stage: OperationStage) -> tuple[Tensor, ...]:
        """Return the arguments as they are drawn."""
        return self._materials.args(0, 0, stage)

    def outputs(self, stage: OperationStage, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs; a leaf is handed on as a view of itself, which the operation may write into."""
        given = [one.view_as(one) if one.requires_grad and one.layout is torch.strided else one for one in leaves]
        with self._device.generators_kept(), quietly(0), torch.enable_grad():
            self._device.seed(self._materials.rng_seed(0))
            return stage.alone(*given)

    def output_grads(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return an output gradient on the device for each output that needs one."""
        drawn: Tree = draw_output_grads(tuple(outputs), seed=stable_seed(self._materials.seed, "alone"))
        return [grad.to(self._materials.device) for grad in drawn]
