"""A backward of one Linear in plain numbers, right and in some wrong forms: it uses no autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities
from gradconform.target.resolve import Target
from gradconform.target.session import StageSession
from gradconform.trees import flattened

if TYPE_CHECKING:
    from gradconform.adapter import StageSpec, Tree

Rows = list[list[float]]


@dataclass(frozen=True, slots=True)
class LinearGrads:
    """The gradients of one Linear, of its input and its parameters, None for none."""

    input: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def by_hand(linear: nn.Linear, x: Tensor, grad: Tensor) -> LinearGrads:
    """Return the gradients, added up in Python's own numbers."""
    given, rows, weight = grad.tolist(), x.tolist(), linear.weight.tolist()
    found = (_times(given, weight), _times(_turned(given), rows), [sum(column) for column in _turned(given)])
    return LinearGrads(*(torch.tensor(values, dtype=x.dtype, device=x.device) for values in found))


def _times(left: Rows, right: Rows) -> Rows:
    columns = _turned(right)
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def _turned(rows: Rows) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


Edit = Callable[[LinearGrads], LinearGrads]


def _one_element(grads: LinearGrads) -> LinearGrads:
    wrong = torch.ones_like(grads.weight)  # type: ignore[arg-type] # by_hand always sets it
    wrong[1, 2] = 1.05
    return replace(grads, weight=grads.weight * wrong)  # type: ignore[operator] # as above


#: The edits of the right gradients, by name; all except the first make them wrong.
EDITS: Mapping[str, Edit] = MappingProxyType(
    {
        "right": lambda grads: grads,
        "zeros": lambda grads: replace(grads, weight=torch.zeros_like(grads.weight)),  # type: ignore[arg-type] # as above
        "doubled": lambda grads: replace(grads, input=grads.input + grads.input),  # type: ignore[operator] # as above
        "one-element": _one_element,
        "missing": lambda grads: replace(grads, weight=None),
        "none": lambda grads: replace(grads, input=None),
    }
)


class _Session(StageSession):
    """Computes B by hand, and edits the result."""

    def __init__(self, edit: Edit, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self._edit = edit

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        (x,), _ = self._forwards.pop(mb)
        (grad,) = flattened(output_grads)
        linear: Any = self._stage
        found = self._edit(by_hand(linear, x, grad))
        for parameter, added in ((linear.weight, found.weight), (linear.bias, found.bias)):
            if added is not None:
                parameter.grad = added if parameter.grad is None else parameter.grad + added
        return (found.input,)


class _Adapter:
    """Opens stages that are one Linear."""

    name = "canary"
    capabilities: Mapping[str, Any] = MappingProxyType({"split": False})

    def __init__(self, edit: Edit) -> None:
        self._edit = edit

    def open(self, stage: nn.Module, spec: StageSpec) -> _Session:
        return _Session(self._edit, stage, spec)


def canary(name: str) -> Target:
    """Return the target for one of :data:`EDITS`."""
    adapter: Any = _Adapter(EDITS[name])
    claimed = Capabilities.from_mapping(adapter.capabilities)
    return Target(text=name, adapter=adapter, capabilities=claimed, own_adapter=False)
