"""The common part of sessions that run a stage as it is and leave parameter gradients in ``.grad``."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from gradconform.trees import as_tuple, flattened, map_leaves

from .named_tensors import NamedTensors

if TYPE_CHECKING:
    from torch import nn

    from gradconform.adapter import StageSpec, Tree


#: Reads a gradient without a Python call; they are read after every action.
_GRAD = attrgetter("grad")


class StageSession:
    """Holds a stage and, per micro-batch, the pending data for the backward: arguments, and outputs or the loss."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Store the stage; nothing is changed in it."""
        self._stage, self._spec = stage, spec
        self._named = NamedTensors(stage)  # of the stage, whatever a session uses in place of it
        self._forwards: dict[int, tuple[tuple[Any, ...], Tree]] = {}

    @property
    def _parameters(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by name: they may have been replaced since it was opened."""
        return self._named.parameters()

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Return the stage's outputs; also compute the loss if the spec has one."""
        outputs = self._stage(*args)
        if self._spec.loss_fn is None:
            self._forwards[mb] = args, outputs
        else:
            self._forwards[mb] = args, self._spec.loss_fn(outputs, target)
        return outputs

    def finish(self) -> None:
        """Do nothing: nothing is deferred after W."""

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return ``.grad`` of every parameter."""
        held = self._named.parameters()
        return dict(zip(held, map(_GRAD, held.values()), strict=True))

    def close(self) -> None:
        """Free the pending data."""
        self._forwards.clear()


def let_go(outputs: Tree, unsent: tuple[int, ...]) -> Tree:
    """Return a tuple of outputs with a gradient edge instead of each tensor, None if it needs no gradient.

    Those whose numbers are in ``unsent`` stay tensors. The result holds no reference to the others.
    """
    tree = as_tuple(outputs)
    kept = [leaf for number, leaf in enumerate(flattened(tree)) if number in unsent]

    def sent(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or any(leaf is one for one in kept):
            return leaf
        return get_gradient_edge(leaf) if leaf.requires_grad else None

    return map_leaves(sent, tree)
