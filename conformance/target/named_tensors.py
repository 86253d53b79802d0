"""The tensors of a stage by name, read after every action without a walk through its modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TypeVar

from torch import Tensor, nn

_CHILDREN, _PARAMETERS, _BUFFERS = map(attrgetter, ("_modules", "_parameters", "_buffers"))

_Held = TypeVar("_Held", bound=Tensor)


class NamedTensors:
    """The current parameters and buffers of a stage by name.

    ``named_parameters`` walks all modules again, at ten Python calls per parameter. Modules and their names stay the
    same, unless a module is replaced; tensors may be replaced at any time.
    """

    def __init__(self, stage: nn.Module) -> None:
        """Store the stage."""
        self._stage = stage
        #: A stage may list its tensors in its own way.
        kind, plain = type(stage), nn.Module
        self._plain = kind.named_parameters is plain.named_parameters and kind.named_buffers is plain.named_buffers
        self._modules: dict[str, nn.Module] = {}
        self._children: list[dict[str, nn.Module | None]] = []

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return what ``dict(stage.named_parameters())`` is: a parameter under two names has its first one."""
        return self._held(_PARAMETERS) if self._plain else dict(self._stage.named_parameters())

    def buffers(self) -> dict[str, Tensor]:
        """Return what ``dict(stage.named_buffers())`` is."""
        return self._held(_BUFFERS) if self._plain else dict(self._stage.named_buffers())

    def _held(self, registry: Callable[[nn.Module], Mapping[str, _Held | None]]) -> dict[str, _Held]:
        """Return what the modules hold, each once; they are found again if one was added, removed or replaced."""
        if not self._modules or list(map(_CHILDREN, self._modules.values())) != self._children:
            self._modules = {name and f"{name}.": module for name, module in self._stage.named_modules()}
            self._children = list(map(dict, map(_CHILDREN, self._modules.values())))
        found: dict[str, _Held] = {}
        seen: set[int] = set()
        for prefix, own in zip(self._modules, map(registry, self._modules.values()), strict=True):
            for name, tensor in own.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[prefix + name] = tensor
        return found
