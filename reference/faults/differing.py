"""Faults of micro-batches that differ: what the first one showed is taken for a fact about the stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import (
    Functions,
    Grads,
    Graph,
    accumulating,
    alters,
    backwards,
    flat,
    output_grads,
    param_grads,
    per_session,
)
from .registry import fault

#: What is taken for the identity of a graph.
Key = Callable[[Graph, Sequence[nn.Parameter]], object]


def _names(graph: Graph, _: Sequence[nn.Parameter]) -> object:
    return tuple(node.name() for node in graph.depth)


def _count(_: Graph, parameters: Sequence[nn.Parameter]) -> object:
    return len(parameters)


def _lists(of: Key) -> Target:
    """Return a target whose sessions add only to the parameters that the first graph of its kind used."""

    def make(_: StageSpec) -> Functions:
        known: dict[object, set[int]] = {}

        @contextmanager
        def inside(parameters: list[nn.Parameter], graph: Graph) -> Iterator[None]:
            used = graph.parameters()
            planned = known.setdefault(of(graph, used), {id(one) for one in used})
            before = [(one, one.grad) for one in parameters if id(one) not in planned]
            for one, _ in before:
                one.grad = None
            try:
                yield
            finally:
                for one, grad in before:
                    one.grad = grad

        return accumulating(inside)

    return per_session(make)


@fault("differing.use.experts-*", cause="never_accumulated")
def used_parameters_by_operation_names() -> Target:
    """The list of used parameters is kept for all graphs with the same operations."""
    return _lists(_names)


@fault("differing.use.experts-*", cause="never_accumulated")
def used_parameters_by_their_count() -> Target:
    """The list of used parameters is kept for all graphs with as many parameters."""
    return _lists(_count)


@fault("differing.use.experts-*", "differing.use.optional-*", "differing.loss.*", cause="never_accumulated")
@alters(per_session)
def unused_once_is_unused_forever(_: StageSpec) -> Functions:
    """A parameter that the first micro-batch leaves without a gradient gets none from later ones."""
    known: set[int] = set()
    begun: list[bool] = []

    @contextmanager
    def inside(parameters: list[nn.Parameter], graph: Graph) -> Iterator[None]:
        if not begun:
            known.update(map(id, graph.parameters()))
        begun.append(True)
        before = [(one, one.grad) for one in parameters if id(one) not in known]
        yield
        for one, grad in before:
            one.grad = grad

    return accumulating(inside)


@fault("differing.use.order-*", cause="added_of_other_parameter")
@alters(per_session)
def order_of_the_first_micro_batch(_: StageSpec) -> Functions:
    """Gradients are stored in the order in which the first micro-batch used the parameters."""
    first: list[nn.Parameter] = []

    @contextmanager
    def inside(parameters: list[nn.Parameter], graph: Graph) -> Iterator[None]:
        del parameters
        used = graph.parameters()
        first.extend(() if first else used)
        before = {id(one): one.grad for one in used}
        for one in used:
            one.grad = None
        yield
        added = [one.grad for one in used]
        alike = {id(one) for one in first} == set(before)
        targets = first if alike and all(a.shape == b.shape for a, b in zip(first, used, strict=True)) else used
        for one, grad in zip(targets, added, strict=True):
            held = before[id(one)]
            one.grad = grad if held is None else held if grad is None else held + grad

    return accumulating(inside)


@fault("differing.use.slice-*", cause="rows_of_other")
@alters(per_session)
def rows_of_the_first_micro_batch(_: StageSpec) -> Functions:
    """The gradient of a part of a weight is added to the rows that the first micro-batch used."""
    rows: dict[int, int] = {}

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        if added.layout is not torch.strided or added.dim() != 2:
            return added
        used = added.abs().sum(dim=1).nonzero()
        start = int(used[0]) if len(used) else 0
        return added.roll(rows.setdefault(id(parameter), start) - start, 0)

    return param_grads(edit)


@fault("differing.output_grads.none-*", cause="outputs_missing")
@alters(per_session)
def outputs_with_gradients_of_the_first_micro_batch(_: StageSpec) -> Functions:
    """Only the outputs that had a gradient in the first micro-batch are read later."""
    first: list[bool] = []

    def edit(outputs: list[Any], grads: Any) -> Any:
        del outputs
        if not isinstance(grads, list):
            return grads
        first.extend(() if first else [grad is not None for grad in grads])
        return [grad if here else None for grad, here in zip(grads, first, strict=True)]

    return output_grads(edit)


@fault("differing.output_grads.layout-*", cause="read_with_strides_of")
@alters(per_session)
def strides_of_the_first_output_gradient(_: StageSpec) -> Functions:
    """The memory of an output gradient is read with the strides that it had in the first micro-batch."""
    strides: dict[int, tuple[int, ...]] = {}

    def edit(outputs: list[Any], grads: Any) -> Any:
        del outputs
        if not isinstance(grads, list):
            return grads
        return [
            _read(grad, strides.setdefault(n, grad.stride())) if _dense(grad) else grad for n, grad in enumerate(grads)
        ]

    return output_grads(edit)


def _dense(grad: Any) -> TypeGuard[Tensor]:
    return isinstance(grad, Tensor) and grad.layout is torch.strided and bool(grad.numel())


def _read(grad: Tensor, strides: tuple[int, ...]) -> Tensor:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(grad.shape, strides, strict=True))
    held = grad.untyped_storage().nbytes() // grad.itemsize - grad.storage_offset()
    return grad.as_strided(grad.shape, strides) if reach <= held else grad


def _of_first(edit: Callable[[Tensor | None, Tensor, Tensor], Tensor | None]) -> Functions:
    """Edit each input gradient by its argument and that of the first micro-batch."""
    first: dict[int, Tensor] = {}

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = run(outputs, grads, inputs)
        known = {n: first.setdefault(n, one.detach()) for n, one in enumerate(inputs) if isinstance(one, Tensor)}
        flags.update({n: one.requires_grad for n, one in enumerate(inputs) if n in known and n not in flags})
        return tuple(edit(grad, inputs[n], known[n]) if n in known else grad for n, grad in enumerate(found))

    flags: dict[int, bool] = {}
    return backwards(around)


@fault("differing.arguments.dtype-*")
@alters(per_session)
def dtype_of_the_first_argument(_: StageSpec) -> Functions:
    """Input gradients are returned in the dtype of the first micro-batch's argument."""
    return _of_first(lambda grad, _, first: None if grad is None else grad.to(first.dtype))


