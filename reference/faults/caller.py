"""Faults of the caller's memory: its buffers, the outputs that it holds, and what it writes while others wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.functions import FunctionsSession
from gradconform.trees import map_leaves, tensors

from .alterations import Grads, Graph, accumulating, after_backwards, alters, stored_as, with_session
from .registry import fault


@fault("caller.buffer.*", cause="beside_buffer")
@alters(stored_as)
def sum_in_a_new_tensor(parameters: list[nn.Parameter]) -> None:
    """After each B or W, the sum moves to a new tensor."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


@fault("caller.buffer.*", cause="beside_buffer")
@alters(accumulating)
@contextmanager
def zeros_replaced_by_the_next_gradient(parameters: list[nn.Parameter], _: Graph) -> Iterator[None]:
    """A gradient of zeros counts as none, so the next one replaces it."""
    for parameter in parameters:
        if parameter.grad is not None and not parameter.grad.to_dense().any():
            parameter.grad = None
    yield


@fault("caller.buffer.full", "caller.buffer.split", cause="beside_buffer")
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


@fault("state.before_backward.argument", "state.between.argument-weight", cause="writes_uncounted")
@alters(with_session)
class WritesToArgumentsUncounted(_Uncounted):
    """Saved arguments are kept without a copy, around autograd's count of writes."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        return _is_among(tensor, args)


@fault("state.before_backward.weight", "state.between.weight-*", cause="writes_uncounted")
@alters(with_session)
class WritesToWeightsUncounted(_Uncounted):
    """Saved weights are kept without a copy, around autograd's count of writes."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        del args
        return _is_among(tensor, list(self._stage.parameters()))


@fault("state.before_backward.output", cause="writes_uncounted")
@alters(with_session)
class WritesToOutputsUncounted(_Uncounted):
    """Saved results are kept without a copy, around autograd's count of writes."""

    def hidden(self, tensor: Tensor, args: Sequence[Any]) -> bool:
        return not _is_among(tensor, [*args, *self._stage.parameters()])


@fault("state.before_backward.argument", "state.before_backward.weight", cause="forward_runs_again")
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


@fault("state.before_backward.data", cause="weights_of_now")
@alters(with_session)
class WeightsSavedByTheirParameter(FunctionsSession):
    """A saved weight is kept as a reference to its parameter, and the backward reads the parameter's memory of then."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        owners = {one.untyped_storage().data_ptr(): one for one in self._stage.parameters()}

        def pack(tensor: Tensor) -> Any:
            strided = tensor.layout is torch.strided
            owner = owners.get(tensor.untyped_storage().data_ptr()) if strided else None
            if owner is None or not owner.is_contiguous() or tensor.dtype is not owner.dtype:
                return tensor
            return owner, tensor.shape, tensor.stride(), tensor.storage_offset() - owner.storage_offset()

        def unpack(held: Any) -> Tensor:
            if isinstance(held, Tensor):
                return held
            now = held[0].data
            found: Tensor = now.as_strided(held[1], held[2], now.storage_offset() + held[3])
            return found

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return super().forward(mb, args, target)


@fault("state.between.data-weight", cause="memory_replaced")
@alters(with_session)
class OtherMemoryEndsTheMicroBatch(FunctionsSession):
    """A W adds nothing to a parameter whose memory is not that of its I."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        vars(self).setdefault("places", {})[mb] = [one.data_ptr() for one in self._stage.parameters()]
        return super().backward_input(mb, output_grads)

    def backward_weight(self, mb: int) -> Grads | None:
        known = zip(self._stage.parameters(), vars(self)["places"][mb], strict=True)
        with _kept([one for one, place in known if one.data_ptr() != place]):
            return super().backward_weight(mb)


@fault("state.before_backward.data", "state.between.data-weight", cause="scaled")
@alters(with_session)
class GradientsScaledByTheWeightsOfNow(FunctionsSession):
    """Gradients are divided by the norm of the weights that their forward had, and multiplied by that of now."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        vars(self).setdefault("norms", {})[mb] = self._norms()
        return super().forward(mb, args, target)

    def _norms(self) -> list[float]:
        return [float(one.detach().float().norm()) for one in self._stage.parameters() if one.dim() > 1]

    def _scaled(self, mb: int, grads: Any) -> Any:
        factor = 1.0
        for then, now in zip(vars(self)["norms"][mb], self._norms(), strict=True):
            factor *= now / then if then and now != then else 1.0
        return (
            grads if factor == 1.0 else map_leaves(lambda one: one * factor if isinstance(one, Tensor) else one, grads)
        )

    def backward(self, mb: int, output_grads: Any) -> Grads:
        return super().backward(mb, self._scaled(mb, output_grads))

    def backward_weight(self, mb: int) -> Grads | None:
        for group in self._contexts[mb]:
            if "grads" in group:
                group["grads"] = [tuple(self._scaled(mb, some)) for some in group["grads"]]
        return super().backward_weight(mb)


class _TrainedThen(FunctionsSession):
    """A session that remembers which parameters a forward trained."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        vars(self).setdefault("trained", {})[mb] = [one for one in self._stage.parameters() if one.requires_grad]
        return super().forward(mb, args, target)

    def frozen_since(self, mb: int) -> list[nn.Parameter]:
        """Return the parameters that the forward trained and that are frozen now."""
        return [one for one in vars(self)["trained"][mb] if not one.requires_grad]

    @contextmanager
    def thawed(self, mb: int) -> Iterator[None]:
        """Train the parameters that the forward trained."""
        frozen = self.frozen_since(mb)
        for one in frozen:
            one.requires_grad = True
        yield
        for one in frozen:
            one.requires_grad = False

    @contextmanager
    def kept_if_frozen(self, mb: int) -> Iterator[None]:
        """Keep all gradients as they are if a parameter was frozen since the forward."""
        with _kept(list(self._stage.parameters()) if self.frozen_since(mb) else []):
            yield


@contextmanager
def _kept(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    before = [(one, one.grad) for one in parameters]
    for one, grad in before:
        one.grad = None if grad is None else grad.clone()
    yield
    for one, grad in before:
        one.grad = grad


@fault("steps.frozen.in-flight-full")
@alters(with_session)
class ThawedForTheBackward(_TrainedThen):
    """A B gives every parameter that its forward trained a gradient, also one that is frozen now."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        with self.thawed(mb):
            return super().backward(mb, output_grads)


@fault("steps.frozen.before-weight")
@alters(with_session)
class ThawedForTheWeightPass(_TrainedThen):
    """A W gives every parameter that its forward trained a gradient, also one that is frozen now."""

    def backward_weight(self, mb: int) -> Grads | None:
        with self.thawed(mb):
            return super().backward_weight(mb)


@fault("steps.frozen.in-flight-full", "steps.frozen.before-weight", cause="never_accumulated")
@alters(with_session)
class OneFrozenEndsTheMicroBatch(_TrainedThen):
    """If a parameter was frozen since the forward, no parameter gets a gradient."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        with self.kept_if_frozen(mb):
            return super().backward(mb, output_grads)

    def backward_weight(self, mb: int) -> Grads | None:
        with self.kept_if_frozen(mb):
            return super().backward_weight(mb)
