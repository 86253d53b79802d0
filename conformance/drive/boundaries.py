"""Records the gradients at the boundaries of modules inside a stage, by hooks that change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gradconform.devices.tensor_facts import version_of
from gradconform.trees import tensors
from gradconform.trial.materials import Materials

from .watches import on_cpu

#: One forward of a stage: the stage, and how many of its forwards came before.
Forward = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the module ``path`` in a forward; its tensors in the order in which the forward used them.

    ``parameters`` are the names of its own, without those of modules inside it.
    """

    path: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[str, ...]


@dataclass(slots=True)
class Boundaries:
    """The records: the calls of each forward in the order they ended, and each tensor gradient as it arrived."""

    calls: dict[Forward, list[Call]] = field(default_factory=dict)
    gradients: dict[Forward, dict[int, list[Tensor]]] = field(default_factory=dict)


class WatchedMaterials(Materials):
    """Materials whose stages record in ``boundaries`` the gradients between their modules."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Create empty records."""
        super().__init__(*given, **named)
        self.boundaries = Boundaries()
        self._forwards: Counter[int] = Counter()

    def stage(self, lane: int) -> nn.Module:
        """Return a new module, with hooks on all modules inside."""
        module = super().stage(lane)
        _Watch(module, lane, self._forwards, self.boundaries)
        return module


class _Watch:
    """The hooks on one stage. They hold the tensors of a forward until the next one begins, so no id is reused."""

    def __init__(self, stage: nn.Module, lane: int, forwards: Counter[int], found: Boundaries) -> None:
        self._lane, self._forwards, self._found = lane, forwards, found
        self._met: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._paths = {id(module): path for path, module in stage.named_modules()}
        self._own = {id(module): _own_parameters(path, module) for path, module in stage.named_modules()}
        stage.register_forward_pre_hook(self._begins)
        for module in stage.modules():
            module.register_forward_hook(self._ended, with_kwargs=True)

    def _begins(self, _: nn.Module, __: Any) -> None:
        self._forwards[self._lane] += 1
        self._met.clear()
        self._found.calls[self._forward] = []
        self._found.gradients[self._forward] = {}

    @property
    def _forward(self) -> Forward:
        return self._lane, self._forwards[self._lane]

    def _ended(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any], outputs: Any) -> None:
        calls = self._found.calls.get(self._forward)
        if calls is not None:
            given, made = self._numbered(tensors((args, dict(kwargs)))), self._numbered(tensors(outputs))
            calls.append(Call(self._paths[id(module)], given, made, self._own[id(module)]))

    def _numbered(self, several: Iterable[Tensor]) -> tuple[int, ...]:
        """Return the numbers of tensors that have a gradient; an in-place change makes a new tensor."""
        return tuple(self._number(one) for one in several if one.requires_grad)

    def _number(self, tensor: Tensor) -> int:
        key = id(tensor), version_of(tensor)
        if key not in self._met:
            number = len(self._met)
            self._met[key] = number, tensor
            of_forward = self._found.gradients[self._forward]
            # No method is used as a hook here: it would hold this forward's tensors as long as the graph.
            tensor.register_hook(lambda grad: of_forward.setdefault(number, []).append(on_cpu(grad).clone()))
        return self._met[key][0]


def _own_parameters(path: str, module: nn.Module) -> tuple[str, ...]:
    return tuple(f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters(recurse=False))
