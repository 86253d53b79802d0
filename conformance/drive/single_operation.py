"""One operation run alone: a sample of torch's lists without layers around it, with arguments in any layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from gradconform.devices.device import device_of
from gradconform.fixtures.grad_tuples import draw_output_grads
from gradconform.fixtures.operations.entries import quietly
from gradconform.fixtures.operations.stage import OperationStage
from gradconform.trees import Tree
from gradconform.trial.materials import Materials, stable_seed

from .driver import NO_LOG

#: Makes a tensor from another one, whose number is the first argument.
Arranged = Callable[[int, Tensor], Tensor]


class OperationError(Exception):
    """The operation raised; ``__cause__`` is its error."""


class SingleOperation:
    """A sample on the device and in the dtype of ``materials``, whose trial has its stage as the first one."""

    def __init__(self, materials: Materials) -> None:
        """Build the module of the sample, if it has one; raises the errors of the operation."""
        self._materials, self._device = materials, device_of(materials.device)
        self._function: OperationStage | None = None
        self.leaves: list[Tensor] = []
        self.grads: list[Tensor] = []

    def run(self, arranged: Arranged, of_grads: Arranged, log: AbstractContextManager[object]) -> list[Tensor | None]:
        """Return the outputs of the operation, followed by its gradients; raise :class:`OperationError`.

        ``log`` is entered around the forward and around the backward. ``arranged`` makes the leaves and ``of_grads``
        the output gradients from the drawn ones. :attr:`leaves` and :attr:`grads` are those of the last run.
        """
        stage = self._function or self.stage()
        self._function = None if stage.inner is not None else stage  # a function keeps nothing between two runs
        leaves = self.leaves_of(stage, 0, arranged)
        outputs = self.outputs_for(stage, leaves, log)
        needed = [one for one in outputs if one.requires_grad]
        grads = [of_grads(at, grad) for at, grad in enumerate(self.output_grads(needed))]
        self.leaves, self.grads = leaves, grads
        with log:
            return [*outputs, *self.grads_of(needed, leaves, grads)]

    @property
    def arguments(self) -> int:
        """The number of leaves that are arguments."""
        return len(self._materials.trial.stages[0].inputs)

    def in_dtype(self, dtype: torch.dtype) -> tuple[OperationStage, list[Tensor]]:
        """Return a new module and its leaves, with the same values in another real dtype."""
        stage = self.stage()
        leaves = [leaf.detach() for leaf in self.leaves_of(stage, 0)][: self.arguments]
        needed = [leaf.requires_grad for leaf in self.leaves_of(stage, 0)]
        stage.to(dtype)
        args = [_in_dtype(leaf, dtype).requires_grad_(grad) for leaf, grad in zip(leaves, needed, strict=False)]
        return stage, [*args, *([] if stage.inner is None else stage.inner.parameters())]

    @property
    def size(self) -> int:
        """The number of elements of all arguments."""
        return sum(one.numel() for one in self._materials.args(0, 0, self.stage()))

    def stage(self) -> OperationStage:
        """Return a new module; raise :class:`OperationError` if none exists in the dtype or on the device."""
        with _raising():
            stage = self._materials.stage(0)
        assert isinstance(stage, OperationStage)  # noqa: S101 (of a check on operations)
        return stage

    def leaves_of(self, stage: OperationStage, mb: int, arranged: Arranged = lambda _, tensor: tensor) -> list[Tensor]:
        """Return the arguments of micro-batch ``mb`` as leaves, followed by the parameters of the operation."""
        with _raising():
            args = self._materials.args(0, mb, stage)
        leaves = [arranged(at, arg.detach()).requires_grad_(arg.requires_grad) for at, arg in enumerate(args)]
        parameters = [] if stage.inner is None else list(stage.inner.parameters())
        for at, parameter in enumerate(parameters, start=len(args)):
            parameter.data = arranged(at, parameter.detach())
        return [*leaves, *parameters]

    def outputs_for(
        self, stage: OperationStage, leaves: Sequence[Tensor], log: AbstractContextManager[object] = NO_LOG
    ) -> list[Tensor]:
        """Return the outputs for leaves; those after the arguments are the module's parameters.

        ``log`` sees the operation alone, and not how generators are seeded. A leaf is passed as a view of itself, which
        the operation may write into. Each call draws the same numbers. Raises :class:`OperationError`.
        """
        args = leaves[: self.arguments]
        with self._device.generators_kept(), quietly(0), torch.enable_grad(), _raising():
            self._device.seed(self._materials.rng_seed(0))
            with log:
                given = [one.view_as(one) if one.requires_grad and one.layout is torch.strided else one for one in args]
                return stage.alone(*given)

    def output_grads(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return an output gradient on the device for each output that needs one."""
        drawn: Tree = draw_output_grads(tuple(outputs), seed=stable_seed(self._materials.seed, "alone"))
        return [grad.to(self._materials.device) for grad in drawn]

    def grads_of(
        self, outputs: Sequence[Tensor], leaves: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradient of each leaf that needs one, None for one that the outputs do not depend on.

        Raises :class:`OperationError`.
        """
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not outputs or not wanted:
            return [None] * len(wanted)
        with _raising():
            return list(torch.autograd.grad(outputs, wanted, grads, allow_unused=True))


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Raise :class:`OperationError` for every error of the operation."""
    try:
        yield
    except Exception as error:
        raise OperationError from error


def _in_dtype(leaf: Tensor, dtype: torch.dtype) -> Tensor:
    if leaf.is_complex():
        return leaf.to(dtype.to_complex())
    return leaf.to(dtype) if leaf.is_floating_point() else leaf
