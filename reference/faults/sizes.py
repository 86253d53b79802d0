"""Faults of counts and sizes: right up to a boundary, or for all but one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import (
    Backwards,
    Forgiving,
    Functions,
    Grads,
    Graph,
    alters,
    backwards,
    each_input_grad,
    each_output_grad,
    param_grads,
    per_session,
    stored_as,
    target,
    with_session,
)
from .registry import fault


def _ring(size: int) -> Target:
    """Return a target with a ring of contexts: when it is full, the next one overwrites the oldest."""

    class Ring(Forgiving):
        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            found = super().backward_input(mb, output_grads)
            if len(self._contexts) > size:
                del self._contexts[next(iter(self._contexts))]
            return found

    return with_session(Ring)


@fault("space.*.one-mb-*", cause="zero", takes="count=one-mb")
@alters(per_session)
def lone_micro_batch_dropped(spec: StageSpec) -> Functions:
    """The first of several micro-batches starts the sum and the last ends it, so a single one does neither."""
    return param_grads(lambda _, added, __: added * 0.0 if spec.n_microbatches == 1 else added)


@fault("accumulate.iterations.split-10-deferred", cause="never_accumulated", takes="count=three-mb past-64-mb")
def ring_of_two_contexts() -> Target:
    """A ring holds two contexts: the third deferred one overwrites the first."""
    return _ring(2)


@fault("space.split.past-64-mb-*", cause={"kind": "newest_contexts_kept", "counts": [16]}, takes="count=past-64-mb")
def ring_of_sixteen_contexts() -> Target:
    """A ring holds 16 contexts: the 17th deferred one overwrites the first."""
    return _ring(16)


@fault("space.split.past-64-mb-*", cause={"kind": "newest_contexts_kept", "counts": [32]}, takes="count=past-64-mb")
def ring_of_thirty_two_contexts() -> Target:
    """A ring holds 32 contexts: the 33rd deferred one overwrites the first."""
    return _ring(32)


@fault("space.split.past-64-mb-*", cause={"kind": "newest_contexts_kept", "counts": [64]}, takes="count=past-64-mb")
def ring_of_sixty_four_contexts() -> Target:
    """A ring holds 64 contexts: the 65th deferred one overwrites the first."""
    return _ring(64)


@fault("space.full.past-64-mb-*", cause={"kind": "past_count", "counts": [64]}, takes="count=past-64-mb")
@alters(with_session)
class BackwardsPastSixtyFourLost(FunctionsSession):
    """Micro-batches are counted in six bits: from the 65th B on, parameters get no gradient."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        if mb < 64:
            return super().backward(mb, output_grads)
        before = {name: parameter.grad for name, parameter in self._stage.named_parameters()}
        copies = {name: None if grad is None else grad.clone() for name, grad in before.items()}
        found = super().backward(mb, output_grads)
        for name, parameter in self._stage.named_parameters():
            parameter.grad = copies[name]
        return found


def _cut(past: int, block: int = 1) -> Callable[[nn.Parameter, Tensor, Graph], Tensor]:
    """Return an edit that drops the elements after a number, or after the last whole block."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del parameter, graph
        if added.layout != torch.strided or added.numel() <= past:
            return added
        cut = added.clone(memory_format=torch.contiguous_format)
        cut.view(-1)[added.numel() // block * block if block > 1 else past :] = 0
        return cut

    return edit


@fault("space.*.past-256-elements-*", "space.*.37x41-*", cause="cut_off")
def tail_behind_blocks_of_sixteen_dropped() -> Target:
    """A gradient is added in blocks of 16 elements, without the remainder."""
    return target(param_grads(_cut(16, 16)))


@fault(
    "space.*.past-256-elements-*",
    "space.full.37x41-*",
    cause="cut_off",
    takes="size=past-256-elements 37x41 past-32768-elements 65535-elements past-65536-elements",
)
def tail_behind_blocks_of_256_dropped() -> Target:
    """A gradient of more than 256 elements is added in blocks of 256, without the remainder."""
    return target(param_grads(_cut(256, 256)))


@fault("space.*.32x32-*", cause={"kind": "cut_off", "counts": [256, 1024, 768]}, takes="size=32x32")
def last_of_whole_blocks_dropped() -> Target:
    """A gradient of whole blocks of 256 elements is added without the last block, as if it were the remainder."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del parameter, graph
        if added.layout != torch.strided or not added.numel() or added.numel() % 256:
            return added
        cut = added.clone(memory_format=torch.contiguous_format)
        cut.view(-1)[-256:] = 0
        return cut

    return target(param_grads(edit))


