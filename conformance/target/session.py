"""The common part of sessions that run a stage as it is and leave parameter gradients in ``.grad``."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradconform.trees import as_tuple, flattened, map_leaves

if TYPE_CHECKING:
    from gradconform.adapter import StageSpec, Tree


_CHILDREN, _PARAMETERS = attrgetter("_modules"), attrgetter("_parameters")


class StageParameters:
    """The current parameters of a stage by name, read after every action.

    ``named_parameters`` walks all modules again, at ten Python calls per parameter. Modules and their names stay the
    same, unless a module is replaced; parameters may be replaced at any time.
    """

    def __init__(self, stage: nn.Module) -> None:
        """Store the stage."""
        self._stage = stage
        #: A stage may list its parameters in its own way.
        self._plain = type(stage).named_parameters is nn.Module.named_parameters
        self._modules: dict[str, nn.Module] = {}
        self._children: list[dict[str, nn.Module | None]] = []

    def by_name(self) -> dict[str, nn.Parameter]:
        """Return what ``dict(stage.named_parameters())`` is: a parameter under two names has its first one."""
        if not self._plain:
            return dict(self._stage.named_parameters())
        if not self._modules or list(map(_CHILDREN, self._modules.values())) != self._children:
            self._modules = {name and f"{name}.": module for name, module in self._stage.named_modules()}
            self._children = [dict(module._modules) for module in self._modules.values()]  # noqa: SLF001 (no public name has no copy)
        found: dict[str, nn.Parameter] = {}
        seen: set[int] = set()
        for prefix, own in zip(self._modules, map(_PARAMETERS, self._modules.values()), strict=True):
            for name, parameter in own.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    found[prefix + name] = parameter
        return found


class StageSession:
    """Holds a stage and, per micro-batch, the pending data for the backward: arguments, and outputs or the loss."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Store the stage; nothing is changed in it."""
        self._stage, self._spec = stage, spec
        self._named = StageParameters(stage)  # of the stage, whatever a session uses in place of it
        self._forwards: dict[int, tuple[tuple[Any, ...], Tree]] = {}

    @property
    def _parameters(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by name: they may have been replaced since it was opened."""
        return self._named.by_name()

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
        return {name: parameter.grad for name, parameter in self._named.by_name().items()}

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
