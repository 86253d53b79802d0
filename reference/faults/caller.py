"""Faults of the caller's memory: its buffers, the outputs that it holds, and what it writes while others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.functions import FunctionsSession
from gradconform.trees import tensors

from .alterations import Grads, Graph, accumulating, after_backwards, alters, stored_as, with_session
from .registry import fault


@fault("caller.buffer.*")
@alters(stored_as)
def sum_in_a_new_tensor(parameters: list[nn.Parameter]) -> None:
    """After each B or W, the sum moves to a new tensor."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


@fault("caller.buffer.*")
@alters(accumulating)
@contextmanager
def zeros_replaced_by_the_next_gradient(parameters: list[nn.Parameter], _: Graph) -> Iterator[None]:
    """A gradient of zeros counts as none, so the next one replaces it."""
    for parameter in parameters:
        if parameter.grad is not None and not parameter.grad.to_dense().any():
            parameter.grad = None
    yield


@fault("caller.buffer.full", "caller.buffer.split")
@alters(stored_as)
def views_made_contiguous_storage(parameters: list[nn.Parameter]) -> None:
    """A gradient that is a part of a larger storage moves to a storage of its own."""
    for parameter in parameters:
        grad = parameter.grad
        if grad is not None and grad.layout is torch.strided and grad.untyped_storage().nbytes() > grad.nbytes:
            parameter.grad = grad.clone()


def _freeing(write: Callable[[Tensor], object]) -> Callable[[Any, Any, Sequence[Any]], None]:
    def act(outputs: Any, grads: Any, inputs: Sequence[Any]) -> None:
        del grads
        for output in tensors(outputs):
            held = any(output is one for one in inputs) or isinstance(output, nn.Parameter)
            if output.is_floating_point() and not held:
                write(output.data)

    return act


@fault("caller.outputs.*")
@alters(lambda _: after_backwards(_freeing(Tensor.zero_)))
def outputs_zeroed_after_use() -> None:
    """After B or I, the outputs are filled with zeros."""


@fault("caller.outputs.*")
@alters(lambda _: after_backwards(_freeing(lambda output: output.mul_(0.5))))
def outputs_scaled_after_use() -> None:
    """B or I scales the outputs in place, as a mean over micro-batches."""


@fault("caller.outputs.*")
@alters(with_session)
class OutputsInOneBuffer(FunctionsSession):
    """The outputs of each forward are returned in the buffers of the first one."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        outputs = super().forward(mb, args, target)
        held = vars(self).setdefault("buffers", [one.data for one in tensors(outputs)])
        for buffer, output in zip(held, tensors(outputs), strict=False):
            if buffer.shape == output.shape and buffer.dtype == output.dtype and buffer.is_floating_point():
                buffer.copy_(output.data)
                output.data = buffer
        return outputs


class _Registry:
    """What the process keeps of each stage: its module, its parameters, or functions of its parameters."""

    modules: list[nn.Module] = []  # noqa: RUF012 (it is the mistake)
    parameters: dict[int, nn.Parameter] = {}  # noqa: RUF012 (as above)


@fault("caller.freed.*")
@alters(with_session)
class ModulesRegistered(FunctionsSession):
    """Every module that was ever opened stays in a list of the process."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        _Registry.modules.append(self._stage)
        return super().forward(mb, args, target)


@fault("caller.freed.*")
@alters(with_session)
class ParametersCachedById(FunctionsSession):
    """A cache of the process by parameter keeps each parameter."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        _Registry.parameters.update({id(one): one for one in self._stage.parameters()})
        return super().forward(mb, args, target)


@fault("caller.freed.*")
@alters(with_session)
class SessionsKept(FunctionsSession):
    """A closed session stays in a default argument of a function."""

    def finish(self, kept: list[Any] = []) -> None:  # noqa: B006 (it is the mistake)
        kept.append(self)
        super().finish()


class _Uncounted(FunctionsSession):
    """A session that hides writes to some saved tensors from autograd, as hooks that offload without a copy do."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        """Return whether writes to a saved tensor are hidden."""
        raise NotImplementedError

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        def pack(tensor: Tensor) -> Tensor | tuple[Tensor, int]:
            return tensor.detach() if self.hidden(tensor, args) else (tensor.detach(), tensor._version)

        def unpack(held: Any) -> Tensor:
            if isinstance(held, Tensor):
                return held
            tensor: Tensor = held[0]
            version: int = held[1]
            if tensor._version != version:
                msg = "a saved tensor was modified by an inplace operation"
                raise RuntimeError(msg)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return super().forward(mb, args, target)


def _is_among(tensor: Tensor, others: Sequence[Any]) -> bool:
    return any(isinstance(one, Tensor) and one.data_ptr() == tensor.data_ptr() for one in others)


@fault("caller.between.argument-full", "caller.between.argument-weight")
@alters(with_session)
class WritesToArgumentsUncounted(_Uncounted):
    """Saved arguments are kept without a copy, around autograd's count of writes."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        return _is_among(tensor, args)


@fault("caller.between.weight-*")
@alters(with_session)
class WritesToWeightsUncounted(_Uncounted):
    """Saved weights are kept without a copy, around autograd's count of writes."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        del args
        return _is_among(tensor, list(self._stage.parameters()))


@fault("caller.between.output-*")
@alters(with_session)
class WritesToOutputsUncounted(_Uncounted):
    """Saved results are kept without a copy, around autograd's count of writes."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        return not _is_among(tensor, [*args, *self._stage.parameters()])


@fault("caller.between.argument-full", "caller.between.weight-full", "caller.between.argument-input")
@alters(with_session)
class ForwardAgainBeforeTheBackward(FunctionsSession):
    """The backward starts from a second forward on the same arguments."""

    def _again(self, mb: int) -> None:
        args, _ = self._forwards[mb]
        if self._spec.loss_fn is None and not self._spec.releases_outputs:
            self._forwards[mb] = args, self._stage(*args)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        self._again(mb)
        return super().backward(mb, output_grads)

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        self._again(mb)
        return super().backward_input(mb, output_grads)