@fault("differing.arguments.fixed-*")
@alters(per_session)
def need_of_the_first_argument(_: StageSpec) -> Functions:
    """An argument that required a gradient in the first micro-batch gets zeros where it requires none."""
    needed: dict[int, bool] = {}

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = run(outputs, grads, inputs)
        for n, one in enumerate(inputs):
            needed.setdefault(n, isinstance(one, Tensor) and one.requires_grad)
        return tuple(
            torch.zeros_like(inputs[n]) if grad is None and needed[n] and not inputs[n].requires_grad else grad
            for n, grad in enumerate(found)
        )

    return backwards(around)


@fault("differing.arguments.rows-*", cause="only")
@alters(per_session)
def micro_batches_without_rows_end_the_step(_: StageSpec) -> Functions:
    """After a micro-batch without rows, no parameter gets a gradient."""
    ended: list[bool] = []

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = run(outputs, grads, inputs)
        ended.extend(True for one in tensors(flat(outputs, grads)[0]) if not one.numel())
        return found

    return backwards(around, param_grads(lambda _, added, __: added * 0.0 if ended else added))


@fault("differing.arguments.layout-*", cause="read_across")
@alters(per_session)
def strides_of_the_first_argument(_: StageSpec) -> Functions:
    """An input gradient is laid out as the first micro-batch's argument, and filled in the order of memory."""
    strides: dict[int, tuple[int, ...]] = {}

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = run(outputs, grads, inputs)
        for n, one in enumerate(inputs):
            if isinstance(one, Tensor):
                strides.setdefault(n, one.stride())
        return tuple(
            grad.t().reshape(grad.shape) if _dense(grad) and _turned(inputs[n], strides[n]) else grad
            for n, grad in enumerate(found)
        )

    return backwards(around)


def _turned(one: Tensor, strides: tuple[int, ...]) -> bool:
    """Return whether a matrix is transposed in memory, although the first one was not."""
    return one.dim() == 2 and one.stride(0) < one.stride(1) and strides[0] > strides[1]


def _with_sums(add: Callable[[Tensor, Tensor], Tensor]) -> Functions:
    """Return functions that ``add`` an existing gradient and a new one in another way."""

    @contextmanager
    def adding(parameters: list[nn.Parameter], _: Graph) -> Iterator[None]:
        before = {id(one): one.grad for one in parameters}
        for one in parameters:
            one.grad = None
        yield
        for one in parameters:
            held, added = before[id(one)], one.grad
            if held is not None:
                one.grad = held if added is None else add(held, added)

    return accumulating(adding)


@fault("differing.sums.sparse-then-dense-*", "differing.sums.dense-then-sparse-*", cause="overwritten")
@alters(_with_sums)
def gradient_of_another_layout_replaced(held: Tensor, added: Tensor) -> Tensor:
    """A gradient of another layout replaces the existing one."""
    return held + added if held.layout == added.layout else added


@fault("differing.sums.other-tokens-*", cause="rows_of_other")
@alters(_with_sums)
def sparse_gradients_added_by_place(held: Tensor, added: Tensor) -> Tensor:
    """Two sparse gradients with as many rows are added row by row, without a look at the indices."""
    if not (held.is_sparse and added.is_sparse):
        return held + added
    rows, others = held.coalesce(), added.coalesce()
    if rows.values().shape != others.values().shape:
        return held + added
    return torch.sparse_coo_tensor(rows.indices(), rows.values() + others.values(), rows.shape)


@fault("differing.sums.dense-then-sparse-*", cause="missing")
@alters(param_grads)
def sparse_gradient_on_a_dense_one_dropped(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
    """A sparse gradient is dropped if the existing one is dense."""
    dense = parameter.grad is not None and parameter.grad.layout is torch.strided
    return added * 0.0 if dense and added.layout is not torch.strided else added


@fault("differing.sums.expanded-then-full-*", cause="first_row_repeated")
@alters(per_session)
def sum_stays_expanded(_: StageSpec) -> Functions:
    """If the first gradient of a parameter is expanded, one element of each later one is used for all."""
    expanded: dict[int, bool] = {}

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        strided = added.layout is torch.strided and added.numel() > 1 and added.dim() == 1
        if expanded.setdefault(id(parameter), strided and added.stride() == (0,)) and strided:
            return added[:1].expand(added.shape)
        return added

    return param_grads(edit)


@fault("differing.arguments.rows-*", cause="unwritten_for_no_rows")
@alters(per_session)
def buffer_unwritten_without_rows(_: StageSpec) -> Functions:
    """A micro-batch without rows writes nothing into the buffer of a gradient, and what is in it is added."""
    empty: list[bool] = []
    buffers: dict[int, Tensor] = {}

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        empty[:] = [not one.numel() for one in tensors(flat(outputs, grads)[0])]
        return run(outputs, grads, inputs)

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del graph
        if not added.any() and id(parameter) in buffers:
            return buffers[id(parameter)].clone()
        buffers[id(parameter)] = added.clone()
        return added

    return backwards(around, param_grads(edit))
