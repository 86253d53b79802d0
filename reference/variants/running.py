"""Right variants that run the forward in other ways, or run it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradconform.adapter import StageSpec
from gradconform.reference.autograd import leaf_of
from gradconform.trees import map_leaves

from .sessions import APART, Grads, Returned, Session, adapter, roots_of


class _Detached(Session):
    """Returns leaves on the outputs' memory instead of the outputs."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        return map_leaves(leaf_of, super().forward(mb, args, target))


class _Cloned(Session):
    """Runs the stage on copies of its arguments; an argument that is passed twice is copied once."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        copies = {id(arg): leaf_of(arg.detach().clone()).requires_grad_(arg.requires_grad) for arg in _leaves(args)}
        return super().forward(mb, tuple(copies.get(id(arg), arg) for arg in args), target)


def _leaves(args: tuple[Any, ...]) -> list[Tensor]:
    return [arg for arg in args if isinstance(arg, Tensor) and not isinstance(arg, nn.Parameter)]


class _Packed(Session):
    """Packs the graph's saved tensors into bytes, and unpacks them on use."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
            return super().forward(mb, args, target)


def _pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
    return tensor.device, tensor.detach().cpu().clone()


def _unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
    device, tensor = packed
    return tensor.to(device)


class _Functional(Returned):
    """Calls the stage as a function of leaves on its parameters' memory, which receive the gradients."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.leaves: dict[str, Tensor] = {name: leaf_of(parameter) for name, parameter in self._parameters.items()}

    @property
    def trainable(self) -> dict[str, Tensor]:
        """The leaves that currently require a gradient."""
        return {name: leaf for name, leaf in self.leaves.items() if leaf.requires_grad}

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        for name, leaf in self.leaves.items():
            leaf.requires_grad_(self._parameters[name].requires_grad)
        outputs = functional_call(self._stage, self.leaves, args)
        loss_fn = self._spec.loss_fn
        self._forwards[mb] = args, outputs if loss_fn is None else loss_fn(outputs, target)
        return outputs


@dataclass(frozen=True)
class _Ran:
    """The arguments and settings of a forward."""

    args: tuple[Any, ...]
    target: Any
    buffers: dict[str, Tensor]
    autocast: bool


def _kind(args: tuple[Any, ...]) -> str:
    """Return the type of the device that a forward runs on."""
    return next((arg.device.type for arg in args if isinstance(arg, Tensor)), "cpu")


class _Again(Session):
    """Frees the graph in I, and repeats the forward in W with the earlier values of buffers."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.inputs: dict[int, _Ran] = {}
        self.waiting: dict[int, tuple[_Ran, Any]] = {}

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        buffers = {name: one.detach().clone() for name, one in self._stage.named_buffers()}
        self.inputs[mb] = _Ran(args, target, buffers, autocast=torch.is_autocast_enabled(_kind(args)))
        return super().forward(mb, args, target)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        del self.inputs[mb]
        return super().backward(mb, output_grads)

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        inputs = self.inputs.pop(mb)
        found = super().backward_input(mb, output_grads)
        self.take(mb)  # the graph is freed
        copies = map_leaves(lambda grad: grad.clone() if isinstance(grad, Tensor) else grad, output_grads)
        self.waiting[mb] = inputs, copies
        return found

    def backward_weight(self, mb: int) -> None:
        if mb not in self.waiting:
            msg = f"W of micro-batch {mb} has nothing to do: there was no I, or its W has run"
            raise RuntimeError(msg)
        ran, grads = self.waiting.pop(mb)
        loss_fn = self._spec.loss_fn
        with torch.enable_grad(), torch.autocast(_kind(ran.args), enabled=ran.autocast):
            outputs = functional_call(self._stage, ran.buffers, ran.args)
            roots, starts = roots_of(outputs if loss_fn is None else loss_fn(outputs, ran.target), grads)
        if roots and self.trainable:
            torch.autograd.backward(roots, starts, inputs=list(self.trainable.values()))

    def close(self) -> None:
        super().close()
        self.inputs.clear()
        self.waiting.clear()


VARIANTS: dict[str, Callable[[], object]] = {
    "outputs-detached": partial(adapter, _Detached),
    "arguments-cloned": partial(adapter, _Cloned),
    "saved-tensors-packed": partial(adapter, _Packed),
    "function-of-its-parameters": partial(
        adapter,
        _Functional,
        **{**APART, "hooks": "nowhere"},
        parameter_input=False,
        recomputes=False,
        changed_params=False,
    ),
    "forward-again-in-w": partial(
        adapter, _Again, rng=False, recomputes=False, parameter_input=False, changed_in_flight=False
    ),
}