@fault(
    "space.full.37x41-*",
    "space.*.past-32768-elements-*",
    cause="cut_off",
    takes="size=37x41 past-32768-elements 65535-elements past-65536-elements",
)
def elements_past_1024_dropped() -> Target:
    """A kernel processes at most 1,024 elements."""
    return target(param_grads(_cut(1024)))


@fault(
    "space.*.past-32768-elements-*",
    cause={"kind": "cut_off", "counts": [1, 32769, 32768]},
    dtypes=("float32", "float64", "float16"),
    elsewhere="within the bound: bfloat16 may lose more by rounding than the one dropped element",
    takes="size=past-32768-elements 65535-elements past-65536-elements",
)
def elements_past_32768_dropped() -> Target:
    """Elements are counted in 15 bits, and later ones are dropped."""
    return target(param_grads(_cut(2**15)))


@fault("space.*.ragged-mb-*", takes="count=ragged-mb")
@alters(with_session)
class InputGradientsInTheFirstShape(Backwards):
    """Input gradients are copied into buffers with the shapes of the first micro-batch's."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        found = backward(mb, output_grads)
        shapes: list[Any] = vars(self).setdefault("shapes", [None if g is None else g.shape for g in found])
        return tuple(
            grad if grad is None or shape is None or len(grad) >= shape[0] else _padded(grad, shape[0])
            for grad, shape in zip(found, shapes, strict=True)
        )


def _padded(grad: Tensor, rows: int) -> Tensor:
    return torch.cat([grad, grad.new_zeros(rows - len(grad), *grad.shape[1:])])


@fault("space.full.one-by-one-*", takes="size=one-by-one")
def one_element_as_a_scalar() -> Target:
    """An input gradient of one element is returned as a 0-d tensor."""
    return target(each_input_grad(lambda _, grad: grad.reshape(()) if grad.numel() == 1 else grad))


@fault("space.*.no-elements-*", "space.full.cleared-2", cause="no_elements", takes="size=no-elements")
@alters(stored_as)
def no_elements_no_gradient(parameters: list[nn.Parameter]) -> None:
    """A gradient without elements is stored as None."""
    for parameter in parameters:
        if parameter.grad is not None and not parameter.numel():
            parameter.grad = None


@fault(
    "space.*.many-parameters-*",
    cause={"kind": "parameters_past_count", "counts": [128]},
    takes="parameters=many-parameters",
)
@alters(stored_as)
def parameters_past_128_left_out(parameters: list[nn.Parameter]) -> None:
    """Only the first 128 parameters are processed."""
    for parameter in parameters[128:]:
        parameter.grad = None


@fault("space.*.deep-*", raises=True, takes="graph=deep")
def deep_graph_walked_by_recursion() -> Target:
    """The graph is walked by recursion, which ends at a depth of 1,000."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Any) -> Grads:
        if max(Graph.behind(outputs).depth.values(), default=0) > 1000:
            msg = "maximum recursion depth exceeded"
            raise RecursionError(msg)
        return run(outputs, grads, inputs)

    return target(backwards(around, Functions()))


@fault("space.*.65535-elements-*", cause=("never_accumulated", "zero"), takes="size=65535-elements")
def last_number_of_sixteen_bits_means_none() -> Target:
    """The number of elements has 16 bits, and its largest value means no gradient."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del parameter, graph
        return added * 0.0 if added.numel() == 0xFFFF else added

    return target(param_grads(edit))


@fault("space.*.past-65536-elements-*", cause="cut_off", takes="size=past-65536-elements")
def elements_past_sixteen_bits_dropped() -> Target:
    """Elements are counted in 16 bits: those after the first 65,536 are not added."""
    return target(param_grads(_cut(0x10000)))


def _tile(rows: int) -> Target:
    """Return a target that reads only the rows of an output gradient that fit in a tile."""

    def edit(_: Any, grad: Any) -> Any:
        if not isinstance(grad, Tensor) or grad.dim() < 2 or len(grad) <= rows:
            return grad
        read = grad.clone()
        read[rows:] = 0
        return read

    return each_output_grad(edit)


@fault("space.*.17-rows-*", cause="cut_off", takes="rows=17-rows 65-rows 257-rows")
def rows_past_sixteen_dropped() -> Target:
    """A tile has 16 rows, and later rows are dropped."""
    return _tile(16)


@fault("space.*.65-rows-*", cause="cut_off", takes="rows=65-rows 257-rows")
def rows_past_64_dropped() -> Target:
    """A tile has 64 rows, and later rows are dropped."""
    return _tile(64)


@fault("space.*.257-rows-*", cause="cut_off", takes="rows=257-rows")
def rows_past_256_dropped() -> Target:
    """A tile has 256 rows, and later rows are dropped."""
    return _tile(256)
