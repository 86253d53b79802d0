"""What sessions have in common that run a stage as it is and leave the gradients of its parameters in ``.grad``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from gradconform.trees import as_tuple, flattened, map_leaves

if TYPE_CHECKING:
    from torch import nn

    from gradconform.adapter import StageSpec, Tree


class StageSession:
    """Holds a stage and, per micro-batch, what waits for the backward: arguments, and outputs or the loss."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Keep the stage; nothing is changed in it."""
        self._stage, self._spec = stage, spec
        self._module = stage  # where parameters are looked up, whatever a session has in place of the stage
        self._forwards: dict[int, tuple[tuple[Any, ...], Tree]] = {}

    @property
    def _parameters(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by name: others may have taken their places since it was opened."""
        return dict(self._module.named_parameters())

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Run the stage, and the loss where the spec has one."""
        outputs = self._stage(*args)
        if self._spec.loss_fn is None:
            self._forwards[mb] = args, outputs
        else:
            self._forwards[mb] = args, self._spec.loss_fn(outputs, target)
        return outputs

    def finish(self) -> None:
        """Do nothing: nothing is deferred beyond W."""

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return ``.grad`` of every parameter."""
        return {name: parameter.grad for name, parameter in self._parameters.items()}

    def close(self) -> None:
        """Let go of what waits for its backward."""
        self._forwards.clear()


def let_go(outputs: Tree, unsent: tuple[int, ...]) -> Tree:
    """Return a tuple of outputs with a gradient edge in the place of each tensor, None where it needs no gradient.

    Those whose numbers are in ``unsent`` stay. Nothing of what is returned holds the others.
    """
    tree = as_tuple(outputs)
    kept = [leaf for number, leaf in enumerate(flattened(tree)) if number in unsent]

    def sent(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or any(leaf is one for one in kept):
            return leaf
        return get_gradient_edge(leaf) if leaf.requires_grad else None

    return map_leaves(sent, tree)
